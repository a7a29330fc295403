package health_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
)

// get asks a server's handler, without a network.
func get(s *health.Server, method, target string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	if r.Host == "example.com" { // httptest's default
		r.Host = "localhost"
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func TestAnswers(t *testing.T) {
	f := running()
	f.alive = time.Now().Add(time.Hour) // 0.0 s ago, however long the test takes
	s := listen(t, f, nil)
	named := running()
	named.state.Job.Entrypoint = "train.py --lr 1"
	if w := get(listen(t, named, nil), "GET", "/"); !strings.Contains(w.Body.String(), "<h1>train.py --lr 1</h1>") {
		t.Errorf("the page is not headed by what runs: %s", w.Body)
	}
	for _, tt := range []struct {
		method, target string
		status         int
		contentType    string
		says           string
	}{
		{"GET", "/healthz", 200, "text/plain; charset=utf-8", "alive: the agent's last progress was 0.0 s ago, the limit is 1 min 0 s; phase: running"},
		{"GET", "/readyz", 200, "text/plain; charset=utf-8", "ready: 2 workers run, round 2, 1 restart used"},
		{"GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8", "muster_restarts 1\n"},
		{"GET", "/v1/state", 200, "application/json", `"run_id":"job7"`},
		{"GET", "/", 200, "text/html; charset=utf-8", "<h1>job7</h1>"},
		{"GET", "/?utm=1", 200, "text/html; charset=utf-8", "<h1>job7</h1>"},
		{"GET", "/v1/state?scope=universe", 400, "text/plain; charset=utf-8", `scope="universe" is neither host nor job`},
		{"GET", "/v1/logs?follow=x", 400, "text/plain; charset=utf-8", `follow="x" is neither 0 nor 1`},
		{"GET", "/v1/logs?rank=0&rank=1", 400, "text/plain; charset=utf-8", `"rank" is given 2 times; give it once`},
		{"GET", "/status.js", 200, "text/javascript; charset=utf-8", "morph"},
		{"GET", "/status.css", 200, "text/css; charset=utf-8", ".pill"},
		{"HEAD", "/", 200, "text/html; charset=utf-8", ""},
		{"POST", "/v1/state", 405, "text/plain; charset=utf-8", "POST is not allowed"},
		{"DELETE", "/", 405, "text/plain; charset=utf-8", "DELETE is not allowed"},
		{"OPTIONS", "/healthz", 405, "text/plain; charset=utf-8", "OPTIONS is not allowed"},
		{"TRACE", "/healthz", 405, "text/plain; charset=utf-8", "TRACE is not allowed"},
		{"GET", "/healthz/", 404, "text/plain; charset=utf-8", "there are /, /healthz"},
		{"GET", "/../etc/passwd", 404, "text/plain; charset=utf-8", "there is no"},
		{"GET", "//", 404, "text/plain; charset=utf-8", "there is no"},
		{"GET", "/%3Cscript%3E", 404, "text/plain; charset=utf-8", "there is no"},
		{"GET", "/debug/pprof/", 404, "text/plain; charset=utf-8", "there is no"},
	} {
		t.Run(tt.method+tt.target, func(t *testing.T) {
			w := get(s, tt.method, tt.target)
			h := w.Header()
			if w.Code != tt.status || h.Get("Content-Type") != tt.contentType || !strings.Contains(w.Body.String(), tt.says) {
				t.Errorf("got %d %q %q, want %d %q %q", w.Code, h.Get("Content-Type"), w.Body, tt.status, tt.contentType, tt.says)
			}
			if h.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self';") {
				t.Errorf("headers %v", h)
			}
			if want := ""; tt.status == 405 {
				if want = "GET, HEAD"; h.Get("Allow") != want {
					t.Errorf("Allow: got %q, want %q", h.Get("Allow"), want)
				}
			}
		})
	}
}

func TestHostHeader(t *testing.T) {
	s := listen(t, running(), nil)
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:9000": 200, "127.0.0.1:1": 200, "127.9.8.7": 200, "[::1]:80": 200, "[::1]": 200, "": 200, "[::ffff:127.0.0.1]:80": 200,
		"evil.example": 403, "evil.example:9000": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "10.0.0.1": 403, "[::2]:80": 403, "localhost:80:80": 403,
	} {
		r := httptest.NewRequest("GET", "/v1/state", nil)
		r.Host = host
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("Host %q: got %d, want %d", host, w.Code, want)
		}
		if w.Code == 403 && strings.Contains(w.Body.String(), "job7") {
			t.Errorf("Host %q: the answer tells of the job", host)
		}
	}
	// Beyond the loopback interface, names of others are refused just so: their DNS
	// may lead here.
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	everywhere := listen(t, running(), func(c *health.Config) { c.Addr, c.Names = "0.0.0.0:0", []string{"status.example"} })
	for host, want := range map[string]int{
		"localhost": 200, "10.0.0.1:9000": 200, "[2001:db8::1]:9000": 200, "": 200, name: 200, strings.ToUpper(name) + ":9000": 200,
		"status.example": 200, "Status.Example.:443": 200, "evil.example:9000": 403, name + ".evil.example": 403, ".": 403, ":9000": 403,
	} {
		r := httptest.NewRequest("GET", "/v1/state", nil)
		r.Host = host
		w := httptest.NewRecorder()
		everywhere.Handler().ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("for all hosts, Host %q: got %d %s, want %d", host, w.Code, w.Body, want)
		}
	}
}

