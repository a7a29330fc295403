package health_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/autopsy"
	"github.com/muster-run/muster/internal/test/chromium"
)

const token = "correct horse battery staple"

// tokenFile makes a file with the token.
func tokenFile(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// report is what an agent says of its one worker.
func report(t testing.TB, host string, rank int, function string) []byte {
	body, err := json.Marshal(&autopsy.Report{Host: host, Workers: []autopsy.Worker{{Rank: rank, PID: 1000 + rank, State: "sleeping", Python: autopsy.Python{
		Source: "py-spy", Threads: []autopsy.Thread{{Main: true, Frames: []autopsy.Frame{{Function: function, File: "/job/train.py", Line: 12}}}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// A looker is an agent whose Autopsy says what a test wants.
type looker struct {
	*member
	body []byte
}

func (l looker) Autopsy(context.Context, string, string) ([]byte, error) { return l.body, nil }

// stacksOf serves a job of three hosts, the last of which is torchrun's, with a token.
func stacksOf(t *testing.T) (s *health.Server, url string, looks *int) {
	f := busyJob(t, running().state.Time)
	f.state.Hosts = f.state.Hosts[:3]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, running(), func(c *health.Config) {
		c.Listener, c.Control = l, looker{&member{}, report(t, "gpu-a16", 0, "all_reduce")}
	})
	looks = new(int)
	s, url = serve(t, f, func(c *health.Config) {
		c.TokenFile = tokenFile(t)
		c.Look = func(_ context.Context, reason, number string) ([]byte, error) {
			*looks++
			if reason != "the status page of gpu-a17" || number != "" {
				t.Errorf("reason %q, number %q", reason, number)
			}
			return report(t, "gpu-a17", 4, "load_batch<script>"), nil
		}
		c.Call = func(ctx context.Context, rank int) (net.Conn, error) {
			if rank == 2 {
				return nil, errors.New("an agent of torchrun takes no calls")
			}
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		}
	})
	return s, url, looks
}

// TestStacks: with the token, and only with it in the header, one gets the stacks of all hosts.
func TestStacks(t *testing.T) {
	s, _, looks := stacksOf(t)
	post := func(method, target, host string, header ...string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest(method, target, nil), httptest.NewRecorder()
		r.Host = host
		for _, h := range header {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		s.Handler().ServeHTTP(w, r)
		return w
	}
	for _, tt := range []struct {
		name, method, target, host string
		header                     []string
		status                     int
	}{
		{"no token", "POST", "/v1/autopsy", "localhost", nil, 401},
		{"another", "POST", "/v1/autopsy", "localhost", []string{"Authorization: Bearer " + token + "r"}, 401},
		{"the beginning", "POST", "/v1/autopsy", "localhost", []string{"Authorization: Bearer " + token[:10]}, 401},
		{"an empty one", "POST", "/v1/autopsy", "localhost", []string{"Authorization: Bearer "}, 401},
		{"another scheme", "POST", "/v1/autopsy", "localhost", []string{"Authorization: Basic " + token}, 401},
		{"in the address", "POST", "/v1/autopsy?token=correct+horse+battery+staple", "localhost", nil, 401},
		{"as a cookie", "POST", "/v1/autopsy", "localhost", []string{"Cookie: token=" + token}, 401},
		{"of a name that leads here", "POST", "/v1/autopsy", "evil.example", []string{"Authorization: Bearer " + token}, 403},
		{"a browser that asks whether it may", "OPTIONS", "/v1/autopsy", "localhost", []string{"Origin: http://evil.example", "Access-Control-Request-Headers: authorization"}, 405},
		{"GET", "GET", "/v1/autopsy", "localhost", []string{"Authorization: Bearer " + token}, 404},
		{"stop", "POST", "/v1/stop", "localhost", []string{"Authorization: Bearer " + token}, 405},
		{"restart", "POST", "/v1/restart", "localhost", []string{"Authorization: Bearer " + token}, 405},
		{"signal", "POST", "/v1/signal?signal=9", "localhost", []string{"Authorization: Bearer " + token}, 405},
	} {
		w := post(tt.method, tt.target, tt.host, tt.header...)
		if w.Code != tt.status || *looks != 0 {
			t.Errorf("%s: status %d, want %d; %d looks at the workers", tt.name, w.Code, tt.status, *looks)
		}
		if strings.Contains(w.Body.String(), "staple") || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %v %s", tt.name, w.Header(), w.Body)
		}
	}
	w := post("POST", "/v1/autopsy", "localhost", "Authorization: bearer "+token)
	for _, want := range []string{"rank 4 in load_batch", "rank 0 in all_reduce", "load_batch<script> (train.py:12)", "group rank 2 (an agent of torchrun takes no calls)"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the answer lacks %q:\n%s", want, w.Body)
		}
	}
	if w.Code != 200 || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" || *looks != 1 {
		t.Errorf("status %d, %v, %d looks", w.Code, w.Header(), *looks)
	}
}

// TestStacksQuery: other hosts are asked for nothing but stacks, whatever the client asks for, and what
// they say is bounded.
func TestStacksQuery(t *testing.T) {
	f := running()
	f.state.Host.Name = "n0\x1b[2J"
	f.state.Hosts = []health.Host{{GroupRank: 0}, {GroupRank: 1}}
	var asked atomic.Value
	s := listen(t, f, func(c *health.Config) {
		c.TokenFile = tokenFile(t)
		c.Look = func(context.Context, string, string) ([]byte, error) { return report(t, "n0", 0, "load"), nil }
		c.Call = answering(func(r *http.Request) string {
			asked.Store(r.URL.String())
			return `{"workers":[{}` + strings.Repeat(",{}", 300_000) + `]}`
		})
	})
	r, w := httptest.NewRequest("POST", "http://localhost/v1/autopsy?number=5&reason=mine&signal=9&x=y", nil), httptest.NewRecorder()
	r.Header.Set("Authorization", "Bearer "+token)
	s.Handler().ServeHTTP(w, r)
	if got, want := asked.Load(), "/v1/autopsy?reason=the+status+page+of+n0&scope=host"; got != want {
		t.Errorf("the other host was asked for %q, want %q", got, want)
	}
	if w.Code != 200 || !strings.Contains(w.Body.String(), "group rank 1 (its evidence is too large") || !strings.Contains(w.Body.String(), "rank 0 in load") {
		t.Errorf("%d: %.500s", w.Code, w.Body)
	}
}

// TestNoToken: without a token nobody gets stacks, and the page has no button.
func TestNoToken(t *testing.T) {
	s := listen(t, running(), func(c *health.Config) {
		c.Look = func(context.Context, string, string) ([]byte, error) {
			return nil, errors.New("nobody may look")
		}
	})
	r, w := httptest.NewRequest("POST", "http://localhost/v1/autopsy", nil), httptest.NewRecorder()
	r.Header.Set("Authorization", "Bearer ")
	if s.Handler().ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	if page := get(s, "GET", "/").Body.String(); strings.Contains(page, "Stacks now") || !strings.Contains(page, "Search logs") {
		t.Errorf("the page has a button that cannot work, or no search:\n%s", page)
	}
}

// TestBadToken: a token that others can read or guess is refused.
func TestBadToken(t *testing.T) {
	open, short := tokenFile(t), write(t, "token", "short\n")
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{open: "other users can read or change", short: "can be guessed", write(t, "token", "\n"): "is empty", "/nowhere/token": "no such file",
		write(t, "token", token+"\n"+token+"\n"): "no HTTP header can carry", write(t, "token", token+"\x00"): "want one line of ASCII", write(t, "token", token+"é"): "openssl rand",
		write(t, "token", token+" \n"): "no blank at its ends", write(t, "token", "\t"+token): "health token file"} {
		if s, err := health.Listen(health.Config{Addr: "0", Source: running(), TokenFile: path}); err == nil {
			s.Close()
			t.Errorf("no error; want %q", want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want %q", err, want)
		}
	}
}

// TestOneLook: while somebody looks at the workers, others are told so.
func TestOneLook(t *testing.T) {
	looking, goOn := make(chan bool), make(chan bool)
	s := listen(t, running(), func(c *health.Config) {
		c.TokenFile = tokenFile(t)
		c.Look = func(context.Context, string, string) ([]byte, error) {
			looking <- true
			<-goOn
			return nil, errors.New("no evidence is taken here")
		}
	})
	ask := func() *httptest.ResponseRecorder {
		r, w := httptest.NewRequest("POST", "http://localhost/v1/autopsy", nil), httptest.NewRecorder()
		r.Header.Set("Authorization", "Bearer "+token)
		s.Handler().ServeHTTP(w, r)
		return w
	}
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- ask() }()
	<-looking
	if w := ask(); w.Code != 503 {
		t.Errorf("the second: status %d: %s", w.Code, w.Body)
	}
	close(goOn)
	if w := <-first; w.Code != 200 || !strings.Contains(w.Body.String(), "n0 (no evidence is taken here)") {
		t.Errorf("the first: status %d: %s", w.Code, w.Body)
	}
}

// TestAskInBrowser: a person searches in the logs and looks at the stacks. Both stay as the page
// updates itself, and are text whatever is in them.
func TestAskInBrowser(t *testing.T) {
	b := chromium.Start(t, "../internal/tools/chromium.sh")
	_, url, looks := stacksOf(t)
	for _, width := range []int{390, 1400} {
		p := b.Tab()
		p.Width(width, "light")
		p.Open(url)
		untilScripted(p)
		do := func(script, until string) {
			t.Helper()
			p.Eval(script, nil)
			p.Until(`document.getElementById("answer").textContent.includes("` + until + `")`)
		}
		do(`document.querySelector("#search input").value = "step 1840 "; document.querySelector("#search button").click()`, "[4]: step 1840 loss")
		do(`document.querySelector("#stacks input").value = "another token of length"; document.querySelector("#stacks button").click()`, "this needs the token")
		do(`document.querySelector("#stacks input").value = "`+token+`"; document.querySelector("#stacks button").click()`, "load_batch<script> (train.py:12)")
		p.Eval(`window.before = document.getElementById("main").dataset.time`, nil)
		p.Until(`document.getElementById("main").dataset.time !== window.before`)
		var left string
		p.Eval(`[document.getElementById("answer").textContent.includes("load_batch"), document.querySelector("#stacks input").value.length, location.href,
			document.cookie, localStorage.length + sessionStorage.length].join(" ")`, &left)
		if want := "true 28 " + url + "/  0"; left != want {
			t.Errorf("after an update the page has %q, want %q", left, want)
		}
		var wide bool
		if p.Eval(`document.documentElement.scrollWidth > innerWidth`, &wide); wide {
			t.Errorf("wider than %d pixels", width)
		}
		p.Close()
	}
	if *looks != 2 {
		t.Errorf("%d looks at the workers", *looks)
	}
	if wrong := b.Complaints(); len(wrong) > 0 {
		t.Logf("the console says %q", wrong)
	}
}
