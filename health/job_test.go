package health_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/rendezvous"
)

// A member is one host of a job: what it shows, and what it was asked to do.
type member struct {
	*fake
	rank    int
	proceed chan bool // with FollowLogs

	mu   sync.Mutex // guards done
	done []string
}

func (m *member) did(what string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = append(m.done, fmt.Sprintf(what, args...))
}

func (m *member) Stop(by string, whole bool) func() {
	return func() { m.did("stop by %q, whole job %v", by, whole) }
}
func (m *member) Restart(string) error { m.did("restart"); return nil }
func (m *member) Signal(sig syscall.Signal, rank int) ([]agent.Worker, error) {
	if rank >= 0 && rank/2 != m.rank {
		return nil, errors.New("rank is elsewhere")
	}
	m.did("signal %d to %d", sig, rank)
	return []agent.Worker{{Rank: 2 * m.rank, PID: 100 + m.rank}}, nil
}
func (m *member) Autopsy(_ context.Context, reason string) ([]byte, error) {
	if m.rank == 3 {
		return nil, errors.New("no evidence is taken here")
	}
	return json.Marshal(map[string]any{"host": m.rank, "reason": reason})
}

// job serves a job of hosts with two workers each to its agents, and returns them with what
// calls them. The agent on host 2 is torchrun's. Host 0's clock is an hour slow, host 3's two fast.
func job(t *testing.T, n int) ([]*member, func(context.Context, int) (net.Conn, error)) {
	var members []*member
	for rank := range n {
		m := &member{fake: running(), rank: rank, proceed: make(chan bool)}
		now := time.Now().Add(time.Duration(rank-1) * time.Hour)
		m.set(func(f *fake) {
			f.state = jobstate.State{Time: now, Host: jobstate.Host{Name: fmt.Sprintf("n%d", rank), GroupRank: rank, State: "HEALTHY", Workers: 2}, LiveTimers: 1}
			f.state.Job = jobstate.Job{RunID: "j", Phase: "running", State: "HEALTHY", WorldSize: 2 * n, MaxHosts: n}
			for i := range n {
				f.state.Hosts = append(f.state.Hosts, jobstate.Host{GroupRank: i})
			}
			f.state.Hosts[rank] = f.state.Host
			for i := range 2 {
				path := write(t, "log", fmt.Sprintf("line of rank %d\n", 2*rank+i))
				f.state.Workers = append(f.state.Workers, jobstate.Worker{Rank: 2*rank + i, LocalRank: i, State: "HEALTHY", Stdout: path, Started: now.Add(-time.Minute)})
			}
		})
		members = append(members, m)
	}
	var addrs []string
	for _, m := range members {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		serve(t, m.fake, func(c *health.Config) { c.Listener, c.Control, c.Logs = l, m, m })
		addrs = append(addrs, l.Addr().String())
	}
	return members, func(ctx context.Context, rank int) (net.Conn, error) {
		if rank == 2 {
			return nil, errors.New("group rank 2 is an agent of torchrun, which takes no calls")
		}
		return new(net.Dialer).DialContext(ctx, "tcp", addrs[rank])
	}
}

