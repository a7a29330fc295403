package link

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/internal/job/live"
)

func listen(t *testing.T) *Link {
	t.Helper()
	w, err := Listen(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func dialLive(t *testing.T, w *Link) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", w.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return conn
}

// A socket whose path would be too long is elsewhere.
func TestLiveLongTemp(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	dialLive(t, listen(t))
}

// Connections that say nothing are few, and keep no worker out once one of them has ended.
func TestLiveStrangers(t *testing.T) {
	w := listen(t)
	var silent []net.Conn
	for range maxUnexpected {
		silent = append(silent, dialLive(t, w))
	}
	if _, err := dialLive(t, w).Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("one too many: %v", err)
	}
	silent[0].Close()
	id := w.Env(0)[IDVar]
	for {
		w.mu.Lock()
		n := w.silent
		w.mu.Unlock()
		if n < maxUnexpected {
			break
		}
		time.Sleep(time.Millisecond) // until the agent has seen the end
	}
	worker := dialLive(t, w)
	fmt.Fprintf(worker, `{"type":"hello","version":1,"id":%q}`+"\n"+`{"type":"ready","step":7}`+"\n", id)
	if err := w.Await(t.Context(), func(s *State) bool { return s.Host[0].Ready != nil && s.Host[0].Ready.Step == 7 }); err != nil {
		t.Error(err)
	}
}

// The workers of a large host may all connect before one of them says hello.
func TestLiveCrowd(t *testing.T) {
	w := listen(t)
	var ids []string
	var conns []net.Conn
	for i := range 2 * maxUnexpected {
		ids = append(ids, w.Env(i)[IDVar])
	}
	for range ids {
		conns = append(conns, dialLive(t, w))
	}
	for i, conn := range conns {
		fmt.Fprintf(conn, `{"type":"hello","version":1,"id":%q}`+"\n"+`{"type":"ready"}`+"\n", ids[i])
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.Await(ctx, func(s *State) bool { return s.Host.Settled() }); err != nil {
		t.Error(err)
	}
}

// Who says nothing at all is not waited for.
func TestLiveSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Link{log: slog.New(slog.DiscardHandler), conns: map[net.Conn]bool{}, silent: 1}
		near, far := net.Pipe()
		began, over := time.Now(), make(chan struct{})
		go func() {
			w.serve(far)
			close(over)
		}()
		if _, err := bufio.NewReader(near).ReadByte(); err != io.EOF || time.Since(began) != liveHello {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if <-over; w.silent != 0 {
			t.Errorf("%d are silent", w.silent)
		}
	})
}

func TestLivePlausible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Link{}
		member, other := &Worker{Worker: live.Worker{Member: true}}, &Worker{}
		w.Reached(100)
		for _, tt := range []struct {
			of   *Worker
			step int64
			want bool
		}{{member, -2, false}, {member, -1, true}, {member, 100 + fastest, true}, {member, 101 + fastest, false}, {other, maxStep, true}, {other, maxStep + 1, false}, {nil, 0, true}} {
			if got := w.plausible(tt.of, &live.Said{Step: tt.step}); got != tt.want {
				t.Errorf("step %d of %+v: %v", tt.step, tt.of, got)
			}
		}
		time.Sleep(time.Second)
		if !w.plausible(member, &live.Said{Step: 100 + 2*fastest}) {
			t.Error("no step is possible any more")
		}
	})
}

// A hang is looked for among the workers that the job waits for: not those that have ended, or rest
// until there is a place for them.
func TestLiveWorking(t *testing.T) {
	w := New(State{Workers: map[int]*Worker{
		0: {Worker: live.Worker{Heard: true, Member: true, Ready: &live.Said{}}},
		1: {Worker: live.Worker{Heard: true, Member: true, Ready: &live.Said{}, Gone: true}, ended: true},
		2: {Worker: live.Worker{Heard: true, Ready: &live.Said{}}},
		3: {},                                                                                // it starts
		4: {Worker: live.Worker{Heard: true, Member: true, Ready: &live.Said{}, Gone: true}}, // its training has ended
	}})
	pids := map[int]int{0: 100, 1: 101, 2: 102, 3: 103, 4: 104}
	if got, want := w.Working(pids), (map[int]int{0: 100, 3: 103, 4: 104}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
