package process

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
)

// threadReads is how often the calling thread has read a file.
func threadReads(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/io")
	if err != nil {
		t.Skip("the kernel does not count reads: ", err)
	}
	for line := range strings.Lines(string(text)) {
		_, _ = fmt.Sscanf(line, "syscr: %d", &n)
	}
	return n
}

// Each look for what workers that have ended together left behind reads once about every process, however many workers they
// are: at their end, when what they left gets SIGTERM, and when it is killed.
func TestWorkersEndTogether(t *testing.T) {
	const workers, each = 32, 2
	if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid())); err != nil {
		t.Skip("the kernel does not list children: ", err)
	}
	s, err := NewSupervisor(SupervisorConfig{NoCgroup: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	g := &Group{cfg: Config{Grace: DefaultGrace}, sup: s, log: s.log, live: workers}
	if g.watch, err = newWatcher(s, make(chan event)); err != nil {
		t.Fatal(err)
	}
	// The shell's children become this process' own when it ends.
	shell := exec.Command("/bin/sh", "-c", `i=0; while [ $i -lt $1 ]; do LEFT_BY=$((i / $2)) setsid sh -c "$3" & i=$((i + 1)); done`,
		"sh", fmt.Sprint(workers*each), fmt.Sprint(each), `trap "" TERM; echo up; exec sleep 600 >&-`)
	up, err := shell.StdoutPipe()
	if err == nil {
		err = shell.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(up, make([]byte, len("up\n")*workers*each)); err != nil {
		t.Fatalf("%d bytes of those that are up: %v", n, err)
	}
	if err := shell.Wait(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for i := range workers {
		g.workers = append(g.workers, &worker{rank: i, pid: 1<<30 + i, stage: ended, tag: fmt.Sprint("LEFT_BY=", i)})
	}
	defer func() {
		g.watch.close()
		for _, w := range g.workers {
			for _, l := range w.left.all {
				if err := l.signal(syscall.SIGKILL); err != nil {
					t.Error(err)
				}
				l.close()
				if _, err := unix.Wait4(l.stat.PID, nil, 0, nil); err != nil {
					t.Error(err)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadReads(t)
	if _, err := procfs.All(); err != nil {
		t.Fatal(err)
	}
	all := threadReads(t) - before
	for _, look := range []struct {
		name string
		due  func(*remains)
	}{
		{"the end", func(left *remains) { left.lookAt = began }},
		{"SIGTERM", func(left *remains) { left.termAt = began }},
		{"SIGKILL", func(left *remains) { left.killAt = began }},
	} {
		for _, w := range g.workers {
			look.due(&w.left)
		}
		before := threadReads(t)
		g.onTime(began)
		if n, most := threadReads(t)-before, 2*all+10*workers*each; n > most || n < all {
			t.Errorf("%s: %d reads; one look at all processes takes %d", look.name, n, all)
		}
		for _, w := range g.workers {
			if len(w.left.all) != each {
				t.Errorf("%s: %d processes of worker %d", look.name, len(w.left.all), w.rank)
			}
		}
	}
}
