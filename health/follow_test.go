package health_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/rendezvous"
)

// FollowLogs emits two lines of the member's first rank, the second one when it may continue.
func (m *member) FollowLogs(ctx context.Context, cfg logs.FollowConfig, round int, begin func(int, int, string) error, emit func(*logs.Chunk) error) error {
	w := logs.Worker{Rank: 2 * m.rank}
	if !cfg.Want(w) {
		return nil
	}
	if err := begin(max(round, 0), m.rank, "attempt_0"); err != nil {
		return err
	}
	text := []byte(fmt.Sprintf("first of %d\nsecond of %d\n", w.Rank, w.Rank))
	at, _ := cfg.From(w, false)
	if half := int64(bytes.IndexByte(text, '\n') + 1); at == 0 {
		if err := emit(&logs.Chunk{Worker: w, Size: int64(len(text)), Data: text[:half]}); err != nil || cfg.Once {
			return err
		}
		at = half
	}
	select {
	case <-m.proceed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return emit(&logs.Chunk{Worker: w, Offset: at, Data: text[at:]})
}

// frames reads a stream until its end or, if n is not 0, that many frames.
func frames(t *testing.T, r *bufio.Reader, n int) (list []string) {
	t.Helper()
	var f health.LogFrame
	for n == 0 || len(list) < n {
		err := health.ReadLogFrame(r, &f)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err, list)
		}
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s %d %d %s%s%s %d %s", f.Kind, f.Round, f.Rank, f.Host, f.Attempt, f.Why, f.Offset, f.Data)))
	}
	slices.Sort(list)
	return list
}

// One agent streams what the workers of all hosts write. A connection that breaks continues where
// it broke off.
func TestFollowLogs(t *testing.T) {
	members, call := job(t, 4)
	var mu sync.Mutex
	var open []net.Conn // to host 3
	cut := func(ctx context.Context, rank int) (net.Conn, error) {
		conn, err := call(ctx, rank)
		if err == nil && rank == 3 {
			mu.Lock()
			defer mu.Unlock()
			open = append(open, conn)
		}
		return conn, err
	}
	_, url := serve(t, members[1].fake, func(c *health.Config) { c.Call, c.Logs = cut, members[1] })
	get := func(path string) *bufio.Reader {
		answer, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { answer.Body.Close() })
		return bufio.NewReader(answer.Body)
	}
	const torchrun = "gone 0 2 group rank 2 is an agent of torchrun, which takes no calls 0"
	once := health.LogQuery{Stdout: true, Stderr: true, Lines: -1, Round: -1, Once: true}
	want := []string{
		"attempt 0 0 n0attempt_0 0", "attempt 0 1 n1attempt_0 0", "attempt 0 3 n3attempt_0 0", "end 0 0  0", torchrun,
		"out 0 0  0 first of 0", "out 0 2  0 first of 2", "out 0 6  0 first of 6",
	}
	if diff := cmp.Diff(want, frames(t, get(once.Path()), 0)); diff != "" {
		t.Errorf("once, -want +got:\n%s", diff)
	}
	together := once
	together.Together = true
	if diff := cmp.Diff(want, frames(t, get(together.Path()), 0)); diff != "" {
		t.Errorf("together, -want +got:\n%s", diff)
	}
	one := once
	one.Ranks, one.HostOnly = "1-2", true
	if diff := cmp.Diff([]string{"attempt 0 1 n1attempt_0 0", "end 0 0  0", "out 0 2  0 first of 2"}, frames(t, get(one.Path()), 0)); diff != "" {
		t.Errorf("one host, -want +got:\n%s", diff)
	}
	on := once
	on.Once = false
	want = slices.DeleteFunc(want, func(f string) bool { return f == "end 0 0  0" })
	live := get(on.Path())
	if diff := cmp.Diff(want, frames(t, live, len(want))); diff != "" {
		t.Errorf("at first, -want +got:\n%s", diff)
	}
	mu.Lock()
	for _, conn := range open {
		conn.Close()
	}
	mu.Unlock()
	if got := frames(t, live, 1); got[0] != "attempt 0 3 n3attempt_0 0" {
		t.Errorf("cut off: %q", got)
	}
	for _, rank := range []int{0, 3, 1} {
		members[rank].proceed <- true
	}
	want = []string{"end 0 0  0", "out 0 0  11 second of 0", "out 0 2  11 second of 2", "out 0 6  11 second of 6"}
	if diff := cmp.Diff(want, frames(t, live, 0)); diff != "" {
		t.Errorf("then, -want +got:\n%s", diff)
	}
	for _, path := range []string{
		"/v1/logs?follow=1&rank=1", "/v1/logs?follow=2", `/v1/logs?follow=1&query={"ranks":"x"}`, `/v1/logs?follow=1&query={"lines":"x"}`,
		`/v1/logs?follow=1&query={"line":1}`, `/v1/logs?follow=1&query={"from":{"out:3":-1}}`, "/v1/logs?follow=1&query=1",
	} {
		answer, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: status %d", path, answer.StatusCode)
		}
	}
}

