package autopsy

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/flight"
)

// A Group is the ranks that are in the same place.
type Group struct {
	// Name says where, for people: "all_reduce (distributed_c10d.py:4181)".
	Name  string `json:"name"`
	Ranks []int  `json:"ranks"`
	PIDs  []int  `json:"pids"`
	// Hosts are theirs, in a report of several hosts.
	Hosts []string `json:"hosts,omitempty"`
	// Odd says that these ranks differ from most.
	Odd bool `json:"odd,omitempty"`
	// State is the process' state where that is telling: stopped, zombie, gone, …
	State string `json:"state,omitempty"`
	// Collective says that they wait in a function of torch.distributed.
	Collective bool `json:"collective,omitempty"`
	// At is the most telling frame, From the innermost call in code that belongs
	// neither to Python nor to an installed package, if there is one. Their line
	// numbers are the first rank's; Lines has all that occur At.
	At    Frame `json:"at"`
	From  Frame `json:"from"`
	Lines []int `json:"lines,omitempty"`
	// Thread is the telling thread's name where it is not the main thread, and
	// Frames its stack, of the first rank.
	Thread string  `json:"thread,omitempty"`
	Frames []Frame `json:"frames,omitempty"`
	// Children says where the first rank's child processes are.
	Children []string `json:"children,omitempty"`

	unread bool // what they do is not known
	whom   waiting
}

// Ended says that the ranks' processes have ended.
func (g *Group) Ended() bool { return g.State == stateGone || g.State == stateZombie }

// Groups puts the workers together that are in the same place, going by the
// functions of the most telling thread. Groups that differ from most come first.
func (r *Report) Groups() []Group {
	views := r.views()
	var groups []Group
	for _, same := range alike(views, func(v *viewed) string { return v.key }) {
		g := same[0].group
		for _, v := range same[1:] {
			g.Ranks, g.PIDs = append(g.Ranks, v.group.Ranks...), append(g.PIDs, v.group.PIDs...)
			g.Lines = append(g.Lines, v.group.Lines...)
			g.Hosts = append(g.Hosts, v.group.Hosts...)
		}
		slices.Sort(g.Hosts)
		g.Hosts = slices.Compact(g.Hosts)
		slices.Sort(g.Ranks)
		slices.Sort(g.PIDs)
		slices.Sort(g.Lines)
		g.Lines = slices.Compact(g.Lines)
		groups = append(groups, g)
	}
	markOdd(groups)
	if named := r.Named(); named != nil {
		for i := range groups {
			groups[i].Odd = !slices.ContainsFunc(groups[i].Ranks, func(rank int) bool { return !slices.Contains(named, rank) })
		}
	}
	tellApart(groups)
	slices.SortStableFunc(groups, func(a, b Group) int {
		return cmp.Or(before(a.Odd, b.Odd), cmp.Compare(len(a.Ranks), len(b.Ranks)), slices.Compare(a.Ranks, b.Ranks))
	})
	return groups
}

// views are the workers' places.
func (r *Report) views() []viewed {
	shared := make([]viewed, len(r.Shared))
	for i := range r.Shared {
		shared[i] = view(&r.Shared[i])
	}
	views := make([]viewed, len(r.Workers))
	for i := range r.Workers {
		w := &r.Workers[i]
		views[i] = view(w)
		if r.shares(w) {
			own := views[i].group
			views[i] = shared[w.Same-1]
			g := &views[i].group
			g.Ranks, g.PIDs, g.Hosts, g.Lines = own.Ranks, own.PIDs, own.Hosts, slices.Clone(g.Lines)
		}
	}
	return views
}

// shares reports whether a worker's stacks are in Shared.
func (r *Report) shares(w *Worker) bool { return w.Same > 0 && w.Same <= len(r.Shared) }

// alike puts values with the same key together, in the order of the first of each.
func alike[T any](list []T, key func(*T) string) (groups [][]*T) {
	index := map[string]int{}
	for i := range list {
		k := key(&list[i])
		at, known := index[k]
		if !known {
			at = len(groups)
			index[k] = at
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], &list[i])
	}
	return groups
}

// before orders what something is true of before what it is not.
func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// tellApart adds the caller to names that more than one group has.
func tellApart(groups []Group) {
	count := map[string]int{}
	for _, g := range groups {
		count[g.Name]++
	}
	for i := range groups {
		caller := from(groups[i].From)
		if g := &groups[i]; count[g.Name] > 1 && !strings.Contains(g.Name, caller) {
			g.Name += caller
		}
	}
}

