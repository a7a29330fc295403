//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/timer"
)

// measureTimer lets muster's server (workload/fifo) and PyTorch's FileTimerServer kill processes
// at their deadlines, and floods their FIFOs. The floor kills with a bare system
// call, and drains the FIFO with cat.
func measureTimer(l *lab) ([]*row, error) {
	half := &row{What: "timer: deadline → process dead", Chart: "timer: deadline → process dead", Goal: 0.001}
	most := &row{What: "timer: the same, p99", Quantile: 0.99, Goal: 0.002}
	slow := &row{What: "timer: deadline → process dead, default interval (10 s)", Chart: "timer: the same, default interval", Goal: 0.001}
	slow99 := &row{What: "timer: the same, p99", Quantile: 0.99, Goal: 0.002}
	full := &row{What: "timer: the same with 100,000 live timers, worst", Quantile: 1, Chart: "timer: the same, 100,000 timers, worst", Goal: 0.005}
	cpu := &row{What: "timer: CPU of a server with 100,000 live timers in an idle minute", Chart: "timer: CPU with 100,000 timers", Unit: seconds, Goal: 0.1}
	wakes := &row{What: "timer: its wake-ups in that minute", Unit: count, GoalText: "0"}
	weight := &row{What: "timer: its memory", Unit: size}
	single := &row{What: "timer: requests/s through the FIFO, one a write", Chart: "timer: requests/s, one a write", Unit: perSecond, Goal: 300e3}
	many := &row{What: "timer: requests/s through the FIFO, 40 a write", Chart: "timer: requests/s, 40 a write", Unit: perSecond, Goal: 1.5e6}
	errs := &row{What: "timer: BlockingIOErrors of PyTorch's client that fills the FIFO for 2 s", Unit: count, GoalText: "0"}
	sent := &row{What: "timer: acquires/s of that client", Unit: perSecond}

	for _, part := range []struct {
		interval string
		rounds   int
		floor    bool // has one
		run      func(s *server) error
	}{
		{"0.1", l.n(10, 2), true, func(s *server) error { return l.timerVictims(s, 20, 17*time.Millisecond, half, most) }},
		{"10", 1, false, func(s *server) error { return l.timerVictims(s, l.n(25, 4), 790*time.Millisecond, slow, slow99) }},
		{"0.1", 1, false, func(s *server) error { return l.timerCrowd(s, full, cpu, wakes, weight) }},
		{"0.1", l.n(5, 2), true, func(s *server) error { return l.timerFlood(s, 1, single) }},
		{"0.1", l.n(5, 2), true, func(s *server) error { return l.timerFlood(s, 40, many) }},
		{"0.1", l.n(3, 1), false, func(s *server) error { return l.timerClient(s, errs, sent) }},
	} {
		var servers []*server
		for _, c := range l.contenders() {
			if c == floor && !part.floor {
				continue
			}
			s, err := l.timerServer(c, part.interval)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c, err)
			}
			servers = append(servers, s)
		}
		for range part.rounds {
			for _, s := range servers {
				if err := part.run(s); err != nil {
					return nil, fmt.Errorf("%s: %w: %s", s.name, err, s.job.console())
				}
			}
		}
		for _, s := range servers {
			if err := s.stop(); err != nil {
				return nil, err
			}
		}
	}
	half.Note = "servers: package timer's, PyTorch's FileTimerServer with the agent's interval of 0.1 s; floor: a thread that sleeps until the deadline and calls kill(2). PyTorch's server kills itself afterwards; here it does not"
	cpu.Note = "measured over a shorter stretch"
	single.Note = "one writer, until all is read; floor: cat"
	socket, err := measureTimerSocket(l)
	return append([]*row{half, most, slow, slow99, full, cpu, wakes, weight, single, many, errs, sent}, socket...), err
}

// timerServer starts a contender's server on a fresh FIFO.
func (l *lab) timerServer(contender, interval string) (*server, error) {
	path := filepath.Join(l.dir, "timer"+strconv.FormatUint(rand.Uint64(), 36))
	switch contender {
	case muster:
		program := filepath.Join(l.dir, "fifo")
		if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "./bench/workload/fifo").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build fifo: %w: %s", err, out)
		}
		return l.announced(contender, []string{program, path, interval})
	case torchrun:
		script, err := filepath.Abs("bench/workload/timer_server.py")
		if err != nil {
			return nil, err
		}
		return l.announced(contender, []string{l.python, script, path, interval})
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, err
	}
	// It opens the FIFO for writing too, so it sees no end of file.
	fifo, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer fifo.Close()
	cat, err := exec.LookPath("cat")
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	j, err := l.start([]string{cat}, console{stdin: fifo, stdout: null})
	return &server{job: j, addr: path, name: contender}, err
}

// timerFIFO opens a server's FIFO, which it reads from then on.
func timerFIFO(s *server) (*os.File, error) {
	// Not through the poller: a write waits for room.
	fd, err := unix.Open(s.addr, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", s.addr, err)
	}
	return os.NewFile(uintptr(fd), s.addr), nil
}

// timerSend writes what send writes and closes the FIFO, as clients do: PyTorch's
// server sleeps while somebody has it open and writes nothing.
func timerSend(s *server, send func(f *os.File) error) error {
	f, err := timerFIFO(s)
	if err != nil {
		return err
	}
	return errors.Join(send(f), timerDrained(f), f.Close())
}

// timerDrained waits until all that was written is read.
func timerDrained(f *os.File) error {
	for end := now() + int64(patience); now() < end; time.Sleep(100 * time.Microsecond) {
		n, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCINQ)
		if err != nil || n == 0 {
			return err
		}
	}
	return errors.New("the FIFO is not read")
}