// Bytes that are no stream are an error, and take no memory.
func FuzzReadLogFrame(f *testing.F) {
	for _, s := range []string{
		`{"kind":"attempt","rank":1,"host":"n1","attempt":"attempt_0"}`, `{"kind":"out","rank":3,"offset":100,"size":200,"bytes":5}` + "\nline",
		`{"kind":"err","round":1,"bytes":99999999}`, `{"kind":"gone","rank":3,"why":"why\u001bnot"}`, `{"kind":"out","rank":"3"}`, `{"kind":"new"}`,
		"", "{}", "null", `{"kind":"out","offset":-1}`, `{"kind":"out","rank":3,"bytes":50}` + "\nline",
	} {
		f.Add(s + "\n")
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := bufio.NewReader(strings.NewReader(s))
		var frame health.LogFrame
		for {
			err := health.ReadLogFrame(r, &frame)
			if err == nil {
				continue
			}
			if err == io.EOF && r.Buffered() > 0 || cap(frame.Data) > 4<<20 {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
	})
}

// A chatty follower continues for a moment after its reader is gone.
type chatty struct{ *member }

func (c chatty) FollowLogs(ctx context.Context, _ logs.FollowConfig, round int, begin func(int, int, string) error, emit func(*logs.Chunk) error) error {
	err := begin(max(round, 0), c.rank, "attempt_0")
	for err == nil {
		err = emit(&logs.Chunk{Worker: logs.Worker{Rank: 2 * c.rank}, Data: bytes.Repeat([]byte("line\n"), 10_000)})
	}
	return emit(&logs.Chunk{Data: []byte("late\n")})
}

// Another host may have the rank of one that is lost. Its lines are not taken for those, and those
// that are missing are counted as far as they were told of.
func TestFollowedHostLeaves(t *testing.T) {
	_, call := job(t, 4)
	var conn net.Conn
	next := func(ctx context.Context, rank int) (_ net.Conn, err error) {
		if conn == nil {
			conn, err = call(ctx, rank)
			return conn, err
		}
		return call(ctx, 1)
	}
	q := health.LogQuery{Stdout: true, Lines: -1, HostOnly: true}
	lines := 0
	err := health.FollowHost(t.Context(), next, 3, q, func(f *health.LogFrame) error {
		if f.Kind == "out" {
			lines++
			conn.Close()
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "host n3 has left the job") || !strings.Contains(err.Error(), "; 12 B of its lines are known to be missing") || lines != 1 {
		t.Errorf("%d lines, %v", lines, err)
	}
}

// So are those of a host that is lost in the midst of a frame.
func TestFollowedHostIsCutOff(t *testing.T) {
	calls := 0
	call := func(context.Context, int) (net.Conn, error) {
		if calls++; calls > 1 {
			return nil, &rendezvous.CallError{Reason: "nobody knows it"}
		}
		conn, far := net.Pipe()
		go func() {
			defer far.Close()
			_, _ = http.ReadRequest(bufio.NewReader(far))
			_, _ = io.WriteString(far, "HTTP/1.0 200 OK\r\n\r\n"+`{"kind":"attempt","rank":3,"host":"n3","attempt":"attempt_0"}
{"kind":"out","rank":6,"size":10,"bytes":2}
a
{"kind":"out","rank":6,"offset":2,"size":20,"bytes":2}
b
{"kind":"err","rank":7,"bytes":30}
begun`)
		}()
		return conn, nil
	}
	synctest.Test(t, func(t *testing.T) {
		var got []string
		err := health.FollowHost(t.Context(), call, 3, health.LogQuery{Stdout: true, Lines: -1, HostOnly: true}, func(f *health.LogFrame) error {
			got = append(got, f.Kind+" "+string(f.Data))
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "nobody knows it; 46 B of its lines are known to be missing") || len(got) != 3 || got[2] != "out b\n" {
			t.Errorf("%v after %q", err, got)
		}
	})
}

// A call that returns nothing at all is one that failed.
func TestCallReturnsNothing(t *testing.T) {
	nothing := func(context.Context, int) (net.Conn, error) { return nil, nil }
	const said = "health: Config.Call, or CallToRead, returned neither a connection nor an error"
	err := health.FollowHost(t.Context(), nothing, 3, health.LogQuery{Once: true}, func(*health.LogFrame) error { return nil })
	if err == nil || !strings.Contains(err.Error(), said) {
		t.Errorf("FollowHost: %v", err)
	}
	members, _ := job(t, 2)
	s, _ := serve(t, members[1].fake, func(c *health.Config) { c.Call, c.Logs = nothing, chatty{members[1]} })
	if w := get(s, "GET", "/v1/state"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), said) {
		t.Errorf("the state: %d %s", w.Code, w.Body)
	}
}

// A reader that goes away, as on Ctrl-C, does no harm, and one at an address that all can read
// cannot make agents wait for it.
func TestFollowerGoes(t *testing.T) {
	members, call := job(t, 2)
	s, url := serve(t, members[1].fake, func(c *health.Config) { c.Call, c.Logs = call, chatty{members[1]} })
	for range 30 {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET /v1/logs?follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if _, err := io.ReadFull(conn, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	if answer, err := http.Get(url + "/healthz"); err != nil {
		t.Error(err)
	} else {
		answer.Body.Close()
	}
}

// However many follow the logs of a large job at an address that all can read, few of them are let
// in, their calls begin one after the other, and all are such as leave room for what is asked at
// the socket.
func TestFollowersAreLimited(t *testing.T) {
	const hosts = 300
	members, _ := job(t, 4)
	m := members[1]
	m.set(func(f *fake) {
		for i := 4; i < hosts; i++ {
			f.state.Hosts = append(f.state.Hosts, jobstate.Host{GroupRank: i})
		}
	})
	var calls, others atomic.Int64
	silent := func(context.Context, int) (net.Conn, error) {
		calls.Add(1)
		ours, theirs := net.Pipe()
		t.Cleanup(func() { theirs.Close() })
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		return ours, nil
	}
	none := func(context.Context, int) (net.Conn, error) { // it is asked how its host is
		others.Add(1)
		return nil, errors.New("none")
	}
	began := time.Now()
	s, _ := serve(t, m.fake, func(c *health.Config) { c.Call, c.CallToRead, c.Logs = none, silent, m })
	in, refused := 0, 0
	for range 200 {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET /v1/logs?follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		switch {
		case err != nil:
			t.Fatal(err)
		case answer.StatusCode == http.StatusOK:
			in++
		case answer.StatusCode == http.StatusServiceUnavailable:
			refused++
		}
	}
	if in != 4 || refused != 196 {
		t.Errorf("%d are let in, %d refused", in, refused)
	}
	seconds := 2 + int64(time.Since(began)/time.Second)
	if n, most := calls.Load(), 200*seconds; n == 0 || n > most {
		t.Errorf("%d calls to read, want 1 to %d", n, most)
	}
	if n, most := others.Load(), 128*seconds; n > most {
		t.Errorf("%d other calls, more than %d", n, most)
	}
}

// An agent may say of very many streams where they continue; who may only read has a short header.
func TestFollowManyStreams(t *testing.T) {
	members, _ := job(t, 2)
	m := members[1]
	from := map[string]int64{}
	for rank := range 3000 {
		from[fmt.Sprintf("out:%d", rank)] = 123456789012
	}
	q := health.LogQuery{Stdout: true, Lines: -1, Once: true, HostOnly: true, From: from}
	for _, tt := range []struct {
		control health.Control
		want    int
	}{{m, http.StatusOK}, {nil, http.StatusRequestHeaderFieldsTooLarge}} {
		_, url := serve(t, m.fake, func(c *health.Config) { c.Control, c.Logs = tt.control, m })
		answer, err := http.Get(url + q.Path())
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != tt.want {
			t.Errorf("with control %v: status %d, want %d", tt.control != nil, answer.StatusCode, tt.want)
		}
	}
}

// A host that cannot be reached for a moment is asked again, but not one that is sure to take no calls. A
// stream that breaks off is said to be missing, and continues once the host answers.
func TestFollowedHostIsAway(t *testing.T) {
	later := &rendezvous.CallError{Reason: "try again later"}
	never := &rendezvous.CallError{Reason: "torchrun", Final: true}
	const head, none = "HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\n" + `{"kind":"end"}` + "\n"
	begun := func(rank int) string {
		return fmt.Sprintf(`%s{"kind":"attempt","round":4,"rank":%d,"host":"n3","attempt":"attempt_0"}
{"kind":"out","round":4,"rank":%d,"bytes":5}
line
`, head, rank, 2*rank)
	}
	lines, others := begun(3)+`{"kind":"end"}`+"\n", begun(2)
	for _, tt := range []struct {
		name    string
		away    int   // calls that fail
		err     error // of these
		answers []string
		took    time.Duration
		frames  string
		want    string // the error
	}{
		{"not at all", 0, nil, []string{lines}, 0, "attempt 3, out 6", ""},
		{"for a moment", 2, later, []string{lines}, 2 * time.Second, "attempt 3, out 6", ""},
		{"for long", 1000, later, nil, 2 * time.Second, "", "try again later"},
		{"for good, of torchrun", 1000, never, nil, 0, "", "torchrun"},
		{"and another has its rank", 0, nil, []string{others, others, others}, 2 * time.Second, "", "another host has its rank"},
		{"and another has its rank, without lines", 1, later, []string{none, none}, 2 * time.Second, "", "another host has its rank"},
		{"in the midst of it", 0, nil, []string{begun(3), "", "", lines}, 3 * time.Second,
			"attempt 3, out 6, gone 3, attempt 3, out 6", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var answering sync.WaitGroup
				defer answering.Wait()
				away, answers := tt.away, tt.answers
				call := func(context.Context, int) (net.Conn, error) {
					if away > 0 {
						away--
						return nil, tt.err
					}
					ours, theirs := net.Pipe()
					answer := answers[0]
					answers = answers[1:]
					answering.Go(func() {
						defer theirs.Close()
						if _, err := http.ReadRequest(bufio.NewReader(theirs)); err == nil {
							_, _ = io.WriteString(theirs, answer)
						}
					})
					return ours, nil
				}
				var got []string
				began := time.Now()
				q := health.LogQuery{Stdout: true, Lines: -1, Round: 4, HostOnly: true}
				err := health.FollowHost(t.Context(), call, 3, q, func(f *health.LogFrame) error {
					got = append(got, fmt.Sprintf("%s %d", f.Kind, f.Rank))
					return nil
				})
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("error %v, want %q", err, tt.want)
				}
				if frames := strings.Join(got, ", "); frames != tt.frames || time.Since(began) != tt.took {
					t.Errorf("%q after %v, want %q after %v", frames, time.Since(began), tt.frames, tt.took)
				}
			})
		})
	}
}
