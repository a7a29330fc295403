package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/wait/sleep"
)

// leastKillWait is the least time that a process has to disappear after SIGKILL
// before it may count as stuck in the kernel; mostKillWait is when it does,
// whatever it seems to be doing: freeing a large memory takes seconds.
const (
	leastKillWait = 2 * time.Second
	mostKillWait  = 30 * time.Second
)

// mostUnheeded is how long before the end of the grace Config.Unheeded is called at
// the earliest.
const mostUnheeded = 5 * time.Second

// A Group is a set of workers that Supervisor.Start has started together. Wait says how it ended,
// after all that the workers left behind has ended, too; Failed tells of the first failure as soon
// as it happens. When a worker fails, the Group stops the others by itself, with Config.Grace
// (not with Config.Apart). Close and Kill stop it before, and it needs neither after its end. All
// methods may be called concurrently.
// Source: PContext in multiprocessing/api.py.
type Group struct {
	// A group has one goroutine, run. Others send to its channels: the watcher sends
	// events, Close and Kill send stops. So no field needs a lock:
	//
	//   - cfg, sup, log, number, watch and oomBase are set before the first worker is forked.
	//   - workers is filled by the fork thread before run begins; run adds to it. A worker's rank
	//     and pid never change; everything else in it is run's from then on.
	//   - result is run's until done is closed, and nobody changes it afterwards.
	//   - The fields below are run's alone. state only goes up: running, stopping,
	//     killing.

	cfg    Config
	sup    *Supervisor
	log    *slog.Logger
	number int // of the Supervisor's groups
	watch  *watcher
	oomBase

	mu      sync.Mutex // held by run to change workers, and by others to read it
	workers []*worker  // those that were started: the first by rank, then what Replace started
	inbox   inbox
	failed  chan Exit // gets the first failure, with Config.Apart each; there is room for it
	result  *Result
	done    chan struct{} // closed once result is complete

	state    stateOfGroup
	told     bool // somebody stops the group, not a failure in it
	live     int  // workers that are not gone
	due      deadlines
	census   *census // what the look at all processes has found, until onTime returns
	unheeded unheeded
}

// inbox is what others send to run.
type inbox struct {
	events chan event
	stops  chan stopRequest
	asked  chan signalRequest
	more   chan replaceRequest
}

// deadlines are those of run; zero where there is none. kill is set only while stopping, abandon and
// giveUp only while killing, look only while running.
type deadlines struct {
	kill     time.Time     // the end of the grace
	abandon  time.Time     // when to look whether a killed worker is stuck
	giveUp   time.Time     // when a killed worker counts as stuck for certain
	look     time.Time     // the next look for uninterruptible sleep
	clear    time.Time     // not before it does clear look at all processes again: that takes half the time at most
	killWait time.Duration // between SIGKILL and abandon
}

// unheeded is the call of Config.Unheeded, of which there is one at most.
type unheeded struct {
	at   time.Time          // when it is due; zero: never, or it has been
	end  context.CancelFunc // nil before it
	call sync.WaitGroup
}

type stateOfGroup int

const (
	running  stateOfGroup = iota
	stopping              // the workers have a signal and some grace
	killing               // they have SIGKILL
)

type stopRequest struct {
	sig   syscall.Signal
	grace time.Duration
}

type signalRequest struct {
	localRank int
	sig       syscall.Signal
	sent      chan bool // has room for the answer
}

// An event is the end of a worker's leader, or of something that it left behind.
type event struct {
	w   *worker
	l   *leftover // nil for the leader
	at  time.Time
	end ending // of the leader
}

// An ending is what the kernel says about a process that has ended.
type ending struct {
	code         int // -N for signal N
	core         bool
	user, system time.Duration
	maxRSS       int64
}

// A worker is one process that the group started. The fork thread makes it; from then on
// it is run's, and other goroutines use no more of it than its rank and pid.
//
//	alive   The group may signal it, and notes that in StoppedBy and Uninterruptible of
//	        exit. Between its end and the event of that it is alive here only (hasEnded).
//	ended   onEnd has filled exit, except for what a function returned. left is in use.
//	gone    Its pid may be another process's. finish has emptied left and system.
//
// A worker that SIGKILL does not end goes from alive to gone (abandon).
type worker struct {
	rank, pid  int
	generation int // above 0: it is a replacement
	stage      stage
	exit       Exit
	tag        string    // an environment entry that its descendants inherit
	call       *call     // of a function worker; has goroutines of its own until its finish
	dSince     time.Time // since when it is in uninterruptible sleep; zero if it is not
	left       remains
	system     workerSystem
}

