package process

import (
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/cgroup"
)

// A Group is a set of workers started together. All methods may be called
// concurrently.
type Group struct {
	cfg    Config
	sup    *Supervisor
	log    *slog.Logger
	pids   map[int]int
	result *Result
	done   chan struct{} // closed once result is complete

	workers []*worker
	exits   chan *worker // a leader has ended
	gone    chan *worker // what a worker left behind is gone
	stops   chan stopRequest
}

type stopRequest struct {
	sig   syscall.Signal
	grace time.Duration
}

// A worker is one process that the group started. Only the group's goroutine
// touches it, except where noted.
type worker struct {
	rank, pid int
	start     uint64   // start time in clock ticks, which tells pids apart
	pidfd     *os.File // readable once the leader has ended
	cgroup    *cgroup.Dir
	tag       string // an environment entry that its descendants inherit
	started   int64  // time since boot in microseconds
	oomBefore oomCounts
	call      *call // of a function worker

	exited bool           // the leader has ended
	swept  bool           // and nothing is left of it
	sent   syscall.Signal // what the group sent it last
	cut    chan struct{}  // closed to make a sweep under way kill at once
	cutYet bool
	dSince time.Time // since when it has been seen in uninterruptible sleep
}

// run owns the group until every worker has ended and nothing is left of it.
func (g *Group) run() {
	defer close(g.done)
	var (
		killAt    = newDeadline() // end of the grace
		abandonAt = newDeadline() // end of the wait after SIGKILL
		dPoll     <-chan time.Time
		stopping  bool
		killed    bool
		left      = len(g.workers)
	)
	defer killAt.stop()
	defer abandonAt.stop()
	if t := g.cfg.UninterruptibleTimeout; t > 0 && left > 0 {
		ticker := time.NewTicker(max(min(t/4, time.Second), time.Millisecond))
		defer ticker.Stop()
		dPoll = ticker.C
	}
	kill := func() {
		killed = true
		killAt.stop()
		for _, w := range g.workers {
			if !w.exited {
				if stopping && w.sent != syscall.SIGKILL {
					g.log.Warn("worker did not end in time; killing it", "local_rank", w.rank, "pid", w.pid, "signal", SignalName(w.sent))
				}
				g.signal(w, syscall.SIGKILL)
			}
			w.cutSweep()
		}
		abandonAt.set(killGrace)
	}
	stop := func(r stopRequest) {
		first := !stopping
		stopping = true
		if r.grace <= 0 || r.sig == syscall.SIGKILL {
			if !killed {
				if r.sig != syscall.SIGKILL && first {
					g.signalAll(r.sig)
				}
				kill()
			}
			return
		}
		if first || !killed {
			g.signalAll(r.sig)
			killAt.earlier(r.grace)
		}
	}

	for left > 0 {
		select {
		case w := <-g.exits:
			exit := g.reapExit(w)
			if exit.Code != 0 && !stopping {
				stop(stopRequest{syscall.SIGTERM, g.cfg.Grace})
			}
			// The rest can wait until the others know.
			if exit.Code == -int(syscall.SIGKILL) && exit.StoppedBy != syscall.SIGKILL {
				exit.OOMKilled = oomEvidence(w)
			}
			if w.call != nil {
				exit.Value, exit.Err = w.call.result()
			}
			g.record(exit)
			grace := g.leftoverGrace()
			if killed {
				grace = 0
			}
			go g.sweep(w, grace)
		case w := <-g.gone:
			if !w.swept {
				w.swept = true
				left--
			}
		case r := <-g.stops:
			stop(r)
		case <-killAt.c():
			kill()
		case <-abandonAt.c():
			for _, w := range g.workers {
				if !w.swept {
					if !w.exited {
						g.abandon(w)
					}
					w.swept = true
					left--
				}
			}
		case now := <-dPoll:
			if !stopping && g.stuck(now) {
				g.result.Uninterruptible = true
				stop(stopRequest{syscall.SIGTERM, g.cfg.Grace})
			}
		}
	}
	for _, w := range g.workers {
		w.close(g.sup)
	}
}

// leftoverGrace is how long what a worker left behind has to end by itself.
func (g *Group) leftoverGrace() time.Duration {
	grace := g.cfg.LeftoverGrace
	if grace == 0 {
		grace = DefaultLeftoverGrace
	}
	return min(grace, g.cfg.Grace)
}

func (g *Group) signalAll(sig syscall.Signal) {
	for _, w := range g.workers {
		if !w.exited {
			g.log.Info("sending process closing signal", "local_rank", w.rank, "pid", w.pid, "signal", SignalName(sig))
			g.signal(w, sig)
		}
	}
}

