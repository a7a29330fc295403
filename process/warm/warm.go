// Package warm starts workers as forks of a template: a Python process that has imported what
// workers import (template.py). A Host keeps one and makes the next. What to import is learnt
// from the workers (memory.go). Where a fork would not be the same as a fresh process, or
// nobody can say, workers start as usual, and the log says why.
package warm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/internal/files/execpath"
	"github.com/muster-run/muster/process"
)

// Config is what a Host needs.
type Config struct {
	Supervisor *process.Supervisor
	// Varies reports whether a variable differs between workers or attempts.
	Varies func(name string) bool
	// Dir holds what is learnt. "" means warm in muster's part of the user's cache.
	Dir string
	// ImportTimeout is how long one module of a template may take, or ten times as long as the
	// whole template before if that is longer. Default 2 minutes.
	ImportTimeout time.Duration
	Logger        *slog.Logger
}

const (
	tries    = 8           // templates that may break a rule, one after the other
	fewTries = 2           // the same while workers wait
	soon     = time.Second // a worker that dies earlier makes the next start cold
)

// When a worker has written what it has imported, and a little later: LEARN_AT in template.py.
var lookAgain = []time.Duration{0, 12 * time.Second, 63 * time.Second}

// A Host starts the groups of one job on this host, one after the other.
//
// Three kinds of goroutines meet in it: the caller of Start; the fork thread, which runs Config.Fork for
// a new group and for a worker that is replaced; and follow, one for each group, which makes the next
// template beside the workers. Whoever changes now, or forks from it, holds mu: no template is closed
// under a fork. follow makes a template without mu, since imports take seconds, and holds it only to
// put the new one in the old one's place: a start meanwhile forks from the old one.
type Host struct {
	cfg    Config
	log    *slog.Logger
	life   context.Context // ends with Close, and when the job is told to stop
	end    context.CancelFunc
	work   sync.WaitGroup           // Prepare, follow and templates
	waits  atomic.Bool              // workers wait for a template
	now    atomic.Pointer[template] // nil without; mu is held to change it
	forked atomic.Int64             // workers that were started warm
	execed atomic.Int64             // and cold
	making sync.Mutex               // held while a template is made beside the workers
	// mu is held while a group starts or a template is made for it, and while one forks. It guards
	// the rest.
	mu     sync.Mutex
	memory *memory // nil before the first start
	off    bool    // no warm starts any more, which has been said
	last   *process.Group
	begun  time.Time // of last, if it was warm
}

// New returns a Host. The caller closes it. ctx cuts its waiting short.
func New(ctx context.Context, cfg Config) *Host {
	h := &Host{cfg: cfg, log: cfg.Logger}
	h.life, h.end = context.WithCancel(ctx)
	return h
}

// Prepare makes the template before there is a group to start. It returns at once; done is closed when
// there is one, or will be none. workers returns what Start will get; it may wait, as that of
// agent.Config.Prepare.
func (h *Host) Prepare(workers func() process.Config) (done <-chan struct{}) {
	got, ended := make(chan process.Config, 1), make(chan struct{})
	go func() { got <- workers() }() // which nobody can cut short
	h.work.Go(func() {
		defer close(ended)
		select {
		case cfg := <-got:
			h.prepare(&cfg)
		case <-h.life.Done():
		}
	})
	return ended
}

func (h *Host) prepare(cfg *process.Config) {
	p, err := newProgram(cfg, h.cfg.Varies)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || h.off || h.life.Err() != nil {
		return // Start gives the reason
	}
	h.remember(p)
	if err := h.ready(p); err != nil && err != errRules && h.life.Err() == nil {
		h.cold(err, true)
	}
}

// Close ends the template.
func (h *Host) Close() {
	h.end() // before mu is taken: a start holds that for as long as a template imports
	h.mu.Lock()
	h.now.Swap(nil).close()
	h.mu.Unlock()
	h.work.Wait()
}