// remains are the processes that a worker left behind, while clear ends them:
//
//	none found   all is nil
//	no signal    termAt is when they get one; isHelped: that is after Config.HelperTimeout
//	SIGTERM      killAt is the end of their grace; zero for those of a worker that was told to stop
//	SIGKILL      killAt is zero; at lostAt the group gives up those that are still there
//
// A leftover that the watcher cannot watch has no event of its end; lookAt is when to
// look for it again then, pause after the look before.
type remains struct {
	all            map[processID]*leftover
	termAt         time.Time
	isHelped       bool
	killAt, lostAt time.Time
	lookAt         time.Time
	pause          time.Duration
}

// A stage is where a worker stands.
type stage int

const (
	alive stage = iota
	ended       // the leader is a zombie: its number, and its group's, is still reserved
	gone        // it is reaped, and nothing is left of it
)

// A processID names a process for good.
type processID struct {
	pid   int
	start uint64
}

// newGroup prepares a group of workers that are not forked yet.
func newGroup(s *Supervisor, cfg Config) (*Group, error) {
	n := cfg.size()
	g := &Group{
		cfg: cfg, sup: s, log: cfg.Logger,
		inbox:  inbox{make(chan event), make(chan stopRequest), make(chan signalRequest), make(chan replaceRequest)},
		failed: make(chan Exit, n+1),
		result: &Result{
			Exits: make(map[int]Exit, n), Failures: map[int]Exit{},
			Stdouts: make(map[int]string, n), Stderrs: make(map[int]string, n),
		},
		done: make(chan struct{}),
	}
	var err error
	g.watch, err = newWatcher(s, g.inbox.events)
	return g, err
}

// Wait returns the result once all workers have ended and everything they left
// behind is gone, or ctx's cause; it stops nothing by itself. It may be called any
// number of times.
// Source: PContext.wait.
func (g *Group) Wait(ctx context.Context) (*Result, error) {
	if err := sleep.Until(ctx, g.done); err != nil {
		return nil, err
	}
	return g.result, nil
}

// Done is closed when Wait has a result.
func (g *Group) Done() <-chan struct{} { return g.done }

// Failed delivers the end of the first worker that failed by itself as soon as it
// has ended, while its peers are still being stopped, or with Config.Apart of each that
// fails. Value and Err of a function are not known then. Nothing comes where no worker fails.
func (g *Group) Failed() <-chan Exit { return g.failed }

// PIDs returns the workers' process IDs by local rank, also after they ended.
// Source: PContext.pids.
func (g *Group) PIDs() map[int]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	pids := make(map[int]int, len(g.workers))
	for _, w := range g.workers {
		pids[w.rank] = w.pid
	}
	return pids
}

// ErrNoReplacement matches the error of a Replace that comes too late.
var ErrNoReplacement = errors.New("process: the group has ended, or is being stopped")

type replaceRequest struct {
	localRank int
	args      []string
	env       map[string]string
	started   chan error // has room for the answer
}

// Replace starts another worker in place of one that has failed, with these arguments and
// variables instead of those of Config. It writes to the same files as the failed one, which the
// Logs have to keep open. Only groups with Config.Apart whose workers are programs have it. The
// Result has the exit of the last worker of a local rank.
func (g *Group) Replace(localRank int, args []string, env map[string]string) error {
	r := replaceRequest{localRank, args, env, make(chan error, 1)}
	select {
	case g.inbox.more <- r:
		return <-r.started
	case <-g.done:
		return ErrNoReplacement
	}
}

