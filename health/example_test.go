package health_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
)

// A job that is always well.
type well struct{}

func (well) Alive() time.Time               { return time.Now() }
func (well) WriteMetrics(w io.Writer) error { return nil }
func (well) GPUs(time.Duration) []agent.GPU { return nil }
func (well) State(context.Context) *jobstate.State {
	return &jobstate.State{Time: time.Now(), Job: jobstate.Job{RunID: "job7", Phase: "running", State: "HEALTHY"}}
}

var _ health.Source = well{}

func ExampleServer_Serve() {
	server, err := health.Listen(health.Config{Addr: "127.0.0.1:0", Source: well{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()

	answer, err := http.Get("http://" + server.Addr().String() + "/readyz")
	if err != nil {
		fmt.Println(err)
		return
	}
	io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	fmt.Println(answer.Status)

	cancel()
	fmt.Println(<-ended)
	// Output:
	// 200 OK
	// <nil>
}