// Start is Supervisor.Start, warm where that is possible.
func (h *Host) Start(cfg process.Config) (*process.Group, error) {
	h.waits.Store(true)
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.waits.Store(false)
	p, err := newProgram(&cfg, h.cfg.Varies)
	forked, started := 0, false
	switch {
	case h.off:
	case err != nil:
		h.cold(err, true)
	case h.diedSoon():
		h.cold(fmt.Errorf("a worker died in its first %v after the warm start before", soon), false)
	default:
		h.remember(p)
		if err := h.ready(p); err != nil {
			h.cold(err, err != errRules)
		}
		if t := h.now.Load(); t != nil {
			cfg.Fork = func(img process.Image, adopt func(int) error) error {
				if started { // this call of Start, which held mu for its own workers, is over
					return h.replace(p, img, adopt)
				}
				err := t.fork(img, adopt, forked == 0)
				if err == nil {
					forked++
				}
				return err
			}
		}
	}
	h.begun = time.Time{}
	if cfg.Fork != nil {
		h.begun = time.Now()
	}
	g, err := h.cfg.Supervisor.Start(cfg)
	started = true // who replaces one of them comes later
	if err == nil {
		h.forked.Add(int64(forked))
		h.execed.Add(int64(len(cfg.Envs) - forked))
	}
	if h.last = g; err == nil && h.memory != nil {
		h.work.Go(func() { h.follow(g, p) })
	}
	return g, err
}

// replace forks a worker in place of one of a group that runs, from what is the template then.
func (h *Host) replace(p *program, img process.Image, adopt func(int) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := errGone
	if t := h.now.Load(); t.isFit() && t.program.same(p) {
		err = t.fork(img, adopt, true)
	}
	if err == nil {
		h.forked.Add(1)
	} else {
		h.execed.Add(1)
	}
	return err
}

// cold says why the workers start cold, or why they do from now on.
func (h *Host) cold(why error, forGood bool) {
	h.off = h.off || forGood
	h.log.Warn("no warm start: workers are started cold", "reason", why)
}

// diedSoon reports whether the last group was warm and a worker of it failed at once.
func (h *Host) diedSoon() bool {
	if h.last == nil || h.begun.IsZero() {
		return false
	}
	r, err := h.last.Wait(h.life)
	if err != nil {
		return false
	}
	for _, exit := range r.Failures {
		if exit.StoppedBy == 0 && exit.Time.Sub(h.begun) < soon {
			return true
		}
	}
	return false
}

// remember opens what is known of a program.
func (h *Host) remember(p *program) {
	if h.memory == nil {
		h.memory = openMemory(h.cfg.Dir, p, h.log)
	}
}

// ready sees to it that there is a template, if there can be one.
func (h *Host) ready(p *program) error {
	if t := h.now.Load(); t.isFit() && t.program.same(p) {
		return nil
	}
	h.now.Swap(nil).close()
	t, err := h.make(p, false)
	h.now.Store(t)
	return err
}

var (
	errGone   = errors.New("the template has ended")
	errSilent = errors.New("the template has not answered")
	errRules  = errors.New("several templates in turn have imported modules that break a rule")
)

// make makes a template, leaving out what breaks a rule.
func (h *Host) make(p *program, idle bool) (*template, error) {
	for n := 0; n < fewTries || n < tries && (idle || !h.waits.Load()); n++ {
		names := h.memory.names(p)
		begun := time.Now()
		t, err := startTemplate(h, p, names, idle)
		if err != nil {
			return nil, err
		}
		left, err := t.load(h.life, max(cmp.Or(h.cfg.ImportTimeout, 2*time.Minute), 10*h.memory.took()),
			func(name, why string) { h.memory.leave(name, why, true) })
		for _, name := range slices.Sorted(maps.Keys(left)) {
			h.memory.leave(name, left[name], false)
		}
		if why, ok := left[""]; ok {
			err = errors.Join(err, errors.New(why))
		}
		switch {
		case err != nil:
			t.close()
			return nil, err
		case t.isReady:
			h.log.Info("the template of warm starts is ready", "modules", t.modules,
				"took", time.Since(begun).Round(time.Millisecond), "pid", t.cmd.Process.Pid)
			t.took = time.Since(begun)
			h.memory.keepTook(time.Since(begun))
			return t, nil
		case len(left) == 0 || slices.Equal(names, h.memory.names(p)):
			state, step := t.lastStep()
			t.close()
			if len(left) == 0 && step != "" && h.memory.blame(step, state) {
				continue
			}
			if step != "" {
				state += ", at the import of " + step
			}
			return nil, fmt.Errorf("the template ended before it was ready: %s", state)
		}
		t.close()
	}
	return nil, errRules
}