// signal signals the process group of a worker whose leader has not been reaped,
// so that neither its pid nor its process group can be another's.
func (g *Group) signal(w *worker, sig syscall.Signal) {
	w.sent = sig
	if err := syscall.Kill(-w.pid, sig); err != nil && err != syscall.ESRCH {
		g.log.Warn("signal worker", "local_rank", w.rank, "pid", w.pid, "signal", SignalName(sig), "error", err)
	}
}

// await waits for the leader to end, without reaping it, and tells the group.
func (g *Group) await(w *worker) {
	conn, err := w.pidfd.SyscallConn()
	if err == nil {
		err = conn.Read(func(fd uintptr) bool {
			var info unix.Siginfo
			for {
				err := unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
				if err != unix.EINTR {
					// A zero signal number: it has not ended yet.
					return err != nil || info.Signo != 0
				}
			}
		})
	}
	if err != nil {
		g.log.Error("wait for worker", "local_rank", w.rank, "pid", w.pid, "error", err)
	}
	g.exits <- w
}

// reapExit says how a worker ended. What it left in its process group is
// signalled before the leader is reaped, while the group's number is still its
// own.
func (g *Group) reapExit(w *worker) Exit {
	now := time.Now()
	w.exited = true
	sig := syscall.SIGTERM
	if w.sent == syscall.SIGKILL {
		sig = syscall.SIGKILL
	}
	_ = syscall.Kill(-w.pid, sig)
	exit := Exit{LocalRank: w.rank, PID: w.pid, Time: now, StoppedBy: w.sent, ErrorFile: errorFile(w.tag)}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(w.pid, &status, 0, nil)
		if err == nil {
			break
		}
		if err != syscall.EINTR {
			g.log.Error("reap worker", "local_rank", w.rank, "pid", w.pid, "error", err)
			exit.Code = 1
			return exit
		}
	}
	switch {
	case status.Signaled():
		exit.Code = -int(status.Signal())
		exit.CoreDumped = status.CoreDump()
	default:
		exit.Code = status.ExitStatus()
	}
	return exit
}

func (g *Group) record(exit Exit) {
	g.result.Exits[exit.LocalRank] = exit
	if exit.Code != 0 {
		g.result.Failures[exit.LocalRank] = exit
	}
}

// abandon gives up on a worker that SIGKILL did not end.
func (g *Group) abandon(w *worker) {
	where := waitChannel(w.pid)
	g.log.Error("worker did not end after SIGKILL and is left behind; it may sit in the kernel on a device or a file system, and the host may have to be restarted",
		"local_rank", w.rank, "pid", w.pid, "wait_channel", where)
	g.result.Uninterruptible = true
	g.record(Exit{LocalRank: w.rank, PID: w.pid, Code: -int(syscall.SIGKILL), Time: time.Now(),
		StoppedBy: w.sent, Abandoned: where, ErrorFile: errorFile(w.tag)})
}

// stuck says whether a worker has been in uninterruptible sleep for too long.
func (g *Group) stuck(now time.Time) bool {
	stuck := false
	for _, w := range g.workers {
		if w.exited {
			continue
		}
		st, err := readStat(w.pid)
		if err != nil || st.state != 'D' {
			w.dSince = time.Time{}
			continue
		}
		if w.dSince.IsZero() {
			w.dSince = now
			g.log.Warn("worker entered uninterruptible sleep", "local_rank", w.rank, "pid", w.pid, "wait_channel", waitChannel(w.pid))
		}
		if since := now.Sub(w.dSince); since >= g.cfg.UninterruptibleTimeout {
			g.log.Error("worker is stuck in uninterruptible sleep (D-state); stopping the group and disabling restarts",
				"local_rank", w.rank, "pid", w.pid, "since", since, "wait_channel", waitChannel(w.pid))
			stuck = true
		}
	}
	return stuck
}

func (w *worker) cutSweep() {
	if !w.cutYet {
		w.cutYet = true
		close(w.cut)
	}
}

func (w *worker) close(sup *Supervisor) {
	w.pidfd.Close()
	sup.forget(w)
}

// errorFile takes the path out of the tag.
func errorFile(tag string) string {
	path, _ := strings.CutPrefix(tag, errorFileVar+"=")
	return path
}

const errorFileVar = "TORCHELASTIC_ERROR_FILE"

// A deadline is a timer that may not be set.
type deadline struct {
	timer *time.Timer
	at    time.Time
}

func newDeadline() *deadline { return &deadline{} }

func (d *deadline) c() <-chan time.Time {
	if d.timer == nil {
		return nil
	}
	return d.timer.C
}

func (d *deadline) set(after time.Duration) {
	d.stop()
	d.at = time.Now().Add(after)
	d.timer = time.NewTimer(after)
}

// earlier sets the deadline unless an earlier one is set.
func (d *deadline) earlier(after time.Duration) {
	if d.timer == nil || time.Now().Add(after).Before(d.at) {
		d.set(after)
	}
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