// replace does on the group's goroutine what Replace asks for. If processes of the failed worker are
// left, they are still being ended beside the new worker.
func (g *Group) replace(r replaceRequest) error {
	last := slices.IndexFunc(g.workers, func(w *worker) bool { return w.rank == r.localRank && w.stage == alive })
	if g.state != running || last >= 0 || g.cfg.Func != "" || r.localRank < 0 || r.localRank >= g.cfg.size() {
		return fmt.Errorf("%w: no worker for local rank %d", ErrNoReplacement, r.localRank)
	}
	cfg := g.cfg
	env := map[string]string{}
	maps.Copy(env, r.env)
	if g.cfg.Logs != nil {
		// Another name than the last worker's, by which what that one has left behind is known.
		if file := g.cfg.sinks[r.localRank].ErrorFile; file != "" {
			ext := filepath.Ext(file)
			env[errorFileVar] = fmt.Sprintf("%s.%d%s", strings.TrimSuffix(file, ext), len(g.workers), ext)
		}
	}
	cfg.Args, cfg.Envs = map[int][]string{r.localRank: r.args}, map[int]map[string]string{r.localRank: env}
	p, err := g.plan(&cfg, r.localRank, cfg.Stdin)
	if err != nil {
		return err
	}
	p.generation = len(g.workers)
	forked := make(chan error, 1)
	g.sup.forks <- func() { forked <- g.forkWorker(&p) } // the thread is there: Close waits for this group
	if err := <-forked; err != nil {
		return &StartError{r.localRank, p.path, err}
	}
	g.mu.Lock()
	g.workers = append(g.workers, p.worker)
	g.mu.Unlock()
	g.live++
	return nil
}

// Close sends sig to every worker's process group (0, or no signal: SIGTERM), gives them grace,
// then kills what is left, and returns when everything has ended. Without grace it
// kills at once. A group that is being stopped already is not signalled again and
// keeps the earlier of the two deadlines; one that has ended is left alone.
//
// What could not be ended is in the Result.
// Source: PContext.close.
func (g *Group) Close(sig syscall.Signal, grace time.Duration) {
	if sig <= 0 || sig > maxSignal {
		sig = syscall.SIGTERM
	}
	if sig == syscall.SIGKILL {
		grace = 0
	}
	select {
	case g.inbox.stops <- stopRequest{sig, grace}:
		<-g.done
	case <-g.done:
	}
}

// Kill cuts the grace of a stop under way, or kills a group that runs. It does
// not wait.
func (g *Group) Kill() {
	select {
	case g.inbox.stops <- stopRequest{syscall.SIGKILL, 0}:
	case <-g.done:
	}
}

// Signal sends sig to the process of one worker, not to its descendants, and reports whether it
// still ran. If the worker ends by the signal, that is its failure, as at any other time.
func (g *Group) Signal(localRank int, sig syscall.Signal) bool {
	r := signalRequest{localRank, sig, make(chan bool, 1)}
	select {
	case g.inbox.asked <- r:
		return <-r.sent
	case <-g.done:
		return false
	}
}

// signalOne is Signal's other half. The number of a worker that is alive is still its own, since
// nobody has reaped it.
func (g *Group) signalOne(r signalRequest) {
	for _, w := range g.workers {
		if w.rank == r.localRank && w.stage == alive && !w.hasEnded() {
			r.sent <- syscall.Kill(w.pid, r.sig) == nil
			return
		}
	}
	r.sent <- false
}

// A plan is a worker that is not started yet, and what it takes to start it.
type plan struct {
	*worker
	path  string
	argv  []string
	env   []string
	stdio [3]*os.File
}

const maxSignal = 64

const errorFileVar = "TORCHELASTIC_ERROR_FILE"

// fork starts the workers in rank order. It runs on the fork thread. It finds out what it
// can before the first fork, so that most mistakes start nothing.
func (g *Group) fork() error {
	cfg := &g.cfg
	stdin := cfg.Stdin
	if cfg.Func != "" {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return &StartError{0, selfPath(), err}
		}
		defer null.Close()
		stdin = null
	}
	plans := make([]plan, cfg.size())
	for i := range plans {
		var err error
		if plans[i], err = g.plan(cfg, i, stdin); err != nil {
			return err
		}
	}
	g.prepare(plans)
	g.sup.guard.ensure()
	for i := range plans {
		p := &plans[i]
		if err := g.forkWorker(p); err != nil {
			return &StartError{i, p.path, err}
		}
		g.workers = append(g.workers, p.worker)
	}
	return nil
}