// follow makes another template while the workers run, if they have imported more than the
// present one has, or that one is gone.
func (h *Host) follow(g *process.Group, p *program) {
	ctx, cancel := context.WithCancel(h.life)
	defer cancel()
	h.work.Go(func() { _, _ = g.Wait(ctx); cancel() })
	begun := time.Now()
	for looks, made := 0, 0; made < tries; {
		var again <-chan time.Time
		if looks < len(lookAgain) {
			again = time.After(time.Until(begun.Add(lookAgain[looks])))
		}
		select {
		case <-again:
			looks++
		case <-h.now.Load().gone():
			made++
		case <-ctx.Done():
			return
		}
		if !h.improve(ctx, p) {
			return
		}
	}
}

// improve makes another template if there is need, one at a time. It returns false where there can be none.
func (h *Host) improve(ctx context.Context, p *program) bool {
	h.making.Lock()
	defer h.making.Unlock()
	h.mu.Lock()
	off := h.off
	h.mu.Unlock()
	now := h.now.Load()
	if off || ctx.Err() != nil {
		return false
	}
	if now.isFit() && slices.Equal(now.names, h.memory.names(p)) {
		return true
	}
	next, err := h.make(p, true)
	h.mu.Lock()
	old := next
	switch {
	case h.life.Err() != nil:
	case err != nil:
		h.log.Info("no further template for warm starts", "reason", err)
		// As in cold, which the next start would say again.
		h.off = h.off || h.now.Load() == nil && !errors.Is(err, errSilent)
	default:
		old = h.now.Swap(next)
	}
	h.mu.Unlock()
	old.close()
	return err == nil
}

// A program is what all workers of a group run, and with what.
type program struct {
	python, name string   // the interpreter: its path, and argv[0]
	flags        []string // of the interpreter
	how          string   // "" runs a script, "-m" a module, "-c" code
	target       string   // its path, its name, or the code itself
	script       string   // the file that is run, "" if nobody knows
	function     string   // of it, which is run with muster.run; "" for all of it
	cpus         []int    // that it is bound to; nil for all
	env          []string // what all workers have
	varying      []string // names of what they have not in common
}

func (p *program) same(q *program) bool {
	return p.python == q.python && p.how == q.how && p.target == q.target && slices.Equal(p.cpus, q.cpus) &&
		slices.Equal(p.flags, q.flags) && slices.Equal(p.env, q.env)
}

