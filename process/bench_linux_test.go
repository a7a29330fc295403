package process_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// bench is a Supervisor for a benchmark, with or without cgroups.
func bench(b *testing.B, cgroups bool) *process.Supervisor {
	b.Helper()
	s := supervisor(b, process.SupervisorConfig{NoCgroup: !cgroups, Guard: true, Logger: slog.New(slog.DiscardHandler)})
	if cgroups && !s.HasCgroup() {
		b.Skip("needs the right to make a cgroup")
	}
	return s
}

// each runs a benchmark for some numbers of workers: the floor, which is bare fork
// and exec with the same flags, and groups with and without cgroups.
func each(b *testing.B, floor func(b *testing.B, n int), group func(b *testing.B, s *process.Supervisor, n int)) {
	for _, n := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("n=%d/floor", n), func(b *testing.B) { floor(b, n) })
		for _, cgroups := range []bool{false, true} {
			name := map[bool]string{false: "bare", true: "cgroups"}[cgroups]
			b.Run(fmt.Sprintf("n=%d/%s", n, name), func(b *testing.B) { group(b, bench(b, cgroups), n) })
		}
	}
}

// idle is a worker that does nothing until it is told to stop.
func idle(b *testing.B, n int) process.Config {
	b.Helper()
	path, err := exec.LookPath("sleep")
	if err != nil {
		b.Skip(err)
	}
	cfg := process.Config{Entrypoint: path, Args: map[int][]string{}, Envs: noEnvs(n), Grace: long}
	for i := range n {
		cfg.Args[i] = []string{"1000"}
	}
	return cfg
}

func forkExec(b *testing.B, cfg process.Config) []int {
	b.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	var pids []int
	for i := range len(cfg.Args) {
		pid, err := syscall.ForkExec(cfg.Entrypoint, append([]string{cfg.Entrypoint}, cfg.Args[i]...), &syscall.ProcAttr{
			Env:   os.Environ(),
			Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
		if err != nil {
			b.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// end stops processes the bare way.
func end(b *testing.B, pids []int) {
	b.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(-pid, syscall.SIGTERM); err != nil {
			b.Fatal(err)
		}
	}
	for _, pid := range pids {
		var status unix.WaitStatus
		for {
			if _, err := unix.Wait4(pid, &status, 0, nil); err != unix.EINTR {
				break
			}
		}
	}
}

// BenchmarkStart is the time until all workers are forked and executing.
func BenchmarkStart(b *testing.B) {
	each(b, func(b *testing.B, n int) {
		cfg := idle(b, n)
		for b.Loop() {
			pids := forkExec(b, cfg)
			b.StopTimer()
			end(b, pids)
			b.StartTimer()
		}
	}, func(b *testing.B, s *process.Supervisor, n int) {
		cfg := idle(b, n)
		for b.Loop() {
			g, err := s.Start(cfg)
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			g.Close(syscall.SIGKILL, 0)
			b.StartTimer()
		}
	})
}

// BenchmarkStop is the time from the stop until all workers, and what they left
// behind, are gone.
func BenchmarkStop(b *testing.B) {
	each(b, func(b *testing.B, n int) {
		cfg := idle(b, n)
		for b.Loop() {
			b.StopTimer()
			pids := forkExec(b, cfg)
			b.StartTimer()
			end(b, pids)
		}
	}, func(b *testing.B, s *process.Supervisor, n int) {
		cfg := idle(b, n)
		for b.Loop() {
			b.StopTimer()
			g, err := s.Start(cfg)
			if err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			g.Close(syscall.SIGTERM, long)
		}
	})
}

// BenchmarkFunc passes values to a function and back.
func BenchmarkFunc(b *testing.B) {
	for _, size := range []int{1, 64 << 20} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			lab := testproc.New(b)
			s := bench(b, false)
			cfg := calls(lab, "echo", "")
			cfg.Inputs[0] = bytes.Repeat([]byte{1}, size)
			b.SetBytes(int64(2 * size))
			for b.Loop() {
				if x := wait(b, start(b, s, cfg)).Exits[0]; len(x.Value) != size {
					b.Fatalf("%d bytes", len(x.Value))
				}
			}
		})
	}
}
