package logs_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/logs"
)

// BenchmarkTee lets 4 workers write 128-byte lines in 8 KiB writes to stdout
// and stderr under --tee 3, with files as the console. plain copies the same
// files without looking at lines: the floor for the copying; write is the
// workers alone: the floor for the whole. With collapse all of them write the
// same lines.
func BenchmarkTee(b *testing.B) {
	const workers, lines, size = 4, 500_000, 128
	for _, mode := range []string{"tee", "tee-one-console", "tee-collapse", "write", "plain"} {
		b.Run(mode, func(b *testing.B) {
			var wall, cpu float64
			for range b.N {
				b.StopTimer()
				tee := logs.StdSpec{All: logs.StdAll}
				if mode == "write" || mode == "plain" {
					tee = logs.StdSpec{}
				}
				dir := b.TempDir()
				console := [2]*os.File{}
				for i := range console {
					f, err := os.OpenFile(filepath.Join(dir, "console"+strconv.Itoa(i)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
					if err != nil {
						b.Fatal(err)
					}
					defer f.Close()
					console[i] = f
				}
				if mode == "tee-one-console" {
					console[1] = console[0]
				}
				cfg := logs.Config{
					Dir: dir, Redirects: logs.StdSpec{All: logs.StdAll}, Tee: tee, Stdout: console[0], Stderr: console[1], Collapse: mode == "tee-collapse",
				}
				run, err := logs.New(cfg)
				if err != nil {
					b.Fatal(err)
				}
				ws := make([]logs.Worker, workers)
				for i := range ws {
					ws[i] = logs.Worker{LocalRank: i, Rank: i, Role: "default"}
				}
				a, err := run.Attempt(0, ws)
				if err != nil {
					b.Fatal(err)
				}
				var begin []func()
				var wait []func() error
				for i := range ws {
					start, cmd := startChild(b, a.Sink(i).Stdout, a.Sink(i).Stderr, "flood", strconv.Itoa(lines), strconv.Itoa(size), "8192")
					begin, wait = append(begin, start), append(wait, cmd.Wait)
				}
				if err := a.Started(); err != nil {
					b.Fatal(err)
				}
				before := ownCPU(b)
				b.StartTimer()
				start := time.Now()
				for _, f := range begin {
					f()
				}
				for _, f := range wait {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
				if mode == "plain" {
					start, before = time.Now(), ownCPU(b)
					for i := range ws {
						copyFile(b, console[0], a.Sink(i).StdoutPath)
						copyFile(b, console[1], a.Sink(i).StderrPath)
					}
				}
				stats, err := a.Finish(b.Context())
				if err != nil || stats.LostBytes != 0 {
					b.Fatalf("%+v, %v", stats, err)
				}
				wall += time.Since(start).Seconds()
				cpu += ownCPU(b) - before
				b.StopTimer()
				if err := run.Close(true); err != nil {
					b.Fatal(err)
				}
				os.RemoveAll(dir)
				b.StartTimer()
			}
			total := float64(b.N * workers * lines * size)
			b.ReportMetric(total/1e6/wall, "MB/s")
			b.ReportMetric(cpu/(total/1e9), "cpu-s/GB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func copyFile(b *testing.B, to *os.File, from string) {
	b.Helper()
	f, err := os.Open(from)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 256<<10)
	if _, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{f}, buf); err != nil {
		b.Fatal(err)
	}
}

// ownCPU returns this process's CPU seconds.
func ownCPU(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// BenchmarkLatency measures from a worker's write of a line to its arrival at
// the reader of the console, a line every two milliseconds, with and without two
// workers beside it that write as fast as they can. direct is the floor: the
// worker writes to the pipe.
func BenchmarkLatency(b *testing.B) {
	for _, console := range []string{"direct", "pipe", "pty"} {
		for _, busy := range []int{0, 2} {
			b.Run(fmt.Sprintf("%s/busy=%d", console, busy), func(b *testing.B) {
				var agent, reader *os.File
				if console != "pty" {
					r, w, err := os.Pipe()
					if err != nil {
						b.Fatal(err)
					}
					agent, reader = w, r
				} else {
					agent, reader = openTerminal(b)
				}
				null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
				if err != nil {
					b.Fatal(err)
				}
				defer null.Close()
				run, err := logs.New(logs.Config{
					Dir: b.TempDir(), Tee: logs.StdSpec{ByRank: map[int]logs.Std{0: logs.StdOut, 1: logs.StdErr, 2: logs.StdErr}},
					Stdout: agent, Stderr: null,
				})
				if err != nil {
					b.Fatal(err)
				}
				workers := []logs.Worker{{LocalRank: 0}, {LocalRank: 1}, {LocalRank: 2}}
				a, err := run.Attempt(0, workers)
				if err != nil {
					b.Fatal(err)
				}
				var stop []func() error
				for i := range busy {
					begin, cmd := startChild(b, null, a.Sink(1+i).Stderr, "flood", "1000000000", "128", "8192")
					begin()
					stop = append(stop, func() error { cmd.Process.Kill(); cmd.Wait(); return nil })
				}
				in, out, err := os.Pipe()
				if err != nil {
					b.Fatal(err)
				}
				echo := exec.Command(os.Args[0])
				echo.Env = append(os.Environ(), childEnv+"=echo")
				echo.Stdin, echo.Stdout, echo.Stderr = in, a.Sink(0).Stdout, os.Stderr
				if console == "direct" {
					echo.Stdout = agent
				}
				if err := echo.Start(); err != nil {
					b.Fatal(err)
				}
				in.Close()
				if err := a.Started(); err != nil {
					b.Fatal(err)
				}
				lines := bufio.NewReader(reader)
				took := make([]time.Duration, 0, b.N)
				for b.Loop() {
					time.Sleep(2 * time.Millisecond) // lines come one by one
					start := time.Now()
					if _, err := out.Write([]byte("a line\n")); err != nil {
						b.Fatal(err)
					}
					if _, err := lines.ReadSlice('\n'); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(start))
				}
				out.Close()
				for _, f := range append(stop, echo.Wait) {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := a.Finish(b.Context()); err != nil {
					b.Fatal(err)
				}
				if err := run.Close(true); err != nil {
					b.Fatal(err)
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
