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
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/rendezvous"
)

// FollowLogs emits two lines of the member's first rank, the second one when it may go on.
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
	case <-m.goOn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return emit(&logs.Chunk{Worker: w, Offset: at, Lost: 3, Data: text[at:]})
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
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s %d %d %s%s%s %d %s", f.Kind, f.Round, f.Rank, f.Host, f.Attempt, f.Why, f.Lost, f.Data)))
	}
	slices.Sort(list)
	return list
}

// One agent streams what the workers of all hosts write. A connection that breaks goes on where
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
		members[rank].goOn <- true
	}
	want = []string{"end 0 0  0", "out 0 0  3 second of 0", "out 0 2  3 second of 2", "out 0 6  3 second of 6"}
	if diff := cmp.Diff(want, frames(t, live, 0)); diff != "" {
		t.Errorf("then, -want +got:\n%s", diff)
	}
	for _, path := range []string{"/v1/logs?follow=1&rank=x", "/v1/logs?follow=1&stream=both", "/v1/logs?follow=1&lines=x", "/v1/logs?follow=1&from=out:3:x"} {
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
	for _, s := range []string{"attempt 0 1 n1 attempt_0\n", "out 0 3 100 0 5\nline\n", "err 1 2 3 4 99999999\n", "gone 3 why not\n", "out 0 3 100 0 5 200\nline\n", "out 0\n", "new 1\n", "\n", "out 0 3 100 0 50\nline\n"} {
		f.Add(s)
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

// A chatty follower goes on for a moment after its reader is gone.
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
	err := health.FollowHost(t.Context(), next, 3, q, nil, func(f *health.LogFrame) error {
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
			_, _ = io.WriteString(far, "HTTP/1.0 200 OK\r\n\r\nattempt 0 3 n3 attempt_0\nout 0 6 0 0 2 10\na\nout 0 6 2 0 2 20\nb\nerr 0 7 0 0 30\nbegun")
		}()
		return conn, nil
	}
	synctest.Test(t, func(t *testing.T) {
		var got []string
		err := health.FollowHost(t.Context(), call, 3, health.LogQuery{Stdout: true, Lines: -1, HostOnly: true}, nil, func(f *health.LogFrame) error {
			got = append(got, f.Kind+" "+string(f.Data))
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "nobody knows it; 46 B of its lines are known to be missing") || len(got) != 3 || got[2] != "out b\n" {
			t.Errorf("%v after %q", err, got)
		}
	})
}

// While the round lasts, a host that cannot be reached for a while is asked again, and said once
// to be missing; but not one that is sure to take no calls.
func TestFollowedHostIsAway(t *testing.T) {
	later, never := &rendezvous.CallError{Reason: "try again later"}, &rendezvous.CallError{Reason: "torchrun", Final: true}
	const head = "HTTP/1.0 200 OK\r\n\r\n"
	lines, none, others := head+"attempt 4 3 n3 attempt_0\nout 4 6 0 0 5\nline\nend\n", head+"end\n", head+"attempt 4 2 n3 attempt_0\nout 4 4 0 0 5\nline\nend\n"
	for _, tt := range []struct {
		name    string
		away    int   // calls that fail
		err     error // of these
		answers []string
		over    time.Duration // when the round is over
		took    time.Duration
		frames  string
		want    string // the error
	}{
		{"not at all", 0, nil, []string{lines, none}, time.Hour, 0, "attempt 3, out 6", ""},
		{"for a moment", 2, later, []string{lines, none}, time.Hour, 2 * time.Second, "attempt 3, out 6", ""},
		{"for long", 30, later, []string{lines, none}, time.Hour, 132 * time.Second, "gone 3, attempt 3, out 6", ""},
		{"as the round ends", 30, later, []string{lines, none}, 4 * time.Minute, 132 * time.Second, "gone 3, attempt 3, out 6", ""},
		{"until the round is over", 30, later, []string{lines, none}, 126*time.Second + time.Second/2, 127*time.Second + time.Second/2, "gone 3, attempt 3, out 6", ""},
		{"for good", 1000, later, nil, time.Minute, time.Minute + 2*time.Second, "gone 3", "try again later"},
		{"for good, of torchrun", 1000, never, nil, time.Hour, 0, "", "torchrun"},
		{"and another has its rank", 0, nil, []string{others, others, others, others, others, others, others}, 3500 * time.Millisecond, 5500 * time.Millisecond, "gone 3", "another host has its rank"},
		{"and another has its rank, without lines", 1, later, []string{none, none, none, none, none}, 1500 * time.Millisecond, 3500 * time.Millisecond, "", "another host has its rank"},
		{"when it is told that all has come", 0, nil, []string{lines, "", "", none}, time.Hour, 2 * time.Second, "attempt 3, out 6", ""},
		{"and never told", 0, nil, []string{lines, "", "", "", ""}, time.Hour, 2 * time.Second, "attempt 3, out 6", ""},
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
				over := make(chan struct{})
				defer time.AfterFunc(tt.over, func() { close(over) }).Stop()
				var got []string
				began := time.Now()
				q := health.LogQuery{Stdout: true, Gather: true, Lines: -1, Round: 4, HostOnly: true}
				err := health.FollowHost(t.Context(), call, 3, q, over, func(f *health.LogFrame) error {
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
		fmt.Fprintf(conn, "GET /v1/logs?follow=1&gather=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
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

// The end of a host whose lines are gathered waits until they are, also where its workers end at
// once and where the connection breaks.
func TestEndAwaitsGatherer(t *testing.T) {
	members, _ := job(t, 2)
	m := members[1]
	s := listen(t, m.fake, func(c *health.Config) { c.Control, c.Logs, c.Gathered = m, m, true })
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	goesOn := func() {
		t.Helper()
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	gather := func(taken bool) io.ReadCloser {
		t.Helper()
		q := health.LogQuery{Stdout: true, Gather: true, Taken: taken, Lines: -1, Round: 0, HostOnly: true}
		answer, err := http.Get("http://" + s.Addr().String() + q.Path())
		if err != nil {
			t.Fatal(err)
		}
		return answer.Body
	}
	end()
	goesOn()
	broken := gather(false)
	if _, err := io.ReadFull(broken, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	broken.Close()
	goesOn()
	close(m.goOn)
	whole := gather(false)
	want := []string{"attempt 0 1 n1attempt_0 0", "end 0 0  0", "out 0 2  0 first of 2", "out 0 2  3 second of 2"}
	if diff := cmp.Diff(want, frames(t, bufio.NewReader(whole), len(want))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	whole.Close()
	goesOn()
	gather(true).Close()
	if err := <-ended; err != nil {
		t.Error(err)
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
			f.state.Hosts = append(f.state.Hosts, health.Host{GroupRank: i})
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

// An agent may say of very many streams where they go on; who may only read has a short header.
func TestFollowManyStreams(t *testing.T) {
	members, _ := job(t, 2)
	m := members[1]
	var from []string
	for rank := range 3000 {
		from = append(from, fmt.Sprintf("out:%d:123456789012", rank))
	}
	q := health.LogQuery{Stdout: true, Lines: -1, Once: true, HostOnly: true, From: strings.Join(from, ",")}
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

// A host without --gather prints its lines itself, and nobody else does.
func TestGatherRefused(t *testing.T) {
	members, _ := job(t, 2)
	m := members[1]
	_, url := serve(t, m.fake, func(c *health.Config) { c.Control, c.Logs = m, m })
	q := health.LogQuery{Stdout: true, Gather: true, Lines: -1, HostOnly: true}
	answer, err := http.Get(url + q.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusConflict || !strings.Contains(string(text), "runs without --gather") {
		t.Errorf("%d %q, %v", answer.StatusCode, text, err)
	}
}