// plan prepares the start of one worker.
func (g *Group) plan(cfg *Config, i int, stdin *os.File) (p plan, err error) {
	p.worker = &worker{rank: i, exit: Exit{LocalRank: i}}
	p.stdio = [3]*os.File{stdin, os.Stdout, os.Stderr}
	overlay := cfg.Envs[i]
	if cfg.Logs != nil {
		sink := cfg.sinks[i]
		p.stdio[1], p.stdio[2] = sink.Stdout, sink.Stderr
		g.result.Stdouts[i], g.result.Stderrs[i] = sink.StdoutPath, sink.StderrPath
		overlay = map[string]string{errorFileVar: sink.ErrorFile}
		maps.Copy(overlay, cfg.Envs[i])
	}
	p.env = environ(cfg.Env, overlay)
	if p.exit.ErrorFile = overlay[errorFileVar]; p.exit.ErrorFile != "" {
		p.tag = errorFileVar + "=" + p.exit.ErrorFile
	}
	if cfg.Func != "" {
		p.path, p.argv = selfPath(), os.Args[:1]
		return p, nil
	}
	if p.path, err = programIn(p.env, cfg.Entrypoint); err != nil {
		return p, &StartError{i, cfg.Entrypoint, err}
	}
	p.argv = append([]string{cfg.Entrypoint}, cfg.Args[i]...)
	return p, nil
}

// forkWorker starts one worker and lets the watcher watch it.
func (g *Group) forkWorker(p *plan) error {
	w := p.worker
	if g.cfg.Func != "" {
		var err error
		if w.call, err = newCall(g.cfg.input(w.rank)); err != nil {
			return err
		}
		defer w.call.forked()
		p.env = append(p.env, w.call.env(g.cfg.Func, len(g.cfg.ExtraFiles[w.rank])))
	}
	s := g.sup
	s.forking.Lock()
	defer s.forking.Unlock()
	if err := g.spawn(p); err != nil {
		return explainExec(p.path, err)
	}
	s.remember(w.pid)
	w.exit.PID = w.pid
	w.call.start()
	g.watch.worker(w)
	return nil
}

// attr is what is the same on all systems: a worker leads a session, and has these files.
func (g *Group) attr(p *plan) *syscall.ProcAttr {
	attr := &syscall.ProcAttr{Env: p.env, Sys: &syscall.SysProcAttr{Setsid: true}}
	for _, f := range slices.Concat(p.stdio[:], g.cfg.ExtraFiles[p.rank]) {
		attr.Files = append(attr.Files, f.Fd())
	}
	if p.call != nil {
		attr.Files = append(attr.Files, p.call.childEnds()...)
	}
	return attr
}

// run owns the group until every worker is gone.
func (g *Group) run() {
	defer close(g.done)
	g.live, g.due.clear = len(g.workers), time.Now()
	if g.cfg.UninterruptibleTimeout > 0 && g.live > 0 {
		g.due.look = time.Now().Add(g.lookInterval())
	}
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	for next := g.onTime(time.Now()); g.live > 0; next = g.onTime(time.Now()) {
		if next.IsZero() {
			alarm.Stop()
		} else {
			alarm.Reset(time.Until(next))
		}
		select {
		case e := <-g.inbox.events:
			if e.l == nil {
				g.onEnd(e)
			} else {
				g.onLeftoverEnd(e)
			}
		case r := <-g.inbox.stops:
			g.told = g.told || r.grace > 0
			g.stop(r.sig, r.grace)
		case r := <-g.inbox.asked:
			g.signalOne(r)
		case r := <-g.inbox.more:
			r.started <- g.replace(r)
		case <-alarm.C:
		}
	}
	g.endUnheeded()
	g.unheeded.call.Wait()
	g.watch.close()
	for _, w := range g.workers {
		if w.call != nil {
			w.call.finish(&w.exit)
		}
		g.result.Exits[w.rank] = w.exit
		if delete(g.result.Failures, w.rank); w.exit.failed() {
			g.result.Failures[w.rank] = w.exit
		}
	}
}

// onEnd handles the end of a worker's leader. If the other workers have to end, they get
// their signal first of all.
func (g *Group) onEnd(e event) {
	w := e.w
	if w.stage != alive {
		return
	}
	w.stage = ended
	x := &w.exit
	x.Time, x.Code, x.CoreDumped = e.at, e.end.code, e.end.core
	x.UserTime, x.SystemTime, x.MaxRSS = e.end.user, e.end.system, e.end.maxRSS
	first := x.Code != 0 && g.state == running
	if first && !g.cfg.Apart {
		g.stop(syscall.SIGTERM, g.cfg.Grace)
	}
	if x.Code != 0 && x.StoppedBy == 0 { // if not the worker, then perhaps a child of it
		x.OOMKilled = g.oomEvidence(w)
	}
	if first {
		select {
		case g.failed <- *x:
		default: // nobody has taken those before it; it is in the Result
		}
	}
	g.log.Debug("worker ended", "local_rank", w.rank, "pid", w.pid, "code", x.Code)
	w.left.lookAt = g.due.clear
}

