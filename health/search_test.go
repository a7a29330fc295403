package health_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/test/testproc"
)

func TestSearch(t *testing.T) {
	f := running()
	dir := t.TempDir()
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := os.Symlink(write(t, "secret", "secret loss"), link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	var steps strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&steps, "step %d loss %d\n", i, 1000-i)
	}
	both := write(t, "both", "loss of both\n")
	long := strings.Repeat("x", 300) + "loss" + strings.Repeat("y", 1000)
	f.state.Workers = []health.Worker{
		{Rank: 0, Stdout: write(t, "out", steps.String()), Stderr: write(t, "err", "\x1b[31mloss is <NaN>\x1b[0m\r\nunfinished loss")},
		{Rank: 1, LocalRank: 1, Stdout: both, Stderr: both},
		{Rank: 2, LocalRank: 2, Stdout: link, Stderr: fifo},
		{Rank: 3, LocalRank: 3, Stdout: write(t, "long", long)},
		{Rank: 4, LocalRank: 4, Stdout: filepath.Join(dir, "gone")},
		{Rank: 5, LocalRank: 5},
	}
	for _, tt := range []struct {
		query  string
		status int
		says   string
	}{
		{"contains=loss&lines=2&rank=0,1,7", 200, "[0]: step 998 loss 2\n[0]: step 999 loss 1\n[0 err]: loss is <NaN>\n[0 err]: unfinished loss\n[1]: loss of both\n"},
		{"contains=step+500+&rank=0&stream=stdout", 200, "[0]: step 500 loss 500\n"},
		{"contains=both&stream=stderr&rank=0-3", 200, "[1 err]: loss of both\n# [2 err]: not searched: "},
		{"contains=secret&rank=2&stream=stdout", 200, "# [2]: not searched: "},
		{"contains=loss&rank=3", 200, "[3]: …" + strings.Repeat("x", 200) + "loss" + strings.Repeat("y", 195) + "...\n"},
		{"contains=loss&rank=4", 200, "# [4]: not searched: "},
		{"contains=loss&rank=5", 200, "# no logs are kept in files; start the job with --redirects or --tee\n"},
		{"contains=LOSS&rank=0", 200, ""},
		{"contains=.*&rank=0", 200, ""},
		{"contains=", 400, "contains=\"\"… has 0 bytes; want a text of 1 to 200\n"},
		{"contains=" + strings.Repeat("y", 201), 400, "contains=\"" + strings.Repeat("y", 20) + "\"… has 201 bytes; want a text of 1 to 200\n"},
		{"contains=x&rank=../etc", 400, ""},
		{"contains=x&stream=/etc/passwd", 400, "stream \"/etc/passwd\" is neither stdout nor stderr\n"},
		{"contains=x&lines=0", 400, "lines=\"0\" is not a number from 1 to 1000\n"},
		{"contains=x&lines=1001", 400, "lines=\"1001\" is not a number from 1 to 1000\n"},
	} {
		t.Run(tt.query[:min(len(tt.query), 60)], func(t *testing.T) {
			w := get(listen(t, f, nil), "GET", "/v1/logs?"+tt.query)
			got := w.Body.String()
			if strings.HasSuffix(tt.says, "not searched: ") || w.Code == 400 && tt.says == "" { // the system says why
				got = got[:min(len(got), len(tt.says))]
			}
			if diff := cmp.Diff(tt.says, got); w.Code != tt.status || diff != "" {
				t.Errorf("got %d, want %d; text (-want +got):\n%s", w.Code, tt.status, diff)
			}
			if strings.Contains(w.Body.String(), "secret loss") {
				t.Error("the search follows a symbolic link")
			}
		})
	}
}