// One agent shows the workers of all hosts, by its own clock, and says of which it knows
// nothing. With scope=host it shows its own.
func TestWholeJob(t *testing.T) {
	members, call := job(t, 4)
	s, _ := serve(t, members[1].fake, func(c *health.Config) { c.Call = call })
	get := func(path string) (int, string) {
		answer, err := http.Get("http://" + s.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	state := func(path string) *jobstate.State {
		_, body := get(path)
		state, err := jobstate.Parse([]byte(body))
		if err != nil {
			t.Fatal(err, body)
		}
		return state
	}
	all := state("/v1/state")
	var ranks []int
	var hosts, problems []string
	for _, w := range all.Workers {
		ranks, hosts = append(ranks, w.Rank), append(hosts, w.Host)
		if age := all.Time.Sub(w.Started); age < 0 || age > 2*time.Minute {
			t.Errorf("rank %d runs for %v", w.Rank, age)
		}
	}
	for _, h := range all.Hosts {
		problems = append(problems, h.Problem)
	}
	if diff := cmp.Diff([]int{0, 1, 2, 3, 6, 7}, ranks); diff != "" {
		t.Errorf("ranks, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"n0", "n0", "n1", "n1", "n3", "n3"}, hosts); diff != "" {
		t.Errorf("hosts, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"", "", "group rank 2 is an agent of torchrun, which takes no calls", ""}, problems); diff != "" {
		t.Errorf("problems, -want +got:\n%s", diff)
	}
	if all.LiveTimers != 3 || all.Hosts[3].Name != "n3" || all.Hosts[3].Workers != 2 {
		t.Errorf("%d timers, hosts %+v", all.LiveTimers, all.Hosts)
	}
	if own := state("/v1/state?scope=host"); len(own.Workers) != 2 || own.Workers[0].Rank != 2 || own.LiveTimers != 1 {
		t.Errorf("with scope=host: %+v", own)
	}
	for path, want := range map[string]string{
		"/v1/logs?rank=7":            "line of rank 7\n",
		"/v1/logs?rank=3":            "line of rank 3\n",
		"/v1/logs?rank=5":            "rank 5 does not run on any host that answers\n",
		"/v1/logs?rank=7&scope=host": "rank 7 does not run on this host\n",
		"/v1/logs?rank=7&lines=x":    "lines=\"x\" is not a number from 1 to 1000\n",
	} {
		if _, body := get(path); body != want {
			t.Errorf("%s: %q, want %q", path, body, want)
		}
	}
	// The head of a stream is that of the last lines.
	if answer, err := http.Head("http://" + s.Addr().String() + "/v1/logs?rank=7&follow=1"); err != nil || answer.ContentLength != int64(len("line of rank 7\n")) {
		t.Errorf("%+v, %v", answer, err)
	}
	if _, page := get("/"); !strings.Contains(page, "<td data-l=\"host\" class=\"\">n3</td>") || !strings.Contains(page, "is an agent of torchrun") {
		t.Errorf("the page does not show all hosts:\n%s", page)
	}
}

// Of a host that does not answer any more nobody knows how its workers are.
func TestSilentHost(t *testing.T) {
	members, call := job(t, 2)
	var silent atomic.Bool
	_, url := serve(t, members[0].fake, func(c *health.Config) {
		c.Call = func(ctx context.Context, rank int) (net.Conn, error) {
			if silent.Load() {
				return nil, errors.New("no answer within 2s")
			}
			return call(ctx, rank)
		}
	})
	for deadline := time.Now().Add(testproc.Patience); ; {
		_, body := fetch(t, url+"/v1/state")
		state, err := jobstate.Parse([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		var states []string
		for _, h := range state.Hosts {
			states = append(states, h.State)
		}
		for _, w := range state.Workers {
			states = append(states, w.State)
		}
		got := strings.Join(states, " ")
		switch {
		case got == "HEALTHY HEALTHY HEALTHY HEALTHY HEALTHY HEALTHY" && !silent.Load():
			silent.Store(true)
		case got == "HEALTHY UNKNOWN HEALTHY HEALTHY UNKNOWN UNKNOWN" && silent.Load() && state.Hosts[1].Problem == "no answer within 2s":
			return
		case time.Now().After(deadline):
			t.Fatalf("hosts and workers are %s, silent: %v", got, silent.Load())
		}
	}
}

// Whoever looks after a while does not get what a host that hangs said then.
func TestSilentSinceTheLastLook(t *testing.T) {
	members, call := job(t, 2)
	var mu sync.Mutex // guards silent and asking
	silent, asking := false, 0
	proceed := make(chan bool)
	s, url := serve(t, members[0].fake, func(c *health.Config) {
		c.Call = func(ctx context.Context, rank int) (net.Conn, error) {
			mu.Lock()
			if silent {
				mu.Unlock()
				<-proceed
				return nil, errors.New("the test has ended")
			}
			asking++
			mu.Unlock()
			closed := sync.OnceFunc(func() {
				mu.Lock()
				defer mu.Unlock()
				asking--
			})
			conn, err := call(ctx, rank)
			if err != nil {
				closed()
				return nil, err
			}
			return &closing{Conn: conn, closed: closed}, nil
		}
	})
	t.Cleanup(func() { close(proceed) })
	s.SetPatience(10 * time.Millisecond)
	s.SetOld(time.Second)
	for deadline := time.Now().Add(testproc.Patience); ; time.Sleep(3 * time.Second) { // what is made of answers is kept for one
		_, body := fetch(t, url+"/v1/state")
		state, err := jobstate.Parse([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		was := silent
		silent = silent || state.Hosts[1].State == "HEALTHY" && len(state.Workers) == 4 && asking == 0
		mu.Unlock()
		switch host := state.Hosts[1]; {
		case was:
			if host.State != "UNKNOWN" || host.Problem != "no answer yet" || state.Workers[3].State != "UNKNOWN" || state.Workers[0].State != "HEALTHY" {
				t.Errorf("the host that hangs: %+v, its worker: %+v", host, state.Workers[3])
			}
			return
		case time.Now().After(deadline):
			t.Fatalf("no answer of %+v", host)
		}
	}
}

// A closing says when it is closed.
type closing struct {
	net.Conn
	closed func()
}

func (c *closing) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// A host that hangs hides no other one, not even from the first look.
func TestFirstLook(t *testing.T) {
	members, call := job(t, 4)
	hangs := make(chan bool)
	s, url := serve(t, members[1].fake, func(c *health.Config) {
		c.Call = func(ctx context.Context, rank int) (net.Conn, error) {
			if rank == 3 {
				<-hangs
			}
			return call(ctx, rank)
		}
	})
	t.Cleanup(func() { close(hangs) })
	s.SetPatience(10 * time.Millisecond)
	for deadline := time.Now().Add(testproc.Patience); ; {
		_, body := fetch(t, url+"/v1/state")
		if state, err := jobstate.Parse([]byte(body)); err == nil && len(state.Workers) == 4 && state.Workers[0].Rank == 0 {
			if state.Hosts[3].Problem != "no answer yet" || !strings.Contains(state.Hosts[2].Problem, "torchrun") {
				t.Errorf("hosts: %+v", state.Hosts)
			}
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("host 0 is not shown: %v %s", err, body)
		}
	}
}

// A host that waits for a round sees the job that runs without it: its hosts, and what has happened
// to it, by its own clock.
func TestWholeJobFromOutside(t *testing.T) {
	members, call := job(t, 2)
	members[0].set(func(f *fake) { // whose clock is an hour slow
		f.state.Job.Round, f.state.Job.Restarts = 4, 2
		f.state.Timeline = []jobstate.Moment{{Time: f.state.Time.Add(-time.Minute), Kind: "restart", What: "restart 2 of 3"}}
		f.state.Failures = []jobstate.Failure{{ProcessFailure: failure.ProcessFailure{Observation: failure.Observation{Rank: 3}, Cause: "boom"}, Time: f.state.Time.Add(-time.Minute)}}
	})
	spare := running()
	spare.set(func(f *fake) {
		f.state = jobstate.State{Host: jobstate.Host{Name: "spare", GroupRank: -1}, Job: jobstate.Job{RunID: "j", Phase: "rendezvous"}}
	})
	s, _ := serve(t, spare, func(c *health.Config) { c.Call = call })
	answer, err := http.Get("http://" + s.Addr().String() + "/v1/state")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	state, err := jobstate.Parse(body)
	if err != nil || len(state.Workers) != 4 || len(state.Hosts) != 2 || state.Host.Name != "spare" {
		t.Fatalf("%v, %s", err, body)
	}
	if j := state.Job; j.Restarts != 2 || j.Round != 4 || j.WorldSize != 4 || j.State != "HEALTHY" || j.Phase != "rendezvous" {
		t.Errorf("the job is %+v", j)
	}
	if len(state.Timeline) != 1 || len(state.Failures) != 1 || state.Failures[0].Cause != "boom" {
		t.Fatalf("the timeline is %+v, the failures %+v", state.Timeline, state.Failures)
	}
	for _, at := range []time.Time{state.Timeline[0].Time, state.Failures[0].Time} {
		if age := state.Time.Sub(at); age < time.Minute/2 || age > 2*time.Minute {
			t.Errorf("it happened %v ago", age)
		}
	}
	if _, page := fetch(t, "http://"+s.Addr().String()+"/"); !strings.Contains(page, "<h2>The attempt before failed</h2>") {
		t.Errorf("the page says\n%s", page)
	}
}

// What is asked of one agent, all do.
func TestControlOfAllHosts(t *testing.T) {
	members, call := job(t, 4)
	s, _ := serve(t, members[1].fake, func(c *health.Config) { c.Control, c.Call = members[1], call })
	post := func(path string) (string, *health.Done) {
		answer, err := http.Post("http://"+s.Addr().String()+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		done := &health.Done{}
		_ = json.Unmarshal(body, done)
		return string(body), done
	}
	noCalls := []health.Missing{{GroupRank: 2, Why: "group rank 2 is an agent of torchrun, which takes no calls"}}
	for path, want := range map[string]health.Done{
		"/v1/stop":                           {Hosts: []int{0, 3}, Missing: noCalls},
		"/v1/stop?scope=host":                {},
		"/v1/restart":                        {},
		"/v1/signal?signal=10":               {Hosts: []int{0, 3}, Missing: noCalls, Workers: []health.Signaled{{Rank: 0, PID: 100, Host: "n0"}, {Rank: 2, PID: 101, Host: "n1"}, {Rank: 6, PID: 103, Host: "n3"}}},
		"/v1/signal?signal=10&rank=7":        {Hosts: []int{3}, Missing: noCalls, Workers: []health.Signaled{{Rank: 6, PID: 103, Host: "n3"}}},
		"/v1/signal?signal=10&rank=3":        {Workers: []health.Signaled{{Rank: 2, PID: 101, Host: "n1"}}},
		"/v1/autopsy?reason=why":             {Hosts: []int{0}, Missing: noCalls, Reports: []json.RawMessage{[]byte(`{"host":0,"reason":"why"}`)}},
		"/v1/signal?signal=10&rank=9":        {},
		"/v1/signal?signal=12&rank=&scope=x": {Hosts: []int{0, 3}, Missing: noCalls, Workers: []health.Signaled{{Rank: 0, PID: 100, Host: "n0"}, {Rank: 2, PID: 101, Host: "n1"}, {Rank: 6, PID: 103, Host: "n3"}}},
	} {
		body, done := post(path)
		if diff := cmp.Diff(want, *done); diff != "" {
			t.Errorf("%s, -want +got:\n%s%s", path, diff, body)
		}
	}
	if body, _ := post("/v1/signal?signal=10&rank=9"); body != "rank 9 runs on no host that answers\n" {
		t.Errorf("a rank that nobody has: %q", body)
	}
	if body, _ := post("/v1/new"); !strings.HasPrefix(body, `there is no "/v1/new" to POST to`) {
		t.Errorf("an unknown request: %q", body)
	}
	for rank, want := range map[int][]string{
		0: {`signal 10 to -1`, `signal 12 to -1`, `stop by "n1", whole job true`},
		1: {`restart`, `signal 10 to -1`, `signal 10 to 3`, `signal 12 to -1`, `stop by "", whole job false`, `stop by "", whole job true`},
		2: nil,
		3: {`signal 10 to -1`, `signal 10 to 7`, `signal 12 to -1`, `stop by "n1", whole job true`},
	} {
		slices.Sort(members[rank].done)
		if diff := cmp.Diff(want, members[rank].done); diff != "" {
			t.Errorf("host %d, -want +got:\n%s", rank, diff)
		}
	}
}

// A host that has left the job need not be stopped, but misses what else the others are asked.
func TestControlOfOneThatHasLeft(t *testing.T) {
	members, call := job(t, 4)
	var calls atomic.Int32
	s, _ := serve(t, members[1].fake, func(c *health.Config) {
		c.Control = members[1]
		c.Call = func(ctx context.Context, rank int) (net.Conn, error) {
			if rank == 3 && calls.Add(1) == 1 { // it is about to leave
				ours, theirs := net.Pipe()
				theirs.Close()
				return ours, nil
			}
			if rank != 0 {
				return nil, &rendezvous.CallError{Reason: "gone or not", Gone: rank == 3}
			}
			return call(ctx, rank)
		}
	})
	for _, tt := range []struct {
		path string
		want []health.Missing
	}{
		{"/v1/stop", []health.Missing{{GroupRank: 2, Why: "gone or not"}}},
		{"/v1/signal?signal=10", []health.Missing{{GroupRank: 2, Why: "gone or not"}, {GroupRank: 3, Why: "gone or not"}}},
	} {
		answer, err := http.Post("http://"+s.Addr().String()+tt.path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		var done health.Done
		err = json.NewDecoder(answer.Body).Decode(&done)
		answer.Body.Close()
		if diff := cmp.Diff(tt.want, done.Missing); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got:\n%s", tt.path, err, diff)
		}
	}
}

type stopped struct {
	*member
	done chan struct{}
}

func (s stopped) Stop(string, bool) func() { return func() { close(s.done) } }

// All hosts are asked to stop, also where whoever asked for it is gone meanwhile: no part of a job
// continues without the other.
func TestStopIsWhole(t *testing.T) {
	members, call := job(t, 4)
	slow := func(ctx context.Context, rank int) (net.Conn, error) {
		if rank == 3 {
			select {
			case <-ctx.Done():
			case <-time.After(300 * time.Millisecond): // the client has long gone
			}
		}
		return call(ctx, rank)
	}
	m := stopped{members[1], make(chan struct{})}
	s, _ := serve(t, m.fake, func(c *health.Config) { c.Control, c.Call = m, slow })
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
	conn.Close()
	<-m.done
	for _, rank := range []int{0, 3} {
		if diff := cmp.Diff([]string{`stop by "n1", whole job true`}, members[rank].done); diff != "" {
			t.Errorf("host %d, -want +got:\n%s", rank, diff)
		}
	}
}

// What other hosts say of themselves is cleaned before it is shown.
func TestStateOfOthersIsClean(t *testing.T) {
	members, _ := job(t, 2)
	evil := "a\x1b[2Jb\u009bc\u202ed"
	state := jobstate.State{
		Version: jobstate.Version, Host: jobstate.Host{Name: evil, GroupRank: 1, State: evil},
		Workers: []jobstate.Worker{{Rank: 2, State: evil, Stdout: evil, StdoutLines: []string{evil + "\n" + evil}, Exit: &jobstate.Exit{Cause: evil}}},
	}
	_, url := serve(t, members[0].fake, func(c *health.Config) {
		c.Call = answering(func(*http.Request) string {
			body, _ := json.Marshal(&state)
			return string(body)
		})
	})
	_, body := fetch(t, url+"/v1/state")
	if n := strings.Count(body, "abcd"); n != 8 || strings.ContainsAny(body, "\u009b\u202e") || strings.Contains(body, "u001b") || !strings.Contains(body, `"abcd abcd"`) {
		t.Errorf("%d clean texts in %q", n, body)
	}
}

// One agent shows a job of a thousand hosts, of which each tenth is frozen and one sends without
// end: each look asks a bounded number of them, and after a few looks all that answer are known.
func TestThousandHosts(t *testing.T) {
	const hosts, most = 1000, 128
	synctest.Test(t, func(t *testing.T) {
		f := running()
		f.state.Host, f.state.Workers = jobstate.Host{Name: "n0", GroupRank: 0, State: "HEALTHY"}, nil
		for i := range hosts {
			f.state.Hosts = append(f.state.Hosts, jobstate.Host{GroupRank: i})
		}
		f.state.Hosts[0] = f.state.Host
		var calls atomic.Int64
		call := func(_ context.Context, rank int) (net.Conn, error) {
			calls.Add(1)
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				request, err := http.ReadRequest(bufio.NewReader(theirs))
				switch {
				case err != nil:
				case rank%10 == 3:
					_, _ = io.Copy(io.Discard, theirs) // until the asker gives up
				case rank == 7:
					_, _ = io.WriteString(theirs, "HTTP/1.0 200 OK\r\n\r\n")
					for err == nil {
						_, err = theirs.Write(make([]byte, 64<<10))
					}
				case strings.HasPrefix(request.URL.Path, "/v1/signal"):
					_, _ = io.WriteString(theirs, "HTTP/1.0 200 OK\r\n\r\n{}")
				default:
					state := jobstate.State{Version: jobstate.Version, Time: time.Now(), Host: jobstate.Host{Name: fmt.Sprint("n", rank), GroupRank: rank, State: "HEALTHY"}}
					state.Job = f.state.Job
					body, _ := json.Marshal(&state)
					fmt.Fprintf(theirs, "HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				}
			}()
			return ours, nil
		}
		s := listen(t, f, func(c *health.Config) { c.Call, c.Control = call, &member{fake: f} })
		s.SetPatience(health.DefaultPatience)
		for look := range 12 {
			calls.Store(0)
			began := time.Now()
			w := get(s, "GET", "/v1/state")
			if took := time.Since(began); took > 3*time.Second || calls.Load() > 2*most {
				t.Fatalf("look %d took %v and %d calls: %d", look, took, calls.Load(), w.Code)
			}
			time.Sleep(3 * time.Second)
		}
		state, err := jobstate.Parse(get(s, "GET", "/v1/state").Body.Bytes())
		if err != nil || len(state.Hosts) != hosts {
			t.Fatal(err, len(state.Hosts))
		}
		for i, h := range state.Hosts {
			want := ""
			switch {
			case i%10 == 3:
				want = "no answer within 2s"
			case i == 7:
				want = "the answer has more than 4194304 bytes"
			}
			if (want == "") != (h.Problem == "") || !strings.Contains(h.Problem, want) || want == "" && h.Name != fmt.Sprint("n", i) {
				t.Errorf("host %d: %+v", i, h)
			}
		}
		// All are asked for their stacks at once: those who are frozen hold up nobody else.
		began, done := time.Now(), health.Done{}
		w := get(s, "POST", "/v1/autopsy?reason=why")
		if err := json.Unmarshal(w.Body.Bytes(), &done); err != nil || len(done.Hosts) != hosts-102 || len(done.Missing) != 101 {
			t.Errorf("%d hosts have answered, %d have not: %v", len(done.Hosts), len(done.Missing), err)
		}
		if took := time.Since(began); took > 9*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