func TestHealthz(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ago    time.Duration // of the last progress; -1: none
		limit  time.Duration
		phase  jobstate.Phase
		status int
		says   string
	}{
		{"just now", 0, 0, "running", 200, "alive: the agent's last progress was 0.0 s ago, the limit is 1 min 0 s; phase: running"},
		{"in rendezvous", 59 * time.Second, 0, "rendezvous", 200, "alive: the agent's last progress was 59 s ago, the limit is 1 min 0 s; phase: rendezvous"},
		{"at the limit", time.Minute, 0, "exit barrier", 200, "phase: exit barrier"},
		{"over the limit", time.Minute + 1, 0, "restarting", 503, "dead: the agent's last progress was 1 min 0 s ago, the limit is 1 min 0 s; phase: restarting"},
		{"own limit", 1600 * time.Millisecond, 1500 * time.Millisecond, "running", 503, "dead: the agent's last progress was 1.6 s ago, the limit is 1.5 s"},
		{"in the future", -time.Hour, 0, "running", 200, "was 0.0 s ago"},
		{"never", -1, 0, "rendezvous", 503, "dead: the agent has made no progress yet; phase: rendezvous"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := running()
				if f.alive = time.Now().Add(-tt.ago); tt.ago == -1 {
					f.alive = time.Time{}
				}
				f.state.Job.Phase = tt.phase
				s := listen(t, f, func(c *health.Config) { c.Timeout = tt.limit })
				w := get(s, "GET", "/healthz")
				if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
					t.Errorf("got %d %q, want %d %q", w.Code, w.Body, tt.status, tt.says)
				}
			})
		})
	}
}

func TestReadyz(t *testing.T) {
	for _, tt := range []struct {
		phase  jobstate.Phase
		state  string
		status int
		says   string
	}{
		{"running", "HEALTHY", 200, "ready: 2 workers run"},
		{"running", "UNHEALTHY", 503, "not ready: phase: running, state: UNHEALTHY"},
		{"rendezvous", "INIT", 503, "not ready: phase: rendezvous, state: INIT"},
		{"assigning", "INIT", 503, "phase: assigning"},
		{"restarting", "STOPPED", 503, "phase: restarting"},
		{"exit barrier", "SUCCEEDED", 503, "phase: exit barrier"},
		{"ended", "FAILED", 503, "phase: ended, state: FAILED"},
	} {
		f := running()
		f.state.Job.Phase, f.state.Job.State = tt.phase, tt.state
		w := get(listen(t, f, nil), "GET", "/readyz")
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%s, %s: got %d %q, want %d %q", tt.phase, tt.state, w.Code, w.Body, tt.status, tt.says)
		}
	}
}