// TestSearchIsBounded: neither huge files nor many matches make a search long.
func TestSearchIsBounded(t *testing.T) {
	f := running()
	f.state.Workers = nil
	huge := write(t, "huge", "the beginning\n")
	if err := os.Truncate(huge, 1<<40); err != nil { // a hole, as rotation leaves it
		t.Fatal(err)
	}
	say(t, huge, "the end")
	f.state.Workers = append(f.state.Workers, health.Worker{Rank: 0, Stdout: huge})
	for i := 1; i < 8; i++ {
		f.state.Workers = append(f.state.Workers, health.Worker{Rank: i, LocalRank: i, Stdout: write(t, "many", strings.Repeat(strings.Repeat("e", 390)+"\n", 1000))})
	}
	got := get(listen(t, f, nil), "GET", "/v1/logs?lines=1000&contains=e").Body.String()
	said := strings.Contains(got, "# [7]: there is more\n") || strings.Contains(got, "# [7]: searched ") // the second on a busy machine
	if len(got) > 300<<10 || !said || !strings.Contains(got, "# [0]: searched ") || !strings.Contains(got, " of 1.0 TiB\n") {
		t.Errorf("%d bytes, the last of them:\n%s", len(got), got[max(0, len(got)-2000):])
	}
	if got = get(listen(t, f, nil), "GET", "/v1/logs?rank=0&contains=the").Body.String(); strings.Contains(got, "beginning") {
		t.Errorf("a search in 1 TiB found\n%s", got)
	}
}

// TestSearchAfterHole: the hole that rotation leaves is not searched, and the answer says so.
func TestSearchAfterHole(t *testing.T) {
	f := running()
	hole := func(size int64, end string) string {
		path := write(t, "hole", "")
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if end != "" {
			say(t, path, end)
		}
		return path
	}
	f.state.Workers = []health.Worker{
		{Rank: 0, Stdout: hole(1<<40+1000, "the end")}, // in the middle of a block
		{Rank: 1, LocalRank: 1, Stdout: hole(1<<20, "")},
		{Rank: 2, LocalRank: 2, Stdout: write(t, "zeros", strings.Repeat("\x00", 200_000)+"the zeros' end\n")}, // of a file system without holes
		{Rank: 3, LocalRank: 3, Stdout: write(t, "binary", "a\x00b\n")},
	}
	const (
		end     = "[0]: the end\n"
		notes   = "# [0]: searched 8 B of 1.0 TiB; muster logs also shows what --log-max-size has cut off\n# [1]: searched 0 B of 1.0 MiB; muster logs also shows what --log-max-size has cut off\n"
		noteTwo = "# [2]: searched 15 B of 195 KiB; muster logs also shows what --log-max-size has cut off\n"
	)
	for query, want := range map[string]string{
		"contains=end":          end + "[2]: the zeros' end\n" + notes + noteTwo,
		"contains=%00":          "[3]: ab\n" + notes + noteTwo,
		"contains=e+end&rank=0": end + notes[:strings.Index(notes, "# [1]")],
	} {
		got := get(listen(t, f, nil), "GET", "/v1/logs?"+query).Body.String()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, -want +got:\n%s", query, diff)
		}
	}
}

// TestSearchDistrustsOthers: what another host has found is cleaned, and lines of ranks that it
// does not have are left out.
func TestSearchDistrustsOthers(t *testing.T) {
	state := health.State{Version: health.StateVersion, Host: health.Host{Name: "n1", GroupRank: 1}, Workers: []health.Worker{{Rank: 2}, {Rank: 3}}}
	const left = "[0]: line of rank 0\n"
	for name, tt := range map[string]struct{ says, want string }{
		"controls":   {"[3]: \x1b[31mline\x1b]0;title\a of\u009b2J \u202erank 3\u2028\x00\n", "[3]: line of2J rank 3\n"},
		"a long one": {"[3 err]: " + strings.Repeat("x", 1000) + "\n", "[3 err]: " + strings.Repeat("x", 441) + "...\n"},
		"forged": {"[0]: line of rank 0 too\n[3]: hidden\r[0]: line\n# [1]: searched nothing\nline\n[9]: line\n[3]: line\n# [3]: searched 1 B of 2 B\n",
			"[3]: line\n# [3]: searched 1 B of 2 B\n# the host with group rank 1 sent 5 lines that no rank of it has written; left out\n"},
		"too many": {strings.Repeat("[3]: line\n", 60_000), "# the host with group rank 1 was not searched: its answer is too large: it has 586 KiB\n"},
	} {
		members, _ := job(t, 2) // others each time: after a search that took long, they would rest
		_, base := serve(t, members[0].fake, func(c *health.Config) {
			c.Call = answering(func(r *http.Request) string {
				if r.URL.Path == "/v1/logs" {
					return tt.says
				}
				body, _ := json.Marshal(&state)
				return string(body)
			})
		})
		if code, got := fetch(t, base+"/v1/logs?contains=line+of+rank+0&n="+url.QueryEscape(name)); code != 200 || got != left+tt.want {
			t.Errorf("%s: %d, -want +got\n%s", name, code, cmp.Diff(left+tt.want, got))
		}
	}
}

