package timer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/timer"
)

// recycle ends w and starts another process that gets its number.
func recycle(t *testing.T, w *exec.Cmd) *exec.Cmd {
	t.Helper()
	pid := w.Process.Pid
	if err := w.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = w.Wait()
	for range 1000 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			t.Skip("needs the right to choose process numbers:", err)
		}
		if next := worker(t); next.Process.Pid == pid {
			return next
		}
	}
	t.Skip("somebody else got the number")
	return nil
}

// ownPIDs is set where nobody else has a use for process numbers.
const ownPIDs = "TIMER_TEST_OWN_PIDS"

// alone runs the test in a PID namespace of its own: where the kernel hands out old
// numbers again, whoever else tests that a process is gone may find another. It
// returns true there.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownPIDs) != "" {
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = unix.Mount("proc", "/proc", "proc", 0, "")
		}
		if err != nil {
			t.Skip("needs the right to mount:", err)
		}
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), ownPIDs+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	switch {
	case cmd.Process == nil:
		t.Skip("needs the right to make a PID namespace:", err)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP")):
		t.Skipf("%s", out)
	case !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Errorf("it did not run:\n%s", out)
	}
	return false
}

// A process that got a number later is never signalled, nor one's timers its own.
func TestRecycledPID(t *testing.T) {
	if !alone(t) {
		return
	}
	for name, config := range map[string]func(timer.Config) timer.Config{
		"pidfd":      func(c timer.Config) timer.Config { return c },
		"start time": timer.Bare,
	} {
		t.Run(name, func(t *testing.T) {
			j := newJournal()
			// Run does not run, so nobody notices the death.
			s, err := timer.NewServer(config(timer.Config{Logger: j.logger()}))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			w := worker(t)
			pid := w.Process.Pid
			if err := s.Register([]timer.Request{req(pid, "old", now()+0.01, 9)}); err != nil {
				t.Fatal(err)
			}
			awaitTime(now() + 0.03) // start times count in hundredths of a second
			next := recycle(t, w)
			awaitTime(now() + 0.02)
			s.Settle()
			if got := s.Stats().Expired; got != 1 {
				t.Errorf("%d expired, want 1", got)
			}
			if err := next.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if got := endedBy(t, next); got != syscall.SIGTERM {
				t.Errorf("the next process ended by %v, want the SIGTERM of this test", got)
			}
			if got := s.Stats(); got.Killed != 0 {
				t.Errorf("%d killed; the log:\n%s", got.Killed, j)
			}
		})
	}
}

// awaitTime waits for a time of the wall clock.
func awaitTime(at float64) {
	for now() < at {
		_, _ = unix.Poll(nil, 1)
	}
}

// Where a sandbox forbids to signal through a pidfd, kill does it.
func TestSignalRefused(t *testing.T) {
	const inside = "TIMER_TEST_REFUSED"
	if os.Getenv(inside) == "" {
		argv := append(testproc.Refuse(testproc.NoPidfdSignal), testproc.Program(), "-test.run=^TestSignalRefused$")
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), inside+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	s := serve(t, timer.Config{})
	w := worker(t)
	s.write(line(w.Process.Pid, "x", 1, 9))
	if got := endedBy(t, w); got != syscall.SIGKILL {
		t.Errorf("ended by %v", got)
	}
}

func TestForgetsTheDead(t *testing.T) {
	s := serve(t, timer.Config{})
	other := worker(t)
	s.write(line(other.Process.Pid, "x", never, 9))
	for range 3 {
		w := worker(t)
		s.write(line(w.Process.Pid, "a", never, 9) + line(w.Process.Pid, "b", never, 0))
		s.sync()
		if got := s.Stats(); got.Timers != 3 {
			t.Errorf("%d timers, want 3", got.Timers)
		}
		if err := w.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = w.Wait()
		for end := time.Now().Add(testproc.Patience); s.Stats().Timers != 1; {
			if time.Now().After(end) {
				t.Fatalf("timers %v are kept", s.Live(0))
			}
			_, _ = unix.Poll(nil, 1)
		}
	}
	// With the mark's, two processes are watched.
	if got := s.Stats(); got.Processes > 2 {
		t.Errorf("%d processes, want 2", got.Processes)
	}
}

// busy is how late, in seconds, a busy machine may be with what should be at once:
// far less than what only looks from time to time, or is kept from its work, takes.
const busy = 20

// The kernel's timer is as good as Go's: every deadline on time, none early.
func TestOnTime(t *testing.T) {
	s := serve(t, timer.Config{})
	const n = 20
	type death struct{ late float64 }
	deaths := make(chan death, n)
	var workers []*exec.Cmd
	for range n {
		workers = append(workers, worker(t))
	}
	base := now() + 0.3
	for i, w := range workers {
		at := base + float64(n-i)*0.01
		s.write(line(w.Process.Pid, "s", at, 9))
		go func() {
			_, _ = w.Process.Wait()
			deaths <- death{now() - at}
		}()
	}
	for range n {
		if d := <-deaths; d.late < 0 || d.late > busy {
			t.Errorf("killed %.1f ms after its deadline", 1000*d.late)
		}
	}
}