// TestSourceHangs: an agent that does not answer keeps nobody waiting.
func TestSourceHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := running()
		s := listen(t, f, nil)
		s.SetPatience(health.DefaultPatience)
		hang := func(ctx context.Context) { <-ctx.Done() }

		f.set(func(f *fake) { f.hold = hang })
		for target, want := range map[string]string{
			"/healthz":  "200 alive: the agent's last progress was 0.0 s ago, the limit is 1 min 0 s; phase: not known\n",
			"/readyz":   "503 not ready: the state of the job is not known yet; try again in a second\n",
			"/v1/state": "503 the state of the job is not known yet; try again in a second\n",
			"/":         "503 the state of the job is not known yet; try again in a second\n",
		} {
			began := time.Now()
			w := get(s, "GET", target)
			if got := fmt.Sprint(w.Code, " ", w.Body); !strings.HasPrefix(got, want[:30]) {
				t.Errorf("%s: got %q, want %q", target, got, want)
			}
			if took := time.Since(began); took > 300*time.Millisecond {
				t.Errorf("%s: it took %v", target, took)
			}
			if w.Code == 503 && w.Header().Get("Retry-After") != "1" {
				t.Errorf("%s: no Retry-After", target)
			}
		}
		if n, _ := f.asked(); n != 1 {
			t.Errorf("the source was asked %d times while it did not answer", n)
		}
	})
}

// TestSourceHangsLater: what was known before is shown, but not as ready for ever.
func TestSourceHangsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := running()
		s := listen(t, f, nil)
		s.SetPatience(health.DefaultPatience)
		if w := get(s, "GET", "/readyz"); w.Code != 200 {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
		f.set(func(f *fake) { f.hold = func(ctx context.Context) { <-ctx.Done() } })
		time.Sleep(3 * time.Second) // of the bubble
		for _, target := range []string{"/readyz", "/", "/v1/state", "/healthz"} {
			if w := get(s, "GET", target); w.Code != 200 {
				t.Errorf("%s after 3 s: got %d %s", target, w.Code, w.Body)
			}
		}
		time.Sleep(3 * time.Second)
		if w := get(s, "GET", "/readyz"); w.Code != 503 || !strings.Contains(w.Body.String(), "has not reported the job's state for 7") {
			t.Errorf("/readyz after 7 s: got %d %s", w.Code, w.Body)
		}
		if w := get(s, "GET", "/v1/state"); w.Code != 200 {
			t.Errorf("/v1/state after 7 s: got %d %s", w.Code, w.Body)
		}
	})
}

// TestSourceMisbehaves: a defect in what makes the state ends no job.
func TestSourceMisbehaves(t *testing.T) {
	var log bytes.Buffer
	f := running()
	s := listen(t, f, func(c *health.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	f.set(func(f *fake) {
		f.hold = func(context.Context) { panic("a defect") }
		f.err = errors.New("no metrics today")
	})
	for target, want := range map[string]int{"/": 503, "/v1/state": 503, "/readyz": 503, "/healthz": 200, "/metrics": 503} {
		if w := get(s, "GET", target); w.Code != want {
			t.Errorf("%s: got %d %s, want %d", target, w.Code, w.Body, want)
		}
	}
	f.set(func(f *fake) { f.hold, f.err, f.metrics = nil, nil, strings.Repeat("x", 17<<20) })
	eventually(t, func() bool { return get(s, "GET", "/v1/state").Code == 200 })
	if w := get(s, "GET", "/metrics"); w.Code != 503 {
		t.Errorf("/metrics of 17 MiB: got %d", w.Code)
	}
	s.Close()
	if n := strings.Count(log.String(), "a defect"); n != 1 {
		t.Errorf("the log says %d times what is wrong, want once", n)
	}
	for _, want := range []string{"a defect", "no metrics today"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, &log)
		}
	}
}

// eventually waits until a condition holds that only the passing of time brings.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("it does not come about")
		}
	}
}

