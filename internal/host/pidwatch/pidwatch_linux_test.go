package pidwatch_test

import (
	"io"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/pidwatch"
)

// start runs a process that ends when its input does.
func start(t *testing.T) (pidfd int, in io.Closer) {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	pidfd, err = unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Skip("no pidfds:", err)
	}
	t.Cleanup(func() { unix.Close(pidfd) })
	return pidfd, in
}

func TestSet(t *testing.T) {
	s, err := pidwatch.New()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	keys := make(chan uint64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(func(key uint64) bool { keys <- key; return true })
	}()
	const big = 7<<32 | 1<<31 // all 64 bits count
	ends := map[uint64]io.Closer{}
	for _, key := range []uint64{1, 2, big} {
		fd, in := start(t)
		if err := s.Add(fd, key); err != nil {
			t.Fatal(err)
		}
		ends[key] = in
	}
	for _, key := range []uint64{2, big, 1} {
		ends[key].Close()
		if got := <-keys; got != key {
			t.Errorf("the end of %#x is reported as that of %#x", key, got)
		}
	}
	s.Close()
	<-done
	fd, _ := start(t)
	if err := s.Add(fd, 4); err == nil {
		t.Error("a closed Set takes a process")
	}
}

// Run returns when its caller has seen enough.
func TestEnough(t *testing.T) {
	s, err := pidwatch.New()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fd, in := start(t)
	if err := s.Add(fd, 1); err != nil {
		t.Fatal(err)
	}
	in.Close()
	s.Run(func(uint64) bool { return false })
}