// stop signals the workers that still run and gives them some grace. It continues those
// that somebody has stopped (SIGSTOP, a debugger that left), so that they can end.
func (g *Group) stop(sig syscall.Signal, grace time.Duration) {
	if grace <= 0 {
		g.due.killWait = leastKillWait
		g.kill()
		return
	}
	if g.state == running {
		g.state = stopping
		if pids := g.running(); g.cfg.BeforeStop != nil && len(pids) > 0 {
			g.cfg.BeforeStop(g.failures(), pids)
		}
		var told []*worker
		for _, w := range g.workers {
			if g.signal(w, sig) {
				told = append(told, w)
				_ = syscall.Kill(-w.pid, syscall.SIGCONT) // a stopped process gets a signal only once it is continued
			} else if w.left.isHelped && !w.left.termAt.IsZero() {
				w.left.termAt = time.Now() // a stop does not wait for helpers
			}
		}
		for _, w := range told {
			g.log.Info("sending process closing signal", "local_rank", w.rank, "pid", w.pid,
				"signal", failure.Signal(sig).String())
		}
	}
	if at := time.Now().Add(grace); g.state == stopping && (g.due.kill.IsZero() || at.Before(g.due.kill)) {
		g.due.kill, g.due.killWait = at, max(grace, leastKillWait)
		if g.cfg.Unheeded != nil && g.unheeded.end == nil {
			g.unheeded.at = at.Add(-min(mostUnheeded, grace/2))
		}
	}
}

// failures returns the exits of the workers that have failed, in the order of their ranks.
func (g *Group) failures() (all []Exit) {
	for _, w := range g.workers {
		if w.stage != alive && w.exit.failed() {
			all = append(all, w.exit)
		}
	}
	return all
}

// running returns the pids of the workers that have not ended, by local rank.
func (g *Group) running() map[int]int {
	pids := map[int]int{}
	for _, w := range g.workers {
		if w.stage == alive && !w.hasEnded() {
			pids[w.rank] = w.pid
		}
	}
	return pids
}

// callUnheeded calls Config.Unheeded with the workers that do not heed their signal.
func (g *Group) callUnheeded() {
	g.unheeded.at = time.Time{}
	pids := g.running()
	if len(pids) == 0 {
		return
	}
	var ctx context.Context
	ctx, g.unheeded.end = context.WithCancel(context.Background())
	g.unheeded.call.Go(func() { g.cfg.Unheeded(ctx, pids) })
}

// endUnheeded ends the context of Config.Unheeded, or keeps it from being called.
func (g *Group) endUnheeded() {
	if g.unheeded.at = (time.Time{}); g.unheeded.end != nil {
		g.unheeded.end()
	}
}

// signal signals the process group of a worker that runs. The leader has not been
// reaped, so neither its number nor its group's can be another's. A worker that
// has ended meanwhile did so by itself.
func (g *Group) signal(w *worker, sig syscall.Signal) bool {
	if w.stage != alive || w.hasEnded() {
		return false
	}
	if err := syscall.Kill(-w.pid, sig); err != nil && err != syscall.ESRCH {
		g.log.Warn("cannot signal a worker", "local_rank", w.rank, "pid", w.pid, "signal", failure.Signal(sig).String(),
			"error", err)
	}
	if w.exit.StoppedBy == 0 && w.exit.Uninterruptible == "" {
		w.exit.StoppedBy = sig
	}
	return true
}

// kill sends SIGKILL to everything that is left.
func (g *Group) kill() {
	if g.state == killing {
		return
	}
	graceful := g.state == stopping
	g.state = killing
	g.endUnheeded()
	g.due.kill = time.Time{}
	now := time.Now()
	g.due.abandon, g.due.giveUp = now.Add(g.due.killWait), now.Add(max(g.due.killWait, mostKillWait))
	for _, w := range g.workers {
		if g.signal(w, syscall.SIGKILL) {
			w.killAll()
			if graceful {
				g.log.Warn("worker did not end in time; killing it", "local_rank", w.rank, "pid", w.pid)
			}
		}
	}
	for _, w := range g.workers {
		if w.stage == ended && w.left.lostAt.IsZero() {
			w.left.lookAt = g.due.clear
		}
	}
}

