package health_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/test/testproc"
)

func TestMain(m *testing.M) {
	testproc.Main()
	os.Exit(m.Run())
}

// A fake is a Source that says what a test wants, and counts how often it is asked.
type fake struct {
	mu      sync.Mutex // guards the rest
	alive   time.Time
	state   jobstate.State
	metrics string
	err     error                 // of WriteMetrics
	hold    func(context.Context) // called by State, without the lock; may be nil
	states  int
	scrapes int
}

func (f *fake) Alive() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alive
}

func (f *fake) State(ctx context.Context) *jobstate.State {
	f.mu.Lock()
	f.states++
	s, hold := f.state, f.hold
	f.mu.Unlock()
	if hold != nil {
		hold(ctx)
	}
	if s.Time.IsZero() {
		s.Time = time.Now()
	}
	return &s
}

func (f *fake) GPUs(time.Duration) []agent.GPU { return nil }

func (f *fake) WriteMetrics(w io.Writer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scrapes++
	if f.err != nil {
		return f.err
	}
	_, err := io.WriteString(w, f.metrics)
	return err
}

// set changes what the fake says.
func (f *fake) set(change func(*fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fake) asked() (states, scrapes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.states, f.scrapes
}

// running is a fake whose workers run.
func running() *fake {
	return &fake{
		alive: time.Now(),
		state: jobstate.State{
			Job:     jobstate.Job{RunID: "job7", State: "HEALTHY", Phase: "running", Round: 2, Restarts: 1, MaxRestarts: 3, WorldSize: 2},
			Host:    jobstate.Host{Name: "n0"},
			Workers: []jobstate.Worker{{Rank: 0, LocalRank: 0, PID: 100, State: "HEALTHY"}, {Rank: 1, LocalRank: 1, PID: 101, State: "HEALTHY"}},
		},
		metrics: "# TYPE muster_restarts gauge\nmuster_restarts 1\n",
	}
}

// answering is a Config.Call to agents that answer what a test wants.
func answering(say func(r *http.Request) string) func(context.Context, int) (net.Conn, error) {
	return func(context.Context, int) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			if r, err := http.ReadRequest(bufio.NewReader(theirs)); err == nil {
				body := say(r)
				fmt.Fprintf(theirs, "HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
		}()
		return ours, nil
	}
}

// listen makes a server that the test closes, and does not serve. Its requests wait
// for the source as long as a busy machine may need, not DefaultPatience.
func listen(t testing.TB, f *fake, change func(*health.Config)) *health.Server {
	t.Helper()
	cfg := health.Config{Addr: "0", Source: f, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	s, err := health.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.SetPatience(testproc.Patience)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// serve makes a server that serves until the test ends, and returns its URL.
func serve(t testing.TB, f *fake, change func(*health.Config)) (*health.Server, string) {
	t.Helper()
	s := listen(t, f, change)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, "http://" + s.Addr().String()
}

// write makes a file in the test's directory and returns its path.
func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fetch gets a page; an answer that does not come is one of status 0.
func fetch(t *testing.T, url string) (status int, body string) {
	r, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer r.Body.Close()
	all, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return r.StatusCode, string(all)
}