// Slow evidence about one process delays no other.
func TestSlowReap(t *testing.T) {
	slow, fast := worker(t), worker(t)
	entered, leave := make(chan int, 2), make(chan bool)
	s := serve(t, timer.Config{Reap: func(_ context.Context, e *timer.Expiry) error {
		if e.PID == slow.Process.Pid {
			entered <- e.PID
			<-leave
		}
		return e.Kill()
	}})
	s.write(line(slow.Process.Pid, "slow", 1, 15))
	<-entered
	s.event("timer expired slow")
	// Requests of one that is being reaped are dropped.
	s.write(line(slow.Process.Pid, "more", 1, 9))
	s.write(line(fast.Process.Pid, "fast", 1, 9))
	s.event("timer expired fast")
	s.event("kill worker process fast")
	if got := endedBy(t, fast); got != syscall.SIGKILL {
		t.Errorf("the fast one ended by %v", got)
	}
	leave <- true
	s.event("kill worker process slow")
	if got := endedBy(t, slow); got != syscall.SIGTERM {
		t.Errorf("the slow one ended by %v, want SIGTERM", got)
	}
}

// An error of Reap is logged, and the process may have timers again.
func TestReapError(t *testing.T) {
	w := worker(t)
	fail := errors.New("it is stuck")
	s := serve(t, timer.Config{Reap: func(_ context.Context, e *timer.Expiry) error {
		if len(e.Timers) == 1 && e.Timers[0].ScopeID == "first" {
			return fail
		}
		e.Signal = syscall.SIGTERM
		return e.Kill()
	}})
	s.write(line(w.Process.Pid, "first", 1, 9))
	s.event("timer expired first")
	s.log.await(t, "it is stuck")
	for got := s.Stats(); got.Expired == 0; got = s.Stats() {
		_, _ = unix.Poll(nil, 1)
	}
	s.write(line(w.Process.Pid, "second", 1, 9))
	s.event("timer expired second")
	s.event("kill worker process second")
	if got := endedBy(t, w); got != syscall.SIGTERM {
		t.Errorf("ended by %v, want what Reap sent", got)
	}
}

// Serve waits for a Reap that is under way; its context tells that.
func TestStopDuringReap(t *testing.T) {
	w := worker(t)
	entered := make(chan bool, 1)
	s := serve(t, timer.Config{Reap: func(ctx context.Context, e *timer.Expiry) error {
		entered <- true
		<-ctx.Done()
		return e.Kill()
	}})
	s.write(line(w.Process.Pid, "s", 1, 9))
	<-entered
	s.stop()
	if got := endedBy(t, w); got != syscall.SIGKILL {
		t.Errorf("ended by %v", got)
	}
	s.event("timer expired s")
	s.event("kill worker process s")
}

// More processes than the server wants descriptors for.
func TestManyProcesses(t *testing.T) {
	const fds, n = 5, 20
	s := serve(t, timer.Descriptors(timer.Config{}, fds))
	var workers []*exec.Cmd
	for range n {
		w := worker(t)
		workers = append(workers, w)
		// Who has no timers is forgotten first.
		s.write(line(w.Process.Pid, "s", never, 9) + line(w.Process.Pid, "s", -1, 0))
	}
	s.sync()
	if got := s.Stats(); got.Processes > 2*fds || got.Acquired != n+1 {
		t.Errorf("got %+v, want at most %d processes", got, 2*fds)
	}
	all := func(at float64) {
		for _, w := range workers {
			s.write(line(w.Process.Pid, "s", at, 9))
		}
	}
	all(never)
	s.sync()
	if got := s.Stats(); got.Processes < n || got.Timers != n {
		t.Errorf("got %+v, want %d processes", got, n)
	}
	all(now() + 0.05)
	for _, w := range workers {
		if got := endedBy(t, w); got != syscall.SIGKILL {
			t.Errorf("ended by %v", got)
		}
	}
}

// Who does not read the log, or events, delays no deadline.
func TestStuckReaders(t *testing.T) {
	free := make(chan bool)
	var events atomic.Int64
	s, err := timer.NewServer(timer.Config{
		Logger: slog.New(slog.NewTextHandler(stuck{free}, nil)),
		OnExpiry: func(timer.Request, bool) {
			<-free
			events.Add(1)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	// More events than are kept.
	const n, each = 9, 9000
	for range n {
		w := worker(t)
		var batch []timer.Request
		for i := range each {
			batch = append(batch, req(w.Process.Pid, strconv.Itoa(i), 1, 0))
		}
		register(t, s, append(batch, req(w.Process.Pid, "kill", 2, 9))...)
		if got := endedBy(t, w); got != syscall.SIGKILL {
			t.Errorf("ended by %v", got)
		}
	}
	cancel()
	close(free)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := s.Stats(); got.Killed != n || got.Lost == 0 {
		t.Errorf("got %+v", got)
	}
	if got, want := uint64(events.Load())+s.Stats().Lost, uint64(n*(each+2)); got != want {
		t.Errorf("%d events and lost ones, want %d", got, want)
	}
}

// stuck does not write until it is freed.
type stuck struct{ free chan bool }

func (s stuck) Write(p []byte) (int, error) {
	<-s.free
	return len(p), nil
}
