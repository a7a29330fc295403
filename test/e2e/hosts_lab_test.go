//go:build linux

package e2e

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/netlab"
	"github.com/muster-run/muster/internal/test/programs"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A site is a lab with one job on it: an agent on each of some hosts, and workers
// that report to one board.
type site struct {
	t      testing.TB
	lab    *netlab.Lab
	runID  string
	board  *board
	dir    string // of the pipes through which workers are told what to do
	pipes  map[string]*os.File
	agents []*job // all that were started, in order

	// conf is --rdzv-conf, flags are those of an agent of this host, beside --nnodes.
	conf  string
	flags func(host int) string
	// program is run by the workers instead of hostworker.
	program []string
	// stdout is that of the agents that start next, default a file that out() reads.
	stdout *os.File
	// env is added to the agents'.
	env []string
	all []hostReport
	// wrote says that a console has something new.
	wrote chan struct{}
}

// buildHostWorker builds the worker of many hosts once. Their tests alone need it.
var buildHostWorker = sync.OnceValue(func() error { return programs.Build(bin, "./hostworker") })

// A hostReport is what one worker has said.
type hostReport struct {
	verb, host  string // "up" or "term"
	rank, world int
	restart     int
	master      string
	at          time.Time
}

var sites atomic.Int64

// newSite makes hosts for a job.
func newSite(t testing.TB, hosts int) *site {
	t.Helper()
	lab := netlab.New(t, hosts)
	if err := buildHostWorker(); err != nil {
		t.Fatal(err)
	}
	s := &site{
		t: t, lab: lab, runID: fmt.Sprintf("run%d", sites.Add(1)), board: newBoard(t),
		dir: t.TempDir(), conf: limit9, pipes: map[string]*os.File{},
		wrote: make(chan struct{}, 1),
	}
	for _, h := range lab.Hosts() {
		path := filepath.Join(s.dir, h.Name)
		err := unix.Mkfifo(path, 0o666)
		var f *os.File
		if err == nil {
			f, err = os.OpenFile(path, os.O_RDWR, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		s.pipes[h.Name] = f
	}
	return s
}

// Hosts that say nothing count as lost after nine seconds, which leaves a busy machine
// time, and a round begins one second after enough hosts are there. Tests that wait for
// silence take limit6; what is measured for the document has limit3.
const (
	limit3 = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1,join_timeout=150"
	limit6 = "keep_alive_interval=2,keep_alive_max_attempt=3,last_call_timeout=1,join_timeout=150"
	limit9 = "keep_alive_interval=3,keep_alive_max_attempt=3,last_call_timeout=1,join_timeout=150"
)

// start starts an agent on a host.
func (s *site) start(host int, flags string) *job {
	s.t.Helper()
	return s.startOf(launcher{"muster", []string{filepath.Join(bin, "muster"), "run"}}, host, flags)
}

// startOf starts an agent of muster or of torchrun on a host.
func (s *site) startOf(l launcher, host int, flags string) *job {
	s.t.Helper()
	all := fmt.Sprintf("--rdzv-id %s %s %s", s.runID, s.flags(host), flags)
	program := s.program
	if program == nil {
		all += " --no-python"
		program = []string{filepath.Join(bin, "hostworker")}
	}
	h := s.lab.Host(host)
	j := onHost(s.t, h, s.wrote, errand{
		argv:   slices.Concat(l.argv, strings.Fields(all), program),
		env:    slices.Concat(testproc.Env(s.board.Board, nil, ""), []string{"MUSTER_E2E_DIR=" + s.dir, "LOGLEVEL=INFO"}, s.env),
		stdout: s.stdout,
	})
	j.l.name = fmt.Sprintf("agent on %s", h.Name)
	s.agents = append(s.agents, j)
	return j
}

// startAll starts agents on hosts 0 to n-1.
func (s *site) startAll(n int, flags string) []*job {
	s.t.Helper()
	var agents []*job
	for i := range n {
		agents = append(agents, s.start(i, flags))
	}
	return agents
}

// An errand is what to start on a host.
type errand struct {
	argv   []string
	env    []string // added to the usual environment
	stdin  *os.File // default /dev/null
	stdout *os.File // default a file that out() reads
}

// onHost starts something on a host as a job. It says on wrote when there is output.
func onHost(t testing.TB, h *netlab.Host, wrote chan<- struct{}, e errand) *job {
	t.Helper()
	j := &job{
		t: t, l: launcher{name: fmt.Sprintf("%s on %s", filepath.Base(e.argv[0]), h.Name)}, ended: make(chan struct{}),
		tag: testproc.NewTag(), tmp: t.TempDir(), gate: testproc.NewGate(t),
	}
	j.cmd = exec.Command(e.argv[0], e.argv[1:]...)
	if e.stdin != nil {
		j.cmd.Stdin = e.stdin
	}
	j.cmd.Env = slices.Concat(usualEnv(), []string{"TMPDIR=" + j.tmp, "HOST=" + h.Name}, testproc.Env(nil, nil, j.tag), e.env)
	var copying sync.WaitGroup
	var ends []*os.File
	for i := range j.outErr {
		f, err := os.Create(filepath.Join(j.tmp, "console"+itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		j.outErr[i], ends = f, append(ends, w)
		copying.Go(func() {
			defer f.Close()
			defer r.Close()
			io.Copy(&teller{f, wrote}, r)
		})
	}
	j.cmd.Stdout, j.cmd.Stderr = cmp.Or(e.stdout, ends[0]), ends[1]
	err := h.Start(j.cmd)
	for _, w := range ends {
		w.Close()
	}
	t.Cleanup(copying.Wait)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.destroy)
	copied := make(chan struct{})
	go func() { copying.Wait(); close(copied) }()
	go func() {
		defer close(j.ended)
		j.cmd.Wait()
		select { // processes that it has left behind may have the pipes
		case <-copied:
		case <-time.After(soon):
		}
	}()
	return j
}

// A teller is a file that says on a channel when it was written to.
type teller struct {
	*os.File
	wrote chan<- struct{}
}

func (w *teller) Write(b []byte) (int, error) {
	n, err := w.File.Write(b)
	select {
	case w.wrote <- struct{}{}:
	default:
	}
	return n, err
}

// ReadFrom hides that of the file, which would not tell.
func (w *teller) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, r)
}

// untilSays waits until something that runs on a host has written a text.
func (s *site) untilSays(j *job, text string) {
	s.t.Helper()
	timeout := time.After(patience)
	for !strings.Contains(j.out()+j.errs(), text) {
		select {
		case <-s.wrote:
		case <-j.ended:
			if !strings.Contains(j.out()+j.errs(), text) {
				s.fatalf("%s ended without saying %q\n%s", j.l.name, text, j.console())
			}
		case <-timeout:
			s.fatalf("%s does not say %q\n%s", j.l.name, text, j.console())
		}
	}
}

// serve starts a program on a host that others need, and waits until it says text.
func (s *site) serve(host int, text string, argv ...string) *job {
	s.t.Helper()
	j := onHost(s.t, s.lab.Host(host), s.wrote, errand{argv: argv})
	s.untilSays(j, text)
	return j
}

// fatalf ends the test and shows what the agents have said.
func (s *site) fatalf(format string, args ...any) {
	s.t.Helper()
	for _, j := range s.agents {
		state := "runs"
		select {
		case <-j.ended:
			state = j.cmd.ProcessState.String()
		default:
		}
		s.t.Logf("%s: %s\n%s", j.l.name, state, j.console())
	}
	for _, r := range s.all {
		s.t.Logf("%s %+v", r.at.Format("05.000"), r)
	}
	s.t.Fatalf(format, args...)
}

// await reads the board until n workers have said verb since a time, in a world of
// this size, and returns what they said.
func (s *site) await(since time.Time, n int, verb string, world int) []hostReport {
	s.t.Helper()
	return s.collect(fmt.Sprintf("%q in a world of %d", verb, world), n, func() (found []hostReport) {
		for _, r := range s.all {
			if r.verb == verb && r.world == world && r.at.After(since) {
				found = append(found, r)
			}
		}
		return found
	})
}

// running reads the board until n workers run on as many hosts, in a world of that
// size, that were started after a time, and returns what they said.
func (s *site) running(since time.Time, n int) []hostReport {
	s.t.Helper()
	return s.collect(fmt.Sprintf("%q, and run together", "up"), n, func() (found []hostReport) {
		latest := map[string]hostReport{}
		for _, r := range s.all {
			if r.at.After(since) {
				latest[r.host] = r
			}
		}
		for _, r := range latest {
			if r.verb == "up" && r.world == n {
				found = append(found, r)
			}
		}
		return found
	})
}

// collect reads the board until n of the reports are wanted ones.
func (s *site) collect(what string, n int, wanted func() []hostReport) []hostReport {
	s.t.Helper()
	timeout, ended := time.After(patience), s.allEnded()
	for {
		found := wanted()
		if len(found) >= n {
			return found
		}
		select {
		case line := <-s.board.Lines:
			s.all = append(s.all, s.parse(line))
			continue
		default:
		}
		select {
		case line := <-s.board.Lines:
			s.all = append(s.all, s.parse(line))
		case <-timeout:
			s.fatalf("%d of %d workers said %s", len(found), n, what)
		case <-ended:
			if len(s.board.Lines) == 0 {
				s.fatalf("all agents have ended; %d of %d workers said %s", len(found), n, what)
			}
		}
	}
}

// count returns how often workers have said a verb since a time. Those that are counted have ended.
func (s *site) count(verb string, since time.Time) (n int) {
	s.t.Helper()
	for len(s.board.Lines) > 0 {
		s.all = append(s.all, s.parse(<-s.board.Lines))
	}
	for _, r := range s.all {
		if r.verb == verb && r.at.After(since) {
			n++
		}
	}
	return n
}

// allEnded returns a channel that is closed when all agents have ended.
func (s *site) allEnded() <-chan struct{} {
	all, agents := make(chan struct{}), slices.Clone(s.agents)
	go func() {
		for _, j := range agents {
			<-j.ended
		}
		close(all)
	}()
	return all
}

func (s *site) parse(line string) hostReport {
	s.t.Helper()
	f := strings.Fields(line)
	if len(f) != 7 {
		s.fatalf("a worker said %q", line)
	}
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			s.fatalf("a worker said %q: %v", line, err)
		}
		return n
	}
	return hostReport{f[0], f[1], number(f[2]), number(f[3]), number(f[4]), f[5], time.Unix(0, int64(number(f[6])))}
}