// timerVictims has processes killed at their deadlines, one by one and apart from
// each other so that every part of a server's interval is met, and adds how late
// each was dead.
func (l *lab) timerVictims(s *server, victims int, apart time.Duration, rows ...*row) error {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		return err
	}
	begin := time.Now().Add(500*time.Millisecond + time.Duration(victims)*5*time.Millisecond)
	mono := now() + int64(time.Until(begin))
	var g errgroup.Group
	var text []byte
	late := make([]float64, victims)
	jobs := make([]*job, victims)
	for i := range victims {
		j, err := l.start([]string{sleep, "1000"}, console{})
		if err != nil {
			return err
		}
		jobs[i] = j
		after := time.Duration(i) * apart
		text = append(timer.Request{PID: j.pid, ScopeID: "bench", ExpirationTime: begin.Add(after), Signal: 9}.AppendJSON(text), '\n')
		g.Go(func() error {
			defer j.discard()
			err := j.wait()
			late[i] = float64(j.end-mono-int64(after)) / 1e9
			if err == nil && (late[i] < 0 || j.status.Signal() != syscall.SIGKILL) {
				err = fmt.Errorf("process %d ended %v s after its deadline, by %v", j.pid, late[i], j.status.Signal())
			}
			return err
		})
	}
	if s.name == floor {
		timerKill(jobs, mono, apart)
	} else if err := timerSend(s, func(f *os.File) error { _, err := f.Write(text); return err }); err != nil {
		return err
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, r := range rows {
		r.add(s.name, late...)
	}
	return nil
}

// timerKill is the floor: it kills jobs from begin on, apart from each other.
func timerKill(jobs []*job, begin int64, apart time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i, j := range jobs {
		at := unix.NsecToTimespec(begin + int64(i)*int64(apart))
		for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &at, nil) == unix.EINTR {
		}
		j.signal(syscall.SIGKILL)
	}
}

// timerLoad registers timers of this process that are far away.
func timerLoad(f *os.File, timers int) error {
	far := time.Now().Truncate(time.Second).Add(time.Hour)
	var text []byte
	for i := range timers {
		r := timer.Request{PID: os.Getpid(), ScopeID: fmt.Sprint("load.py#", i), ExpirationTime: far.Add(time.Duration(i) * time.Millisecond), Signal: 9}
		text = append(r.AppendJSON(text), '\n')
		if len(text) > 3<<10 || i == timers-1 {
			if _, err := f.Write(text); err != nil {
				return err
			}
			text = text[:0]
		}
	}
	return nil
}

// timerCrowd measures a server that has 100,000 timers.
func (l *lab) timerCrowd(s *server, late, cpu, wakes, weight *row) error {
	if err := timerSend(s, func(f *os.File) error { return timerLoad(f, 100_000) }); err != nil {
		return err
	}
	time.Sleep(2 * time.Second)
	stretch := 10 * time.Second
	if l.quick {
		stretch = 4 * time.Second
	}
	before, err := activityOf(s.job.pid)
	if err != nil {
		return err
	}
	time.Sleep(stretch)
	after, err := activityOf(s.job.pid)
	if err != nil {
		return err
	}
	m, err := memoryOf(s.job.pid)
	if err != nil {
		return err
	}
	did := after.minus(before)
	share := float64(time.Minute) / float64(stretch)
	cpu.add(s.name, did.CPU*share)
	wakes.add(s.name, float64(did.Switches)*share)
	weight.add(s.name, m.RSS)
	return l.timerVictims(s, l.n(100, 10), 17*time.Millisecond, late)
}

// timerFlood writes requests for a while.
func (l *lab) timerFlood(s *server, perWrite int, r *row) error {
	f, err := timerFIFO(s)
	if err != nil {
		return err
	}
	defer f.Close()
	far := time.Now().Truncate(time.Second).Add(3600_680_345_800)
	var lines []byte
	for i := range max(perWrite, 2) {
		q := timer.Request{PID: os.Getpid(), ScopeID: fmt.Sprint("/home/user/train.py#", i/2), ExpirationTime: far, Signal: 9}
		if i%2 == 1 {
			q.ExpirationTime, q.Signal = time.Time{}, 0
		}
		lines = append(q.AppendJSON(lines), '\n')
	}
	writes := [][]byte{lines}
	if perWrite == 1 {
		i := bytes.IndexByte(lines, '\n') + 1
		writes = [][]byte{lines[:i], lines[i:]}
	}
	stretch := time.Second
	if l.quick {
		stretch = 300 * time.Millisecond
	}
	n := 0
	begin := now()
	for end := begin + int64(stretch); now() < end; {
		for _, w := range writes {
			if _, err := f.Write(w); err != nil {
				return err
			}
			n += perWrite
		}
	}
	if err := timerDrained(f); err != nil {
		return err
	}
	r.add(s.name, float64(n)/(float64(now()-begin)/1e9))
	return nil
}

// timerClient lets PyTorch's client write as fast as it can.
func (l *lab) timerClient(s *server, full, sent *row) error {
	if l.python == "" {
		return nil
	}
	cmd := exec.Command(l.python, "bench/workload/timer_client.py", s.addr, "2")
	cmd.Env = append(os.Environ(), l.mark)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	var got struct{ Sent, Full float64 }
	if err := json.Unmarshal(out, &got); err != nil {
		return err
	}
	full.add(s.name, got.Full)
	sent.add(s.name, got.Sent/2)
	return nil
}
