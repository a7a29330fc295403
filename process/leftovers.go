package process

import (
	"slices"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/host/procfs"
)

// leftoverLook is after how long clear looks again first for leftovers whose end nothing
// tells; then after twice as long each time, up to 32 times as long.
const leftoverLook = 10 * time.Millisecond

// endTime is how long what a worker left behind has to end by itself before it gets SIGTERM: a
// filter of the worker's output, as in `exec > >(gzip >log.gz)`, has still to read the end of it.
const endTime = 200 * time.Millisecond

// clear ends what a worker left behind (see remains). onTime calls it when the worker has ended, and
// again whenever all that it found has ended or a deadline has passed. Once it finds nothing, the
// worker is gone. With nothing left behind this is two reads of small files.
func (g *Group) clear(w *worker) {
	now, left := time.Now(), &w.left
	left.lookAt = time.Time{}
	left.pause = min(max(leftoverLook, 2*left.pause), 32*leftoverLook)
	for range 100 { // as often as all that was found has ended by itself: something may fork on and on
		found := g.leftovers(w)
		w.drop(found)
		if len(found) == 0 {
			g.finish(w)
			return
		}
		sig := g.stage(w, found, now)
		if sig == syscall.SIGKILL {
			w.killAll()
		}
		waiting := false
		for _, p := range found {
			due := sig
			if sig == syscall.SIGTERM && w.hasTold(p, found) {
				due = 0
			}
			waiting = g.end(w, p, due) || waiting
		}
		if waiting {
			return
		}
		g.census = nil // all of them have ended meanwhile; there may be new ones
	}
	left.lookAt = now.Add(left.pause)
}

// stage sets the deadlines of what a worker left behind and returns the signal that it should have
// by now; 0: none yet.
func (g *Group) stage(w *worker, found []procfs.Stat, now time.Time) syscall.Signal {
	left, first, succeeded := &w.left, w.left.all == nil, w.exit.Code == 0
	grace := g.cfg.leftoverGrace()
	if g.cfg.NoRestart && !succeeded {
		grace = g.cfg.Grace
	}
	if first {
		left.all, left.termAt = map[processID]*leftover{}, now.Add(min(endTime, grace/2))
		g.log.Debug("worker left processes behind", "local_rank", w.rank, "pid", w.pid, "pids", pidsOf(found))
	}
	if isDue(left.termAt, now) && succeeded && g.state == running && g.cfg.HelperTimeout > 0 && !left.isHelped {
		left.isHelped, left.termAt = true, now.Add(g.cfg.HelperTimeout)
		g.log.Warn("a worker has succeeded; waiting for what it left running, such as an upload", "local_rank", w.rank,
			"pid", w.pid, "pids", pidsOf(found), "command", procfs.Command(found[0].PID),
			"until", left.termAt.Format(time.TimeOnly))
	}
	if isDue(left.termAt, now) {
		left.termAt = time.Time{}
		if w.exit.StoppedBy == 0 { // else the group's killAt is theirs
			left.killAt = now.Add(grace)
		}
	}
	if g.told && !left.isHelped && !left.killAt.IsZero() && left.killAt.Before(g.due.kill) {
		left.killAt = g.due.kill // the signal that ended the worker was meant for these
	}
	if left.lostAt.IsZero() && (g.state == killing || isDue(left.killAt, now)) {
		left.termAt, left.killAt, left.lostAt = time.Time{}, time.Time{}, now.Add(leastKillWait)
		if g.state != killing || !first {
			g.log.Warn("killing processes that a worker left behind", "local_rank", w.rank, "pid", w.pid, "pids", pidsOf(found))
		}
	}
	switch {
	case !left.lostAt.IsZero():
		return syscall.SIGKILL
	case left.termAt.IsZero():
		return syscall.SIGTERM
	}
	return 0
}

// hasTold reports whether the stop of a worker has told what it left behind, too: a process in its group
// that does not ignore the signal, or a descendant of one. A second signal may mean not to save its work.
func (w *worker) hasTold(p procfs.Stat, found []procfs.Stat) bool {
	for range found { // there are no more steps; the entries were read one after the other, and may form a circle
		if p.Group == w.pid {
			return w.exit.StoppedBy != 0 && !procfs.Ignores(p.PID, w.exit.StoppedBy)
		}
		i := slices.IndexFunc(found, func(q procfs.Stat) bool { return q.PID == p.Parent })
		if i < 0 {
			break
		}
		p = found[i]
	}
	return false
}

// drop lets go of leftovers that nothing watches and that were not found again.
func (w *worker) drop(found []procfs.Stat) {
	for id, l := range w.left.all {
		if !l.watched && !slices.ContainsFunc(found, func(p procfs.Stat) bool { return id == processID{p.PID, p.Start} }) {
			delete(w.left.all, id)
			l.close()
			l.reap()
		}
	}
}

// end signals something that a worker left behind, once with each signal (0: not yet), and says
// whether it is still there.
func (g *Group) end(w *worker, p procfs.Stat, sig syscall.Signal) bool {
	id := processID{p.PID, p.Start}
	l := w.left.all[id]
	if l == nil {
		if l = g.sup.openLeftover(p); l == nil {
			return false
		}
		w.left.all[id] = l
		g.watch.leftover(w, l)
	}
	if !l.watched {
		w.left.lookAt = time.Now().Add(w.left.pause)
	}
	if sig != 0 && l.sent != sig && l.sent != syscall.SIGKILL {
		l.sent = sig
		if err := l.signal(sig); err != nil && err != syscall.ESRCH {
			g.log.Warn("cannot signal a process that a worker left behind", "local_rank", w.rank, "pid", p.PID,
				"signal", failure.Signal(sig).String(), "error", err)
		}
	}
	return true
}

// onLeftoverEnd handles the end of something that a worker left behind. When it was the last that is known, clear
// looks once more: what has just ended may have started something that nobody has seen.
func (g *Group) onLeftoverEnd(e event) {
	w, id := e.w, processID{e.l.stat.PID, e.l.stat.Start}
	if w.stage != ended || w.left.all[id] != e.l {
		return
	}
	delete(w.left.all, id)
	e.l.close()
	e.l.reap()
	if len(w.left.all) == 0 {
		w.left.lookAt = g.due.clear
	}
}

func (w *worker) leftPIDs() []int {
	var pids []int
	for id := range w.left.all {
		pids = append(pids, id.pid)
	}
	slices.Sort(pids)
	return pids
}

func pidsOf(list []procfs.Stat) []int {
	pids := make([]int, len(list))
	for i, p := range list {
		pids[i] = p.PID
	}
	return pids
}

// closure returns those of all that seed names and all their descendants.
func closure(all []procfs.Stat, seed func(procfs.Stat) bool) []procfs.Stat {
	in := map[int]bool{}
	for _, p := range all {
		if seed(p) {
			in[p.PID] = true
		}
	}
	for grown := len(in) > 0; grown; {
		grown = false
		for _, p := range all {
			if !in[p.PID] && in[p.Parent] {
				in[p.PID], grown = true, true
			}
		}
	}
	return slices.DeleteFunc(all, func(p procfs.Stat) bool { return !in[p.PID] })
}