// last is when the last of some workers reported.
func last(reports []hostReport) time.Time {
	var at time.Time
	for _, r := range reports {
		if r.at.After(at) {
			at = r.at
		}
	}
	return at
}

// order makes the worker of a host exit.
func (s *site) order(host int, status int) {
	s.t.Helper()
	if _, err := fmt.Fprintln(s.pipes[s.lab.Host(host).Name], status); err != nil {
		s.t.Fatal(err)
	}
}

// finish ends the job: the workers of these hosts exit 0, and so do their agents.
func (s *site) finish(agents ...*job) {
	s.t.Helper()
	for _, j := range agents {
		s.order(s.hostOf(j), 0)
	}
	s.want(0, agents...)
}

func (s *site) hostOf(j *job) int {
	for i, h := range s.lab.Hosts() {
		if strings.HasSuffix(j.l.name, " "+h.Name) {
			return i
		}
	}
	s.t.Fatalf("no host of %s", j.l.name)
	return -1
}

// want checks the exit status of agents, and that nothing of theirs is left. It
// returns when the last of them ended.
func (s *site) want(status int, agents ...*job) time.Time {
	s.t.Helper()
	for _, j := range agents {
		select {
		case <-j.ended:
		case <-time.After(patience):
			s.fatalf("%s still runs after %v", j.l.name, patience)
		}
	}
	at := time.Now()
	for _, j := range agents {
		if got := j.status(); got != status {
			s.fatalf("%s ended with status %d, want %d\n%s", j.l.name, got, status, j.console())
		}
		j.noneLeft(soon)
	}
	return at
}