// newProgram says why workers cannot be forks of a template.
func newProgram(cfg *process.Config, varies func(string) bool) (*program, error) {
	if cfg.Func != "" || len(cfg.Args) == 0 {
		return nil, errors.New("they run a function of this program")
	}
	p := &program{name: cfg.Entrypoint}
	base := filepath.Base(cfg.Entrypoint)
	if !strings.HasPrefix(base, "python") {
		return nil, fmt.Errorf("%s is not a Python interpreter by its name", base)
	}
	rest := 0
	for rank, args := range cfg.Args {
		n, err := split(args)
		if err != nil {
			return nil, err
		}
		first := cfg.Args[0]
		if rest = n; rank != 0 && (n > len(first) || !slices.Equal(args[:n], first[:n])) {
			return nil, errors.New("they do not all run the same script")
		}
	}
	head := cfg.Args[0][:rest]
	p.target, head = head[rest-1], head[:rest-1]
	if n := len(head); n > 0 && (head[n-1] == "-m" || head[n-1] == "-c") {
		p.how, head = head[n-1], head[:n-1]
	}
	p.flags = head
	switch args := cfg.Args[0][rest:]; {
	case p.how == "-c" && len(args) > 0 && strings.HasSuffix(args[0], ".py"): // --run-path
		p.script = args[0]
	case p.how == "":
		p.script = p.target
		info, err := os.Stat(p.target)
		switch {
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is not a regular file", p.target)
		}
		if boot := bootLine.FindStringSubmatch(beginning(p.target, 8192)); boot != nil {
			p.function, p.script = boot[1], boot[2]
		}
	}
	values := p.share(cfg, varies)
	var err error
	if p.cpus, err = sameCPUs(cfg, values); err != nil {
		return nil, err
	}
	p.python, err = execpath.Find(cfg.Entrypoint, func(name string) (string, bool) { v, ok := values[name]; return v, ok })
	return p, err
}

// share sorts the variables into those that all workers have and those that vary, and returns all.
func (p *program) share(cfg *process.Config, varies func(string) bool) map[string]string {
	values := map[string]string{}
	vary := map[string]bool{"TORCHELASTIC_ERROR_FILE": true, "MUSTER_WORKER": true} // of package process
	for rank := range cfg.Args {
		for name, value := range cfg.Envs[rank] {
			before, ok := values[name]
			if varies(name) || ok && before != value || len(cfg.Envs) > 1 && !inAll(cfg.Envs, name) {
				vary[name] = true
			}
			values[name] = value
		}
	}
	for _, entry := range slices.Backward(cfg.Env) { // the last of one name counts
		name, value, _ := strings.Cut(entry, "=")
		if _, ok := values[name]; !ok && !varies(name) {
			values[name] = value
		}
	}
	for name, value := range values {
		if !vary[name] {
			p.env = append(p.env, name+"="+value)
		}
	}
	p.varying = slices.Sorted(maps.Keys(vary))
	slices.Sort(p.env)
	return values
}

// bootLine begins the script by which muster.run runs a function.
// Source: Launch.function in python/muster/api.py.
var bootLine = regexp.MustCompile(`^# muster runs (.*) of (.*)\n`)

// beginning returns at most n bytes of a file; "" if it cannot be read.
func beginning(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, n))
	return string(text)
}

// sameCPUs returns the CPUs of a template: what libraries learn of them when they are loaded,
// their number, has to be right for all workers.
func sameCPUs(cfg *process.Config, env map[string]string) ([]int, error) {
	first := cfg.CPUs[0]
	for rank := range cfg.Args {
		if cpus := cfg.CPUs[rank]; len(cpus) != len(first) {
			return nil, errors.New("they are bound to different numbers of CPUs, and libraries count those when they are loaded")
		} else if slices.Equal(cpus, first) {
			continue
		}
		for _, name := range []string{"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"} {
			if _, ok := env[name]; ok {
				return nil, fmt.Errorf("they are bound to different CPUs, and %s has libraries look at those when they are loaded", name)
			}
		}
	}
	return first, nil
}

func inAll(envs map[int]map[string]string, name string) bool {
	for _, env := range envs {
		if _, ok := env[name]; !ok {
			return false
		}
	}
	return true
}

// split returns how many of an interpreter's arguments end with the script, module or code.
func split(args []string) (int, error) {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case (arg == "-m" || arg == "-c") && i+1 < len(args):
			return i + 2, nil
		case arg == "-X" || arg == "-W":
			i++
		case !strings.HasPrefix(arg, "-"):
			return i + 1, nil
		case arg == "-" || strings.Trim(arg[1:], "uObBsSEIPd") != "" && !strings.HasPrefix(arg, "-X") &&
			!strings.HasPrefix(arg, "-W"):
			return 0, fmt.Errorf("the interpreter has the option %s", arg)
		}
	}
	return 0, errors.New("there is no script")
}