// TestFlood: however many requests there are, the source is asked once in Refresh,
// and 250 are answered in a second.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := running()
		s := listen(t, f, nil)
		const clients, each = 200, 15
		var wg sync.WaitGroup
		var mu sync.Mutex
		codes := make(map[int]int)
		began := time.Now()
		for c := range clients {
			wg.Go(func() {
				for i := range each {
					target := []string{"/", "/v1/state", "/metrics"}[(c+i)%3]
					code := get(s, "GET", target).Code
					mu.Lock()
					codes[code]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		if diff := cmp.Diff(map[int]int{200: clients * each}, codes); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		if took < 11*time.Second || took > 13*time.Second {
			t.Errorf("%d requests took %v, want 12 s", clients*each, took)
		}
		states, scrapes := f.asked()
		if most := int(took/(100*time.Millisecond)) + 2; states > most || scrapes > most || states < 50 {
			t.Errorf("the source was asked %d and %d times in %v, want at most %d times", states, scrapes, took, most)
		}

		// A probe does not wait behind them.
		for range 5000 {
			wg.Go(func() { get(s, "GET", "/") })
		}
		began = time.Now()
		if w := get(s, "GET", "/healthz"); w.Code != 200 || time.Since(began) > 300*time.Millisecond {
			t.Errorf("the probe: %d after %v", w.Code, time.Since(began))
		}
		wg.Wait()
	})
}

// TestTooMany: nobody waits for more than two seconds.
func TestTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := listen(t, running(), nil)
		var wg sync.WaitGroup
		var mu sync.Mutex
		codes := make(map[int]int)
		for range 3000 {
			wg.Go(func() {
				began := time.Now()
				w := get(s, "GET", "/v1/state")
				mu.Lock()
				defer mu.Unlock()
				codes[w.Code]++
				if took := time.Since(began); took > 2300*time.Millisecond {
					t.Errorf("a request took %v", took)
				}
				if w.Code == 503 && w.Header().Get("Retry-After") == "" {
					t.Error("503 without Retry-After")
				}
			})
		}
		wg.Wait()
		if codes[200] != 600 || codes[503] != 2400 {
			t.Errorf("got %v, want 600 answers and 2400 refusals", codes)
		}
	})
}

func TestStateJSON(t *testing.T) {
	f := busyJob(t, time.Date(2026, 4, 12, 16, 20, 30, 0, time.UTC))
	w := get(listen(t, f, nil), "GET", "/v1/state")
	var got jobstate.State
	decoder := json.NewDecoder(w.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := f.state
	want.Version = jobstate.Version
	for i := range got.Workers {
		want.Workers[i].Host, want.Workers[i].GroupRank = want.Host.Name, want.Host.GroupRank
		if n := len(got.Workers[i].StdoutLines); n != 8 {
			t.Errorf("worker %d has %d lines, want 8", i, n)
		}
		got.Workers[i].StdoutLines, got.Workers[i].StderrLines = nil, nil
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(failure.ProcessFailure{})); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}

// TestStateIsBounded: nothing that a job can bring about makes an answer that is
// too long or has no JSON form.
func TestStateIsBounded(t *testing.T) {
	now := time.Now()
	f := running()
	f.state.Workers[0].Usage.CPUPercent, f.state.Workers[1].Usage.CPUSeconds = math.NaN(), math.Inf(1)
	f.state.Time = now
	for range 20_000 {
		f.state.Hosts = append(f.state.Hosts, jobstate.Host{Name: "n"})
		f.state.Timeline = append(f.state.Timeline, jobstate.Moment{Time: now, Kind: "hosts", What: "more"},
			jobstate.Moment{Time: time.Date(292_277_026, 1, 1, 0, 0, 0, 0, time.UTC)},
			jobstate.Moment{Time: time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC)})
		f.state.Failures = append(f.state.Failures, jobstate.Failure{})
	}
	before := f.state.Timeline[59_999]
	s := listen(t, f, nil)
	var got jobstate.State
	if err := json.Unmarshal(get(s, "GET", "/v1/state").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	counts := []int{len(got.Timeline), len(got.Hosts), len(got.Failures)}
	want := []int{200, 10_000, 100}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("lengths (-want +got):\n%s", diff)
	}
	if at := got.Timeline[198].Time; at.Year() != 9999 || !got.Timeline[199].Time.IsZero() {
		t.Errorf("last moments: %+v", got.Timeline[198:])
	}
	if f.state.Timeline[59_999] != before {
		t.Error("the source's own list was changed")
	}
	if page := get(s, "GET", "/").Body; page.Len() > 256<<10 {
		t.Errorf("the page has %d bytes", page.Len())
	}
}

