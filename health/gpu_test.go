package health_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
)

// withGPUs is a fake on a host with GPUs.
type withGPUs struct {
	*fake
	gpus []agent.GPU
}

func (f *withGPUs) GPUs(time.Duration) []agent.GPU { return f.gpus }

// TestGPUs: each worker that runs has the GPU with its local rank, in the state and on the page.
func TestGPUs(t *testing.T) {
	busy := 87
	f := &withGPUs{running(), []agent.GPU{{Index: 4, Percent: &busy, UsedBytes: 61 << 30, TotalBytes: 80 << 30}, {Index: 5, TotalBytes: 80 << 30}, {Index: 6}}}
	f.state.Hosts = []jobstate.Host{{Name: "n0", Workers: 3}}
	f.state.Workers = append(f.state.Workers, jobstate.Worker{Rank: 2, LocalRank: 2, Exit: &jobstate.Exit{Code: 1}}, jobstate.Worker{Rank: 3, LocalRank: 3})
	s := listen(t, f.fake, func(c *health.Config) { c.Source = f })
	var got jobstate.State
	if err := json.Unmarshal(get(s, "GET", "/v1/state").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if g := got.Workers[0].GPU; g == nil || g.Index != 4 || g.Percent == nil || *g.Percent != 87 || g.UsedBytes != 61<<30 || g.TotalBytes != 80<<30 {
		t.Errorf("rank 0 has %+v", g)
	}
	if g := got.Workers[1].GPU; g == nil || g.Index != 5 || g.Percent != nil {
		t.Errorf("rank 1 has %+v", g)
	}
	if got.Workers[2].GPU != nil || got.Workers[3].GPU != nil {
		t.Errorf("a worker that has ended, or one without a GPU, has %v, %v", got.Workers[2].GPU, got.Workers[3].GPU)
	}
	page := get(s, "GET", "/").Body.String()
	for _, want := range []string{
		`<td data-l="GPU" class="n">87 %</td><td data-l="GPU memory" class="n dim">61 GiB of 80 GiB</td>`, `<td data-l="GPU" class="n">–</td>`,
		"<dt>GPU</dt><dd>87 %</dd><dd class=\"note\">of 1 GPU</dd>", ", GPU 87 %</small>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	f.gpus = nil
	if page = get(listen(t, f.fake, nil), "GET", "/").Body.String(); strings.Contains(page, "GPU") {
		t.Error("the page speaks of GPUs where there are none")
	}
}