// onTime does what is due and returns the next deadline; zero if there is none. The order
// matters: each deadline comes after all those whose actions can set it.
func (g *Group) onTime(now time.Time) (next time.Time) {
	at := func(deadline *time.Time, do func()) {
		if isDue(*deadline, now) {
			do()
		}
		if !deadline.IsZero() && (next.IsZero() || deadline.Before(next)) {
			next = *deadline
		}
	}
	at(&g.due.look, func() { g.look(now) })
	at(&g.due.kill, g.kill)
	at(&g.unheeded.at, g.callUnheeded)
	for _, w := range g.workers {
		for _, deadline := range []*time.Time{&w.left.lookAt, &w.left.termAt, &w.left.killAt, &w.left.lookAt} {
			at(deadline, func() { g.clear(w) })
		}
		at(&w.left.lostAt, func() {
			g.log.Error("processes that a worker left behind did not end after SIGKILL", "local_rank", w.rank, "pid", w.pid,
				"pids", w.leftPIDs())
			g.finish(w)
		})
	}
	at(&g.due.abandon, func() { g.abandon(now) })
	if g.census != nil {
		g.due.clear, g.census = time.Now().Add(time.Since(now)), nil
	}
	return next
}

// isDue reports whether a deadline is set and has passed.
func isDue(deadline, now time.Time) bool { return !deadline.IsZero() && !now.Before(deadline) }

// abandon gives up workers that SIGKILL does not end because they are stuck in
// the kernel. One that is not in uninterruptible sleep is busy with its end and
// gets more time.
func (g *Group) abandon(now time.Time) {
	g.due.abandon = time.Time{}
	for _, w := range g.workers {
		if w.stage != alive {
			continue
		}
		state, where := kernelState(w.pid)
		if state != 'D' && now.Before(g.due.giveUp) {
			g.due.abandon = now.Add(min(time.Second, g.due.giveUp.Sub(now)))
			continue
		}
		if w.hasEnded() {
			g.due.abandon = now.Add(time.Second) // the event is on its way
			continue
		}
		g.log.Error("worker did not end after SIGKILL and is left behind; it may be stuck in the kernel on a device or a "+
			"file system, and the host may need a restart",
			"local_rank", w.rank, "pid", w.pid, "wait_channel", where)
		g.result.Uninterruptible = true
		w.exit.Code, w.exit.Time, w.exit.Abandoned = -int(syscall.SIGKILL), now, where
		g.finish(w)
	}
}

// lookInterval is how often the workers' states are looked at.
func (g *Group) lookInterval() time.Duration {
	return max(min(g.cfg.UninterruptibleTimeout/4, time.Second), time.Millisecond)
}

// look looks for workers in uninterruptible sleep and stops the group if one has
// been there for too long.
// Source: the D-state check of _monitor_workers in agent/server/local_elastic_agent.py.
func (g *Group) look(now time.Time) {
	g.due.look = time.Time{}
	if g.state != running {
		return
	}
	g.due.look = now.Add(g.lookInterval())
	stuck := false
	for _, w := range g.workers {
		if w.stage != alive {
			continue
		}
		state, where := kernelState(w.pid)
		if state != 'D' {
			w.dSince = time.Time{}
			continue
		}
		if w.dSince.IsZero() {
			w.dSince = now
			g.log.Warn("worker entered uninterruptible sleep (D-state)", "local_rank", w.rank, "pid", w.pid,
				"allowed", g.cfg.UninterruptibleTimeout, "wait_channel", where)
		}
		if since := now.Sub(w.dSince); since >= g.cfg.UninterruptibleTimeout {
			g.log.Error("worker is stuck in uninterruptible sleep (D-state); stopping the group and disabling restarts",
				"local_rank", w.rank, "pid", w.pid, "since", since, "wait_channel", where)
			w.exit.Uninterruptible = fmt.Sprintf("for %.1fs, %s", since.Seconds(), where)
			stuck = true
		}
	}
	if stuck {
		g.result.Uninterruptible = true
		g.stop(syscall.SIGTERM, g.cfg.Grace)
	}
}

// finish lets go of a worker.
func (g *Group) finish(w *worker) {
	w.stage = gone
	for _, l := range w.left.all {
		l.close()
	}
	w.left = remains{}
	w.release(g)
	g.live--
}