// TestSearches: searches come one at a time, and leave the machine to the job between them.
func TestSearches(t *testing.T) {
	f := running()
	f.state.Workers = []health.Worker{{Rank: 0, Stdout: write(t, "log", strings.Repeat("loss\n", 1<<20))}}
	_, url := serve(t, f, nil)
	began := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	answers := map[int]int{}
	for range 50 {
		all.Go(func() {
			code, _ := fetch(t, url+"/v1/logs?contains=nothing")
			mu.Lock()
			defer mu.Unlock()
			answers[code]++
		})
	}
	all.Wait()
	if answers[200] < 1 || answers[200]+answers[503] != 50 {
		t.Errorf("answers by status: %v", answers)
	}
	if took := time.Since(began); took > testproc.Patience {
		t.Errorf("took %v", took)
	}
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

// A searcher that has worked rests for four times as long.
func TestSearchRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := health.NewSearcher()
		search := func(takes time.Duration) (ok bool, waited time.Duration) {
			began := time.Now()
			end := s.Begin(t.Context())
			waited = time.Since(began)
			if end != nil {
				time.Sleep(takes)
				end()
			}
			return end != nil, waited
		}
		check := func(takes time.Duration, wantOK bool, want time.Duration) {
			t.Helper()
			if ok, waited := search(takes); ok != wantOK || waited != want {
				t.Errorf("got %v after %v, want %v after %v", ok, waited, wantOK, want)
			}
		}
		check(100*time.Millisecond, true, 0)
		check(time.Second, true, 400*time.Millisecond)
		check(0, false, 0)
		time.Sleep(3900 * time.Millisecond)
		check(0, true, 100*time.Millisecond)
		end := s.Begin(t.Context()) // somebody searches for long
		check(0, false, 500*time.Millisecond)
		end()
	})
}

// TestSearchAllHosts: a search is one of all hosts, and says which were not searched.
func TestSearchAllHosts(t *testing.T) {
	for _, tt := range []struct{ query, want string }{
		{"contains=line+of", "[0]: line of rank 0\n[1]: line of rank 1\n[2]: line of rank 2\n[3]: line of rank 3\n" +
			"# the host with group rank 2 was not searched: group rank 2 is an agent of torchrun, which takes no calls\n[6]: line of rank 6\n[7]: line of rank 7\n"},
		{"contains=line+of&rank=1,6", "[1]: line of rank 1\n# the host with group rank 2 was not searched: group rank 2 is an agent of torchrun, which takes no calls\n[6]: line of rank 6\n"},
		{"contains=line+of&scope=host", "[2]: line of rank 2\n[3]: line of rank 3\n"},
		{"contains=" + url.QueryEscape("rank 7"), "# the host with group rank 2 was not searched: group rank 2 is an agent of torchrun, which takes no calls\n[7]: line of rank 7\n"},
	} {
		// Other ones each time: after a search that took long, they would rest.
		members, call := job(t, 4)
		_, base := serve(t, members[1].fake, func(c *health.Config) { c.Call = call })
		if code, got := fetch(t, base+"/v1/logs?"+tt.query); code != 200 || got != tt.want {
			t.Errorf("%s: %d\n%s", tt.query, code, cmp.Diff(tt.want, got))
		}
	}
}
