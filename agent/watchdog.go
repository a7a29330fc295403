package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/internal/files/tempdir"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/timer"
)

// A watchdog serves the timers of this host's workers, for all attempts of a run:
// those of torch's FileTimerClient over a FIFO, if that is asked for, and those of
// our own clients over a socket.
type watchdog struct {
	server *timer.Server
	file   *timer.FileServer   // nil where there is no FIFO
	socket *timer.SocketServer // nil where there is no socket
	wg     sync.WaitGroup
	end    context.CancelFunc
}

// startWatchdog begins to serve timers.
// Source: LocalElasticAgent._setup_local_watchdog.
func (a *Agent) startWatchdog() error {
	cfg := timer.Config{RunID: a.cfg.Rendezvous.RunID(), Owns: isDescendant, Reap: a.reap,
		OnExpiry: a.timerExpired, Logger: a.log}
	w := &watchdog{}
	var life context.Context
	life, w.end = context.WithCancel(context.Background())
	serve := func(what string, f func(context.Context) error) {
		w.wg.Go(func() {
			if err := f(life); err != nil {
				a.log.Error("the workers' timers are no longer served", "over", what, "error", err)
			}
		})
	}
	var err error
	if w.server, err = timer.NewServer(cfg); err != nil {
		return err
	}
	if a.cfg.FileTimer {
		path := cmp.Or(a.cfg.TimerFile, filepath.Join(tempdir.Find(), fmt.Sprintf("watchdog_timer_%016x", rand.Uint64())))
		if w.file, err = timer.ListenFIFO(w.server, path); err != nil {
			return errors.Join(fmt.Errorf("serve the workers' timers: %w", err), w.server.Close())
		}
		a.log.Info("serving the workers' timers", "fifo", path)
		serve("FIFO", w.file.Serve)
	}
	serve("timers", w.server.Run)
	if w.socket, err = timer.ListenSocket(w.server, ""); err == nil {
		serve("socket", w.socket.Serve)
	} else if !errors.Is(err, errors.ErrUnsupported) {
		a.log.Warn("no socket for the workers' timers and heartbeats", "error", err)
	}
	if w.file != nil {
		a.cfg.Supervisor.RemoveIfKilled(w.file.Path())
	}
	if w.socket != nil {
		a.cfg.Supervisor.RemoveIfKilled(w.socket.Path(), filepath.Dir(w.socket.Path()))
	}
	a.watchdog.Store(w)
	return nil
}

// stop ends it.
func (w *watchdog) stop() {
	w.end()
	w.wg.Wait()
}

// armWatchdog prepares for the workers of a new attempt: timers of older ones are
// dropped. The FIFO stays, so that no request is lost. It is called before the workers start, or one of their
// timers could be dropped with the old ones.
func (a *Agent) armWatchdog() {
	w := a.watchdog.Load()
	if a.last != nil {
		w.server.Reset(isDescendant)
	}
	if w.file != nil {
		a.emitElsewhere(Watchdog{Name: watchdogStarted})
	}
}

// disarmWatchdog waits until all that the watchdog did to the workers of an attempt, which have
// ended, is recorded.
func (a *Agent) disarmWatchdog() {
	w := a.watchdog.Load()
	w.server.Settle()
	if w.file != nil {
		a.emitElsewhere(Watchdog{Name: watchdogStopped})
	}
}

// env adds what the workers need to find it.
func (w *watchdog) env(env map[string]string) {
	if w.file != nil {
		env[timer.EnvFile] = w.file.Path()
	}
	if w.socket != nil {
		env[timer.EnvSocket] = w.socket.Path()
	}
}

// isDescendant reports whether a process is below this one: a worker, or a process of one. Where
// /proc does not tell, any process that can write the FIFO is believed.
func isDescendant(pid int) bool {
	own, err := procfs.Descends(pid, os.Getpid())
	return own || errors.Is(err, errors.ErrUnsupported)
}

// reap keeps evidence of a process that has missed its deadline, and kills it.
// What follows is what follows from any other failure of a worker.
func (a *Agent) reap(ctx context.Context, e *timer.Expiry) error {
	last := e.Timers[len(e.Timers)-1]
	what := fmt.Sprintf("timer %q ran out at %s", last.ScopeID, last.ExpirationTime.Format("15:04:05.000"))
	s := &a.published
	s.mu.Lock()
	at := s.at
	s.mu.Unlock()
	if at != nil { // a worker's timer may run out before its start is published
		select {
		case <-at.run.started:
		case <-at.run.life.Done(): // its workers may never run
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	group := s.group
	s.mu.Unlock()
	if group != nil {
		pids := group.PIDs()
		for i, pid := range pids {
			if pid == e.PID {
				at.evidence.NoteDeadline(i, what)
			}
		}
		a.emitElsewhere(Suspected{What: fmt.Sprintf("process %d has missed a deadline", e.PID), Why: what, Kills: true})
		at.evidence.CollectOfJob(ctx, at.evidence.JustNow(),
			fmt.Sprintf("process %d has missed a deadline: %s", e.PID, what), pids, true)
		at.evidence.WaitForCulprit(ctx, peers.FailedKey)
	}
	return e.Kill()
}

// The names of events.
// Source: log_event in file_based_local_timer.py.
const (
	watchdogStarted = "watchdog started"
	timerExpired    = "timer expired"
	workerKilled    = "kill worker process"
	watchdogStopped = "watchdog stopped"
)

// timerExpired emits what became of a timer.
func (a *Agent) timerExpired(r timer.Request, killed bool) {
	name := timerExpired
	if killed {
		name = workerKilled
	}
	a.emitElsewhere(Watchdog{name, &r})
}

// heartbeat is a worker's last; nil before the first, and without a watchdog.
func (w *watchdog) heartbeat(pid int) *timer.Heartbeat {
	if w == nil || w.socket == nil {
		return nil
	}
	h, ok := w.socket.Heartbeat(pid)
	if !ok {
		return nil
	}
	return &h
}

// requests is how many requests there were.
func (w *watchdog) requests() int64 {
	s := w.server.Stats()
	return int64(s.Acquired + s.Released + s.Socket.Heartbeats)
}
