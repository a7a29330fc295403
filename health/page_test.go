package health_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/test/testproc"
)

// tainted is a state that has s wherever a worker, a user or another host may say
// something.
func tainted(s string) jobstate.State {
	now := time.Date(2026, 4, 12, 16, 20, 30, 0, time.UTC)
	return jobstate.State{
		Time: now,
		Job: jobstate.Job{RunID: s, Role: s, Backend: s, Endpoint: s, Entrypoint: s, Started: now.Add(-time.Hour), State: s, Phase: jobstate.Phase(s),
			WaitingFor: "x" + s, LogDir: s},
		Host:  jobstate.Host{Name: s},
		Hosts: []jobstate.Host{{Name: s, GroupRank: 1, State: s}},
		Workers: []jobstate.Worker{{State: s, Stdout: "/" + s, Stderr: "/nowhere" + s, StdoutLines: []string{s, s}, StderrLines: []string{s},
			Exit: &jobstate.Exit{Signal: s, Cause: s}}},
		Timeline: []jobstate.Moment{
			{Time: now.Add(-30 * time.Minute), Kind: s, Phase: jobstate.Phase(s), What: s, Why: "x" + s},
			{Time: now.Add(-20 * time.Minute), Kind: "failure", What: s, Why: "x" + s}},
		Failures: []jobstate.Failure{{Report: "x" + s, ProcessFailure: failure.ProcessFailure{Observation: failure.Observation{Host: "x" + s}, Cause: s, Message: "x" + s}}},
	}
}

// marks counts what gives HTML its structure.
func marks(page string) [3]int {
	return [3]int{strings.Count(page, "<"), strings.Count(page, ">"), strings.Count(page, `"`)}
}

// FuzzPage: whatever is said in a state stays text: the page has as many tags and
// quotes as with harmless words.
func FuzzPage(f *testing.F) {
	for _, s := range []string{"x", attack, `" onload="x`, `'><svg/onload=x>`, "</pre></main>", "&lt;", "\x00\x1b[1m\u202e", "\xff<", "<!--", "%s%d%!", "]]>"} {
		f.Add(s)
	}
	fake := &fake{alive: time.Now()}
	page := func(t testing.TB, s string) string {
		fake.state = tainted(s)
		server, err := health.Listen(health.Config{Addr: "0", Source: fake})
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		server.SetPatience(testproc.Patience)
		w := get(server, "GET", "/")
		if w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return w.Body.String()
	}
	want := marks(page(f, "word"))
	f.Fuzz(func(t *testing.T, s string) {
		switch jobstate.Phase(s) { // these make another page
		case "", "rendezvous", "assigning", "running", "restarting", "exit barrier", "ended":
			return
		}
		switch s {
		case "failure", "hosts", "restart", "end":
			return
		}
		if got := page(t, s); marks(got) != want {
			t.Errorf("with %q the page has %v of < > \", want %v:\n%s", s, marks(got), want, got)
		}
	})
}

// TestEmptyPage: a job of which hardly anything is known yet.
func TestEmptyPage(t *testing.T) {
	f := &fake{alive: time.Now(), state: jobstate.State{Job: jobstate.Job{RunID: "job7", Phase: "rendezvous", State: "INIT", WaitingFor: "3 of 4 hosts, 12 s left"}}}
	page := get(listen(t, f, nil), "GET", "/").Body.String()
	for _, want := range []string{"waiting: 3 of 4 hosts, 12 s left", "None run.", `<noscript><meta http-equiv="refresh" content="2"></noscript>`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q:\n%s", want, page)
		}
	}
	for _, not := range []string{`id="hosts"`, `id="logs"`, `id="failures"`, "0001", "NaN", "%!"} {
		if strings.Contains(page, not) {
			t.Errorf("the page has %q:\n%s", not, page)
		}
	}
}

// Steps per second are beside the step, where they are known.
func TestPace(t *testing.T) {
	f := running()
	f.set(func(f *fake) {
		f.state.Workers = nil
		for i, pace := range []float64{3.42, 0.0123, 125.7, 0, math.NaN()} {
			f.state.Workers = append(f.state.Workers, jobstate.Worker{Rank: i, LocalRank: i, Heartbeat: &jobstate.Heartbeat{Step: 1200, StepsPerSecond: pace}})
		}
	})
	s := listen(t, f, nil)
	page := get(s, "GET", "/").Body.String()
	for _, want := range []string{">1200 · 3.4/s<", ">1200 · 0.012/s<", ">1200 · 126/s<", ">1200<"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q:\n%s", want, page)
		}
	}
	state, err := jobstate.Parse(get(s, "GET", "/v1/state").Body.Bytes())
	if err != nil || state.Workers[0].Heartbeat.StepsPerSecond != 3.42 || state.Workers[4].Heartbeat.StepsPerSecond != 0 {
		t.Errorf("%v, %+v", err, state)
	}
}

func TestHeadline(t *testing.T) {
	for _, tt := range []struct {
		phase       jobstate.Phase
		state, want string
	}{
		{"running", "HEALTHY", `class="pill good">running<`},
		{"running", "FAILED", `class="pill good">running, failed<`},
		{"rendezvous", "INIT", `class="pill wait">rendezvous<`},
		{"restarting", "STOPPED", `class="pill warn">restarting<`},
		{"exit barrier", "SUCCEEDED", `class="pill done">exit barrier<`},
		{"ended", "SUCCEEDED", `class="pill done">succeeded<`},
		{"ended", "FAILED", `class="pill bad">failed<`},
	} {
		f := running()
		f.state.Job.Phase, f.state.Job.State = tt.phase, tt.state
		if page := get(listen(t, f, nil), "GET", "/").Body.String(); !strings.Contains(page, tt.want) {
			t.Errorf("%s, %s: the page has no %s", tt.phase, tt.state, tt.want)
		}
	}
}

// A job that is preempted has not failed.
func TestPreempted(t *testing.T) {
	for phase, want := range map[jobstate.Phase]string{"ended": `class="pill warn">preempted<`, "restarting": `class="pill warn">being preempted<`} {
		f := running()
		f.state.Job.Phase, f.state.Job.State = phase, "FAILED"
		f.state.Job.Preempted = &failure.Preemption{Host: "<b>", Signal: 15, Time: time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)}
		s := listen(t, f, nil)
		page := get(s, "GET", "/").Body.String()
		if !strings.Contains(page, want) || !strings.Contains(page, "host &lt;b&gt; received SIGTERM at 23:59:59") {
			t.Errorf("%s: the page lacks who asked:\n%s", phase, page)
		}
		if state := get(s, "GET", "/v1/state").Body.String(); !strings.Contains(state, `"preempted":{"host":"`) || !strings.Contains(state, `"signal":"SIGTERM"`) {
			t.Errorf("the state lacks who asked: %s", state)
		}
	}
}