func TestLogs(t *testing.T) {
	f := running()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	link, fifo, gone := filepath.Join(dir, "link"), filepath.Join(dir, "fifo"), filepath.Join(dir, "gone")
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.Symlink(secret, link), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	var long strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&long, "line %d\n", i)
	}
	f.state.Workers = []jobstate.Worker{
		{Rank: 10, Stdout: write(t, "out", long.String()), Stderr: write(t, "err", "a\nb <b>\nunfinished")},
		{Rank: 11, LocalRank: 1, Stdout: link, Stderr: fifo},
		{Rank: 12, LocalRank: 2, Stdout: gone},
		{Rank: 13, LocalRank: 3, Stdout: write(t, "one", strings.Repeat("x", 1<<20)), Stderr: write(t, "none", "")},
	}
	s := listen(t, f, nil)
	for _, tt := range []struct {
		query  string
		status int
		says   string
	}{
		{"rank=10&lines=2", 200, "line 99998\nline 99999\n"},
		{"rank=10&stream=stdout&lines=1", 200, "line 99999\n"},
		{"rank=10&stream=stderr", 200, "a\nb <b>\nunfinished"},
		{"rank=10&stream=stderr&lines=1", 200, "unfinished"},
		{"rank=13&stream=stderr", 200, ""},
		{"rank=13", 200, strings.Repeat("x", 256<<10)},
		{"rank=12", 404, "the log of rank 12 is gone, or not there yet\n"},
		{"rank=12&stream=stderr", 404, "this stream of rank 12 is not kept in a file; start the job with --redirects or --tee to keep it\n"},
		{"rank=11", 500, "the log of rank 11 cannot be read\n"},
		{"rank=11&stream=stderr", 500, "the log of rank 11 cannot be read\n"},
		{"rank=0", 404, "rank 0 does not run on this host\n"},
		{"", 400, "rank \"\" is not a number; ask for /v1/logs?rank=0&stream=stdout\n"},
		{"rank=../../etc/passwd", 400, "rank \"../../etc/passwd\" is not a number; ask for /v1/logs?rank=0&stream=stdout\n"},
		{"rank=10&stream=/etc/passwd", 400, "stream \"/etc/passwd\" is neither stdout nor stderr\n"},
		{"rank=10&lines=0", 400, "lines=\"0\" is not a number from 1 to 1000\n"},
		{"rank=10&lines=1000000000", 400, "lines=\"1000000000\" is not a number from 1 to 1000\n"},
	} {
		t.Run(tt.query, func(t *testing.T) {
			w := get(s, "GET", "/v1/logs?"+tt.query)
			if diff := cmp.Diff(tt.says, w.Body.String()); w.Code != tt.status || diff != "" {
				t.Errorf("got %d, want %d; text (-want +got):\n%s", w.Code, tt.status, diff)
			}
			if got := w.Header().Get("Content-Type"); got != "text/plain; charset=utf-8" {
				t.Errorf("content type %q", got)
			}
		})
	}
	if w := get(s, "GET", "/v1/logs?rank=10&lines=1000"); strings.Count(w.Body.String(), "\n") != 1000 {
		t.Errorf("1000 lines: %d", strings.Count(w.Body.String(), "\n"))
	}
	if page := get(s, "GET", "/").Body.String(); strings.Contains(page, "secret") && strings.Contains(page, ">secret<") {
		t.Error("the page follows a symbolic link")
	}
}

func TestClosedServer(t *testing.T) {
	s := listen(t, running(), nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if w := get(s, "GET", "/healthz"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}