// markOdd marks the groups that differ: the smaller ones and, among groups of
// equal size, those for which others wait in a collective or, where none does, on a GPU, which
// may be in one. A process that cannot continue is always odd among others that could. One whose
// stacks could not be read, as those of others could, is not: nobody knows what it does.
func markOdd(groups []Group) {
	largest, most, able, read := 0, onNobody, false, false
	for _, g := range groups {
		able, read = able || g.State == "", read || g.Frames != nil
	}
	unknown := func(g *Group) bool { return g.unread && g.State == "" && read }
	tells := func(g *Group) bool { return (g.State == "" || !able) && !unknown(g) }
	for _, g := range groups {
		if tells(&g) {
			largest = max(largest, len(g.Ranks))
		}
	}
	for _, g := range groups {
		if tells(&g) && len(g.Ranks) == largest {
			most = max(most, g.whom)
		}
	}
	for i := range groups {
		g := &groups[i]
		stuck := g.State != "" && able
		g.Odd = len(groups) > 1 && !unknown(g) && (stuck || len(g.Ranks) < largest || g.whom < most)
	}
}

// Certain says that the groups that differ are to blame: nothing is missing that might be instead,
// or the others wait for them in a collective, whatever the unknown ones do.
func (r *Report) Certain() bool {
	if r.Named() != nil {
		return true
	}
	waits := false
	for _, g := range r.Groups() {
		if g.Odd && g.Collective && len(r.Missing) > 0 {
			return false
		}
		waits = waits || g.Collective && !g.Odd
	}
	return waits || len(r.Missing) == 0
}

// Unknown says why nobody knows which rank makes the others wait: hosts or stacks are missing, and what the
// kernel tells singles out none. It is "" where someone differs, or all is there.
func (r *Report) Unknown() string {
	if r.Named() != nil {
		return ""
	}
	var ranks []int
	unread, advice := false, "muster doctor says why there are none"
	for _, g := range r.Groups() {
		if g.Ended() {
			continue
		} else if g.Odd {
			return ""
		}
		ranks, unread = append(ranks, g.Ranks...), unread || g.unread
	}
	if len(r.Missing) > 0 {
		return "nothing known of " + strings.Join(r.Missing[:min(len(r.Missing), 3)], ", ")
	}
	if !unread || len(ranks) < 2 {
		return ""
	}
	for i := range r.Workers {
		if strings.Contains(strings.Join(r.Workers[i].Python.Problems, "\n"), notInstalled) {
			advice = "pip install py-spy to see where they wait"
		}
	}
	slices.Sort(ranks)
	return "without Python stacks, nothing tells ranks " + text.Ranges(ranks, ", ") + " apart; " + advice
}

// Summary is in one line what the flight recorders say, and the groups, the largest first: "7 ranks in
// all_reduce (distributed_c10d.py:4181), rank 3 in DataLoader.__next__ (dataloader.py:725)".
func (r *Report) Summary() string {
	groups := r.Groups()
	slices.SortStableFunc(groups, func(a, b Group) int {
		return cmp.Or(before(b.Odd, a.Odd), len(b.Ranks)-len(a.Ranks))
	})
	const most = 8
	var parts []string
	verdict := ""
	if v := r.Collectives; v != nil && (v.Kind == flight.Stuck || r.Named() != nil) {
		verdict = v.Text + ". Stacks: "
	}
	for i, g := range groups {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more groups", len(groups)-most))
			break
		}
		part := members(g)
		if n := len(g.Ranks); n > 1 && !(g.Odd && n <= most) { // the numbers of many say little
			if part = strconv.Itoa(n) + " ranks"; g.Ranks[0] < 0 {
				part = strconv.Itoa(n) + " processes"
			}
		}
		if g.Odd && len(g.Hosts) == 1 {
			part += " on " + g.Hosts[0]
		}
		parts = append(parts, part+" "+g.Name)
	}
	if n := len(r.Missing); n > 0 {
		parts = append(parts, "nothing known of "+strings.Join(r.Missing[:min(n, most)], ", "))
	}
	if len(parts) == 0 {
		return "no workers"
	}
	return verdict + strings.Join(parts, ", ")
}

// members lists a group's ranks or, where a process has none, its processes.
func members(g Group) string {
	one, many, list := "rank ", "ranks ", g.Ranks
	if list[0] < 0 {
		one, many, list = "process ", "processes ", g.PIDs
	}
	if len(list) == 1 {
		many = one
	}
	return many + text.Ranges(list, ", ")
}

// A viewed worker is its group, before others join it, and what others must have
// the same to do so.
type viewed struct {
	key   string
	group Group
}

