//go:build linux

package process_test

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

func TestMain(m *testing.M) {
	if unprepared() {
		registerFuncs()
		programMain()
	}
	process.GuardMain()
	registerFuncs()
	process.FuncMain()
	testproc.Main()
	programMain()
	os.Exit(m.Run())
}

// supervisor makes a Supervisor for one test.
func supervisor(t testing.TB, cfg process.SupervisorConfig) *process.Supervisor {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s, err := process.NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error("close the supervisor:", err)
		}
	})
	return s
}

// workers returns a Config for workers that run scripts.
func workers(lab *testproc.Lab, scripts ...[]string) process.Config {
	cfg := process.Config{
		Name:       "default",
		Entrypoint: testproc.Program(),
		Args:       map[int][]string{},
		Envs:       map[int]map[string]string{},
		Env:        lab.Env(),
		Grace:      process.DefaultGrace,
	}
	for i, script := range scripts {
		cfg.Args[i] = testproc.Args(script...)
		cfg.Envs[i] = map[string]string{}
	}
	return cfg
}

func do(steps ...string) []string { return steps }

func start(t testing.TB, s *process.Supervisor, cfg process.Config) *process.Group {
	t.Helper()
	g, err := s.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close(9, 0) })
	return g
}

func wait(t testing.TB, g *process.Group) *process.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testproc.Patience)
	defer cancel()
	r, err := g.Wait(ctx)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return r
}

// codes are the exit codes by rank.
func codes(r *process.Result) map[int]int {
	m := map[int]int{}
	for i, e := range r.Exits {
		m[i] = e.Code
	}
	return m
}

// stopped are the signals that workers were stopped by.
func stopped(r *process.Result) map[int]int {
	m := map[int]int{}
	for i, e := range r.Exits {
		if e.StoppedBy != 0 {
			m[i] = int(e.StoppedBy)
		}
	}
	return m
}

const long = time.Hour // a grace that no test waits for

// pidAfter reads a line from the board that begins with a word.
func pidAfter(word, line string) (pid int, ok bool) {
	number, ok := strings.CutPrefix(line, word)
	pid, err := strconv.Atoi(number)
	return pid, ok && err == nil
}

// A journal is a log that a test reads.
type journal struct {
	mu    sync.Mutex
	text  strings.Builder
	grown chan struct{} // closed at the next write
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.grown != nil {
		close(j.grown)
		j.grown = nil
	}
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (j *journal) clear() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text.Reset()
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// await waits until something was logged.
func (j *journal) await(t testing.TB, text string) {
	t.Helper()
	late := time.After(testproc.Patience)
	for {
		j.mu.Lock()
		if strings.Contains(j.text.String(), text) {
			j.mu.Unlock()
			return
		}
		if j.grown == nil {
			j.grown = make(chan struct{})
		}
		grown := j.grown
		j.mu.Unlock()
		select {
		case <-grown:
		case <-late:
			t.Fatalf("the log never says %q:\n%s", text, j)
		}
	}
}

// ends gets hold of processes and returns a function that waits until all of them
// are zombies or gone.
func ends(t testing.TB, pids ...int) (await func()) {
	t.Helper()
	fds := map[int]int{}
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ESRCH {
			continue
		}
		if err != nil {
			t.Skipf("needs pidfds: %v", err)
		}
		fds[pid] = fd
		t.Cleanup(func() { unix.Close(fd) })
	}
	return func() {
		t.Helper()
		for pid, fd := range fds {
			n, err := 0, error(unix.EINTR)
			for err == unix.EINTR {
				n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(testproc.Patience/time.Millisecond))
			}
			if n == 0 || err != nil {
				t.Fatalf("process %d does not end: %v", pid, err)
			}
		}
	}
}

func awaitEnd(t testing.TB, pids ...int) {
	t.Helper()
	ends(t, pids...)()
}

// awaitReaped waits until a process is no longer there; nothing tells of that.
func awaitReaped(t testing.TB, pids ...int) {
	t.Helper()
	awaitEnd(t, pids...)
	late := time.Now().Add(testproc.Patience)
	for _, pid := range pids {
		for syscall.Kill(pid, 0) == nil {
			if time.Now().After(late) {
				t.Fatalf("process %d is not reaped", pid)
			}
			_, _ = unix.Poll(nil, 1)
		}
	}
}
