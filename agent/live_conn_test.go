package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/internal/job/live"
)

func openLiveTest(t *testing.T) *liveWorkers {
	t.Helper()
	w, err := openLive(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return w
}

func dialLive(t *testing.T, w *liveWorkers) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", w.path())
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
	dialLive(t, openLiveTest(t))
}

// Connections that say nothing are few, and keep no worker out once one of them has ended.
func TestLiveStrangers(t *testing.T) {
	w := openLiveTest(t)
	var silent []net.Conn
	for range maxUnexpected {
		silent = append(silent, dialLive(t, w))
	}
	if _, err := dialLive(t, w).Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("one too many: %v", err)
	}
	silent[0].Close()
	id := w.env(0)[liveIDVar]
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
	if err := w.await(t.Context(), func() bool { return w.host[0].Ready != nil && w.host[0].Ready.Step == 7 }); err != nil {
		t.Error(err)
	}
}

// The workers of a large host may all connect before one of them says hello.
func TestLiveCrowd(t *testing.T) {
	w := openLiveTest(t)
	var ids []string
	var conns []net.Conn
	for i := range 2 * maxUnexpected {
		ids = append(ids, w.env(i)[liveIDVar])
	}
	for range ids {
		conns = append(conns, dialLive(t, w))
	}
	for i, conn := range conns {
		fmt.Fprintf(conn, `{"type":"hello","version":1,"id":%q}`+"\n"+`{"type":"ready"}`+"\n", ids[i])
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.await(ctx, w.host.Settled); err != nil {
		t.Error(err)
	}
}

// Who says nothing at all is not waited for.
func TestLiveSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &liveWorkers{log: slog.New(slog.DiscardHandler), conns: map[net.Conn]bool{}, silent: 1}
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
		w := &liveWorkers{}
		member, other := &liveWorker{Worker: live.Worker{Member: true}}, &liveWorker{}
		w.reached(100)
		for _, tt := range []struct {
			of   *liveWorker
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