// view finds the most telling place of a worker.
func view(w *Worker) viewed {
	g := Group{Ranks: []int{w.Rank}, PIDs: []int{w.PID}}
	if w.Host != "" {
		g.Hosts = []string{w.Host}
	}
	switch w.State {
	case stateGone, stateZombie, stateStopped, stateTraced, stateDisk:
		g.State = w.State
	}
	python, inside := pythonOf(w)
	main, telling := tellingThread(python.Threads)
	if telling == nil {
		place := nativePlace(w)
		g.Name, g.unread = strings.TrimSpace(g.State+" "+place), w.Python.Unread
		return viewed{"native " + g.State + place, g}
	}
	place := tellingFrame(telling.Frames)
	g.At, g.whom, g.Collective, g.Frames = place.frame, place.whom, place.whom == onOthers, telling.Frames
	if i := slices.IndexFunc(telling.Frames, func(f Frame) bool { return isUser(f.File) }); i >= 0 {
		g.From = telling.Frames[i]
	}
	if g.At.Line > 0 {
		g.Lines = []int{g.At.Line}
	}
	if inside == "" {
		g.Children = childPlaces(w.Children)
	}
	g.Name = strings.TrimSpace(g.State + " in " + place.name + where(place.frame))
	if !telling.Main {
		g.Thread = cmp.Or(telling.Name, telling.ID)
		g.Name += " in thread " + g.Thread
	}
	if place.library {
		g.Name += from(g.From)
	}
	if inside != "" {
		g.Name += " " + inside
	}
	var key strings.Builder
	key.WriteString(g.State + "|" + place.name + "|" + inside)
	stack(&key, telling.Frames)
	if main != telling {
		stack(&key, main.Frames)
	}
	if g.Collective {
		// The same collective called in another line is another collective.
		fmt.Fprintf(&key, "|%d", g.From.Line)
	}
	return viewed{key.String(), g}
}

// stack adds a stack's functions to a key. Sources differ in how much they say of
// a function's name; its last part they agree on.
func stack(key *strings.Builder, frames []Frame) {
	for _, f := range frames {
		key.WriteString("|" + base(f.Function) + " " + f.File)
	}
}

// base is a function's own name, without its class or the function it is in.
func base(function string) string {
	return function[strings.LastIndexByte(function, '.')+1:]
}

// pythonOf returns a worker's stacks or, where the worker is a script that runs
// Python, those of its first Python child.
func pythonOf(w *Worker) (p Python, inside string) {
	if len(w.Python.Threads) > 0 {
		return w.Python, ""
	}
	for _, c := range w.Children {
		if len(c.Python.Threads) > 0 {
			return c.Python, "in a child process"
		}
	}
	return Python{}, ""
}

// childPlaces says where a worker's Python children are.
func childPlaces(children []Process) (texts []string) {
	const most = 8
	for _, same := range alike(children, sameStacks) {
		if _, telling := tellingThread(same[0].Python.Threads); telling != nil {
			p := tellingFrame(telling.Frames)
			texts = append(texts, fmt.Sprintf("%s: in %s%s", childNames(same), p.name, where(p.frame)))
		}
	}
	return texts[:min(len(texts), most)]
}

// nativePlace says where a process without Python stacks is.
func nativePlace(w *Worker) string {
	for _, t := range w.Native.Threads {
		switch call, _, _ := strings.Cut(t.Syscall, " fd "); {
		case t.TID != w.PID:
		case call != "":
			return "in the system call " + call + ", no Python stacks"
		case t.WaitChannel != "":
			return "in the kernel's " + t.WaitChannel + ", no Python stacks"
		case t.State != "" && t.State != w.State:
			return t.State + ", no Python stacks"
		}
	}
	switch w.State {
	case stateGone, stateZombie:
		return ""
	case stateStopped, stateTraced, stateDisk:
		return "with no Python stacks"
	}
	return cmp.Or(w.State, "unknown") + ", no Python stacks"
}

// tellingThread picks the thread that says why a process does not continue: the main
// thread, unless that waits for another one that is in a collective.
func tellingThread(threads []Thread) (main, telling *Thread) {
	for i := range threads {
		if t := &threads[i]; len(t.Frames) > 0 && (t.Main || main == nil) {
			main = t
		}
	}
	if main == nil || !waitsForThread(main.Frames) {
		return main, main
	}
	for i := range threads {
		if t := &threads[i]; t != main && tellingFrame(t.Frames).whom == onOthers {
			return main, t
		}
	}
	return main, main
}

// waitsForThread reports whether a stack waits for what another thread does.
func waitsForThread(frames []Frame) bool {
	if len(frames) == 0 {
		return false
	}
	file, function := module(frames[0].File), base(frames[0].Function)
	switch file {
	case "threading.py", "queue.py", "selectors.py", "concurrent/futures/_base.py", "asyncio/base_events.py":
		return true
	case "torch/autograd/graph.py":
		return function == "_engine_run_backward"
	}
	return false
}

// A place is what a stack is doing, in a word.
type place struct {
	name    string
	frame   Frame
	whom    waiting
	library bool // some function of a package's, which says little by itself
}

// tellingFrame finds the frame that says most: the innermost known one, or the
// innermost that is not of Python's own library.
func tellingFrame(frames []Frame) place {
	if len(frames) == 0 {
		return place{}
	}
	own := -1
	for i, f := range frames {
		if own < 0 && !isStandard(f.File) {
			own = i
		}
		name, whom := known(f)
		if name == "" {
			continue
		}
		// Code of the user's that a library calls says more than the library.
		for _, inner := range frames[:i] {
			if isUser(inner.File) {
				return place{name: shown(inner) + " under " + name, frame: inner, whom: whom}
			}
		}
		return place{name: name, frame: f, whom: whom}
	}
	own = max(own, 0)
	return place{name: shown(frames[own]), frame: frames[own], library: !isUser(frames[own].File)}
}

// waiting is whom a stack waits for.
type waiting int

const (
	onNobody waiting = iota
	onGPU            // which computes, or is in a collective itself; backward may
	onOthers         // in a collective
)

// waits are the functions in which training is found waiting, by file. No function means
// any, and "public" those without an underscore; %s in a name is the function.
var waits = []struct {
	file, functions, name string
	whom                  waiting
}{
	{"torch/distributed/distributed_c10d.py", "public _store_based_barrier", "%s", onOthers},
	{"torch/distributed/_functional_collectives.py", "public", "%s", onOthers},
	{"torch/distributed/nn/functional.py", "public", "%s", onOthers},
	{"torch/distributed/rendezvous.py", "", "rendezvous", onOthers},
	{"torch/distributed/elastic/utils/store.py", "barrier synchronize", "store %s", onOthers},
	{"torch/utils/data/dataloader.py", "__next__", "DataLoader.%s", onNobody},
	{"torch/cuda/__init__.py", "synchronize", "torch.cuda %s", onGPU},
	{"torch/cuda/streams.py", "synchronize", "torch.cuda %s", onGPU},
	{"torch/autograd/graph.py", "_engine_run_backward", "backward", onGPU},
	{"torch/serialization.py", "save load", "torch.%s", onNobody},
}

// known names the frames in which training is found waiting.
func known(f Frame) (name string, whom waiting) {
	file, function := module(f.File), base(f.Function)
	for _, w := range waits {
		list := strings.Fields(w.functions)
		if w.file == file && (len(list) == 0 || slices.Contains(list, function) || list[0] == "public" &&
			!strings.HasPrefix(function, "_")) {
			return strings.Replace(w.name, "%s", function, 1), w.whom
		}
	}
	return "", onNobody
}

// module is a file's path from the directory on that Python imports it:
// torch/distributed/distributed_c10d.py.
func module(file string) string {
	for _, packages := range []string{"/site-packages/", "/dist-packages/"} {
		if i := strings.LastIndex(file, packages); i >= 0 {
			return file[i+len(packages):]
		}
	}
	if i := strings.LastIndex(file, "/lib/python"); i >= 0 {
		if _, rest, ok := strings.Cut(file[i+len("/lib/python"):], "/"); ok {
			return rest
		}
	}
	return file
}

// isStandard reports whether a file is of Python's own library.
func isStandard(file string) bool {
	return strings.HasPrefix(file, "<frozen ") || module(file) != file && !strings.Contains(file, "-packages/")
}

// isUser reports whether a file belongs neither to Python nor to an installed
// package.
func isUser(file string) bool {
	return file != "" && module(file) == file && !strings.HasPrefix(file, "<")
}

// shown is a function's name as a person says it.
func shown(f Frame) string {
	if f.Function == "<module>" {
		return filepath.Base(f.File)
	}
	return strings.ReplaceAll(f.Function, ".<locals>", "")
}

// where is a frame's place in brackets.
func where(f Frame) string {
	if f.File == "" {
		return ""
	}
	return " (" + filepath.Base(f.File) + ":" + strconv.Itoa(f.Line) + ")"
}

// from says who called.
func from(f Frame) string {
	if f.File == "" {
		return ""
	}
	return " from " + shown(f) + where(f)
}

// Problems says which workers have no Python stacks and why, those with the same
// reasons together.
func (r *Report) Problems() []string {
	var without []Worker
	for _, w := range r.Workers {
		if p, _ := pythonOf(&w); len(p.Threads) == 0 && w.Same == 0 && w.State != stateGone && w.State != stateZombie {
			without = append(without, w)
		}
	}
	reasons := func(w *Worker) string {
		return "  " + strings.Join(slices.Concat(w.Problems, w.Python.Problems), "\n  ")
	}
	slices.SortFunc(without, func(a, b Worker) int { return cmp.Or(a.Rank-b.Rank, a.PID-b.PID) })
	var texts []string
	for _, same := range alike(without, reasons) {
		var g Group
		for _, w := range same {
			g.Ranks, g.PIDs = append(g.Ranks, w.Rank), append(g.PIDs, w.PID)
		}
		texts = append(texts, "no Python stacks of "+members(g)+":\n"+reasons(same[0]))
	}
	return texts
}
