package warm_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/process/warm"
)

// A lab starts groups of workers and keeps what they and the Host say.
type lab struct {
	t      *testing.T
	python string
	sup    *process.Supervisor
	cache  string
	dir    string // the working directory of scripts, and their OUT
	log    text
	env    []string
	cpus   map[int][]int
	limit  time.Duration // Config.ImportTimeout
}

// text is a log that may be read while it is written.
type text struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *text) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Reset()
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// realPython is the interpreter itself: a wrapper, as pyenv has them, knows where it is. Tests that start programs
// by os/exec take it from here and have no lab, whose Supervisor would reap those.
func realPython(t *testing.T) string {
	t.Helper()
	python, err := askPython()
	if err != nil {
		t.Skipf("needs Python: %v", err)
	}
	return python
}

var askPython = sync.OnceValues(func() (string, error) {
	real, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	return strings.TrimSpace(string(real)), err
})

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, python: realPython(t), cache: t.TempDir(), dir: t.TempDir()}
	l.env = append(os.Environ(), "OUT="+l.dir, "COLLECT_LESS=")
	logger := slog.New(slog.NewTextHandler(&l.log, nil))
	var err error
	l.sup, err = process.NewSupervisor(process.SupervisorConfig{Logger: logger, WholeProgram: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.sup.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *lab) host() *warm.Host {
	h := warm.New(l.t.Context(), warm.Config{
		Supervisor: l.sup, Varies: agent.SetsVariable, Dir: l.cache, ImportTimeout: l.limit, Logger: slog.New(slog.NewTextHandler(&l.log, nil)),
	})
	l.t.Cleanup(h.Close)
	return h
}

func (l *lab) script(name, body string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// ended is what became of a worker.
type ended struct {
	Code           int
	Stdout, Stderr string
}

// workers describes n workers.
func (l *lab) workers(n int, args ...string) process.Config {
	cfg := process.Config{
		Entrypoint: l.python, Env: l.env, Grace: 10 * time.Second, CPUs: l.cpus,
		Args: map[int][]string{}, Envs: map[int]map[string]string{},
	}
	for i := range n {
		cfg.Args[i] = args
		cfg.Envs[i] = map[string]string{"RANK": strconv.Itoa(i), "LOCAL_RANK": strconv.Itoa(i), "WORLD_SIZE": strconv.Itoa(n),
			"TORCHELASTIC_ERROR_FILE": filepath.Join(l.dir, fmt.Sprint("error", i))}
	}
	return cfg
}

type starter func(process.Config) (*process.Group, error)

// run runs n workers to their end.
func (l *lab) run(start starter, n int, args ...string) []ended {
	l.t.Helper()
	both, err := logs.ParseStd("3")
	if err != nil {
		l.t.Fatal(err)
	}
	run, err := logs.New(logs.Config{Dir: l.t.TempDir(), RunID: "x", Redirects: both, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		l.t.Fatal(err)
	}
	var workers []logs.Worker
	for i := range n {
		workers = append(workers, logs.Worker{LocalRank: i, Rank: i, Role: "x"})
	}
	cfg := l.workers(n, args...)
	at, err := run.Attempt(0, workers)
	if err != nil {
		l.t.Fatal(err)
	}
	cfg.Logs = at
	g, err := start(cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), 3*time.Minute)
	defer cancel()
	r, err := g.Wait(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	all := make([]ended, n)
	for i := range all {
		out, _ := os.ReadFile(r.Stdouts[i])
		errs, _ := os.ReadFile(r.Stderrs[i])
		all[i] = ended{r.Exits[i].Code, string(out), string(errs)}
	}
	if _, err := at.Finish(ctx); err != nil {
		l.t.Error(err)
	}
	return all
}

// seen is what testdata/self.py has written.
func (l *lab) seen(rank int) map[string]any {
	l.t.Helper()
	path := filepath.Join(l.dir, strconv.Itoa(rank))
	body, err := os.ReadFile(path)
	var seen map[string]any
	if err == nil {
		err = json.Unmarshal(body, &seen)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	_ = os.Remove(path)
	return seen
}

// Each Python that is supported, and is here, runs a script warm as it does cold.
func TestPythons(t *testing.T) {
	self, err := filepath.Abs("testdata/self.py")
	must(t, err)
	home, err := os.UserHomeDir()
	must(t, err)
	installed, err := filepath.Glob(filepath.Join(home, ".pyenv/versions/3.*/bin/python3"))
	must(t, err)
	tried := 0
	for _, python := range installed {
		version, err := exec.Command(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output()
		if minor, _ := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(string(version)), "3.")); err != nil || minor < 8 {
			continue
		}
		tried++
		t.Run(strings.TrimSpace(string(version)), func(t *testing.T) {
			l := newLab(t)
			l.python = python
			equal(t, l, l.host(), "-u", self, "a", "b c", "")
		})
	}
	if tried == 0 {
		t.Skip("needs Pythons of pyenv")
	}
}

// A script sees the same of itself as in a worker that was started cold, except for what
// docs/internals/warm.md lists.
func TestEquality(t *testing.T) {
	self, err := filepath.Abs("testdata/self.py")
	if err != nil {
		t.Fatal(err)
	}
	const runPath = "import runpy, sys\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
	for _, flags := range [][]string{{"-u"}, {"-X", "dev", "-O", "-W", "error::ResourceWarning"}, {"-u", "-c", runPath}} {
		t.Run(fmt.Sprintf("%.12s", strings.Join(flags, " ")), func(t *testing.T) {
			l := newLab(t)
			l.env = append(l.env, "MP=1")
			equal(t, l, l.host(), append(slices.Clone(flags), self, "a", "b c", "")...)
		})
	}
}

// equal compares what testdata/self.py sees cold, and warm without knowledge and with it.
func equal(t *testing.T, l *lab, h *warm.Host, args ...string) {
	t.Helper()
	cold := l.run(l.sup.Start, 2, args...)
	want := []map[string]any{l.seen(0), l.seen(1)}
	for range 2 { // without knowledge, and with it
		got := l.run(h.Start, 2, args...)
		if s := "forks of Python 3.8 crash"; strings.Contains(l.log.String(), s) {
			t.Skip(s)
		}
		if diff := cmp.Diff(cold, got); diff != "" {
			t.Errorf("what became of the workers (-cold +warm):\n%s", diff)
		}
		for rank := range want {
			seen := l.seen(rank)
			if own, all := want[rank]["frames"].(float64), seen["frames"].(float64); all-own != 3 {
				t.Errorf("%v frames are below the script, %v in a cold start, want 3 more as docs/internals/warm.md says", all, own)
			}
			delete(seen, "frames")
			for _, key := range []string{"gc", "random", "hash"} {
				if key == "random" && seen[key] == want[rank][key] {
					t.Errorf("random numbers are those of another worker")
				}
				delete(seen, key)
				delete(want[rank], key)
			}
			without := maps.Clone(want[rank])
			delete(without, "frames")
			if diff := cmp.Diff(without, seen); diff != "" {
				t.Errorf("rank %d (-cold +warm):\n%s", rank, diff)
			}
		}
	}
	if s := l.log.String(); strings.Contains(s, "cold") {
		t.Errorf("workers have started cold:\n%s", s)
	}
}

// How a script ends, and what it prints then, is the same.
func TestEnds(t *testing.T) {
	l := newLab(t)
	h := l.host()
	tests := map[string]string{
		"exit status":      "import sys\nsys.exit(3)",
		"exit message":     "import sys\nsys.exit('the message')",
		"exception":        "def f():\n    raise ValueError('x')\ntry:\n    1/0\nexcept Exception:\n    f()",
		"syntax error":     "print(1)\nx = = 1\n",
		"excepthook":       "import sys\nsys.excepthook = lambda t, v, tb: print('hook', t, v, tb.tb_frame.f_code.co_name, tb.tb_next, flush=True)\n1/0",
		"signal":           "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)",
		"interrupt":        "raise KeyboardInterrupt",
		"SIGPIPE":          "import os\nr, w = os.pipe()\nos.close(r)\nos.write(w, b'x')",
		"thread at exit":   "import threading, time, atexit\natexit.register(print, 'last')\nthreading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nprint('end')",
		"faulthandler":     "import faulthandler, sys\nsys.stderr.flush()\nfaulthandler.enable()\nprint('ok')",
		"warnings":         "import warnings\nwarnings.warn('once')\nwarnings.warn('deep', stacklevel=2)",
		"utf-8 and cookie": "# coding: latin-1\nprint(ascii('\xe4'))",
		"_exit":            "import os\nprint('x', flush=True)\nos._exit(9)",
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			l.t = t
			path := l.script("script.py", body)
			cold := l.run(l.sup.Start, 1, "-u", path)
			// Each is a job of its own, so that no start is cold since the last one failed early.
			got := l.run(l.host().Start, 1, "-u", path)
			if name == "warnings" { // a level of the stack that is not there is <sys> or <string>
				for _, e := range [][]ended{cold, got} {
					e[0].Stderr = regexp.MustCompile(`(?m)^.*deep.*$`).ReplaceAllString(e[0].Stderr, "deep")
				}
			}
			if diff := cmp.Diff(cold, got); diff != "" {
				t.Errorf("(-cold +warm):\n%s", diff)
			}
		})
	}
	l.t = t
	_ = h
	if s := l.log.String(); strings.Contains(s, "cold") {
		t.Errorf("workers have started cold:\n%s", s)
	}
}

// A module of python -m, with the frames of runpy.
func TestModule(t *testing.T) {
	l := newLab(t)
	l.env = append(l.env, "PYTHONPATH="+l.dir)
	l.script("trainer.py", "import sys\nprint(sys.argv, __spec__.name, __name__, __file__, sys.orig_argv[1:] if hasattr(sys, 'orig_argv') else '')\n1/0\n")
	cold := l.run(l.sup.Start, 1, "-u", "-m", "trainer", "x")
	got := l.run(l.host().Start, 1, "-u", "-m", "trainer", "x")
	if diff := cmp.Diff(cold, got); diff != "" || got[0].Code != 1 {
		t.Errorf("(-cold +warm):\n%s", diff)
	}
}

// What others have put into the current directory is not imported.
func TestCurrentDirectory(t *testing.T) {
	l := newLab(t)
	l.script("_socket.py", "raise SystemExit('shadowed')")
	t.Chdir(l.dir)
	site := filepath.Join(l.dir, "elsewhere")
	if err := os.Mkdir(site, 0o755); err != nil {
		t.Fatal(err)
	}
	got := l.run(l.host().Start, 1, "-u", l.script("elsewhere/s.py", "print('here')"))
	if got[0].Stdout != "here\n" || strings.Contains(l.log.String(), "cold") {
		t.Errorf("%+v\n%s", got, l.log.String())
	}
}

// packages makes an installed module of each body, and what an earlier worker has learnt of
// a script that imports them all.
func (l *lab) packages(bodies map[string]string) (script string) {
	l.t.Helper()
	site := filepath.Join(l.dir, "site-packages")
	if err := os.Mkdir(site, 0o755); err != nil {
		l.t.Fatal(err)
	}
	l.env = append(l.env, "PYTHONPATH="+site)
	body := "import sys\nfirst = set(sys.modules)\n"
	names := []string{}
	for name := range bodies {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(site, name+".py"), []byte(bodies[name]), 0o644); err != nil {
			l.t.Fatal(err)
		}
		body += "try:\n    import " + name + "\nexcept ImportError:\n    pass\n"
	}
	body += "print(sorted(n for n in first if n in " + fmt.Sprintf("{'%s'}", strings.Join(names, "','")) + "))\n"
	return l.script("script.py", body)
}

// Each rule of safety has a module that breaks it: that one is left out, remembered with its
// reason, and the workers start warm without it.
func TestRules(t *testing.T) {
	l := newLab(t)
	script := l.packages(map[string]string{
		"clean":   "",
		"thread":  "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
		"socket_": "import socket\ns = socket.socket()",
		"file":    "f = open(__file__)",
		"child":   "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)",
		"rank":    "import os\nx = os.environ.get('RANK')",
		"outer":   "import inner",
		"inner":   "import os\nx = os.getenv('LOCAL_RANK')",
		"copies":  "import os\nx = dict(os.environ)",
		"copies2": "import os\nx = os.environ.copy()",
		"scans":   "import os\nx = [k for k, v in os.environ.items() if k.startswith('SCANS_')] + [k for k in os.environ if k == 'X']",
		"reads":   "import os\nx = os.environ.get('HOME')",
		"temp":    "import tempfile\nx = tempfile.TemporaryDirectory()",
		"temp2":   "import tempfile\nx = tempfile.TemporaryFile()",
		"uuid4":   "import uuid\nx = uuid.uuid4()",
		"secret":  "import secrets\nx = secrets.token_hex()",
		"draws":   "import random\nx = random.SystemRandom().random()",
		"rolls":   "import random\nx = random.random()",
		"uuid1":   "import uuid\nx = uuid.uuid1()",
		"getrand": "import os\nx = os.getrandom(4)",
		"moves":   "import os\nos.chdir('/')",
		"ignores": "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)",
		"patches": "import os\nreal = os.fork\nos.fork = lambda: real()",
		"asks":    "import subprocess\nx = subprocess.check_output(['true'])",
		"alarm":   "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nsignal.setitimer(signal.ITIMER_REAL, 60)",
	})
	h := l.host()
	l.run(h.Start, 1, "-u", script) // learns
	got := l.run(l.host().Start, 2, "-u", script)
	for rank, e := range got {
		if e.Code != 0 || e.Stdout != "['asks', 'clean', 'reads', 'scans']\n" {
			t.Errorf("rank %d: %+v, want asks, clean, reads and scans to be imported before the script", rank, e)
		}
	}
	found, err := filepath.Glob(filepath.Join(l.cache, "*", "left"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	left, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"thread\tstarts a thread", "socket_\tleaves socket:", "file\tleaves ", "rank\trank reads RANK at import", "outer\tinner reads LOCAL_RANK at import",
		"inner\tinner reads LOCAL_RANK at import", "copies\tcopies copies the environment at import", "copies2\tcopies2 copies the environment at import",
		"temp\ttemp makes a temporary file", "temp2\tleaves /",
		"rolls\tdraws a random number", "uuid1\tuuid1 makes an identifier", "getrand\tgetrand takes random bytes",
		"moves\tchanges the working directory", "alarm\tsets a timer", "ignores\tignores SIGCHLD", "patches\treplaces os.fork",
		"uuid4\tuuid4 takes random bytes", "secret\tsecret takes random bytes", "draws\tdraws takes random bytes",
	} {
		if !strings.Contains(string(left), want) {
			t.Errorf("no %q in:\n%s", want, left)
		}
	}
	if !regexp.MustCompile(`child\t(starts a process|leaves pipe)`).Match(left) {
		t.Errorf("child is not left out:\n%s", left)
	}
	if s := l.log.String(); strings.Contains(s, "cold") {
		t.Errorf("workers have started cold:\n%s", s)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A variable that C libraries read, set where the script's text does not show it, makes the next start cold.
func TestLateVariable(t *testing.T) {
	l := newLab(t)
	l.script("config.py", "import os\nos.environ.update({'OMP_SCHEDULE'.upper(): 'static'})\n")
	script := l.script("script.py", "import os, config\nprint(os.environ['OMP_SCHEDULE'])\n")
	l.run(l.host().Start, 1, "-u", script) // learns
	if s := l.log.String(); strings.Contains(s, "cold") {
		t.Fatal(s)
	}
	got := l.run(l.host().Start, 1, "-u", script)
	if s := l.log.String(); got[0].Stdout != "static\n" || !strings.Contains(s, "the script sets OMP_SCHEDULE, which libraries read") {
		t.Errorf("%+v\n%s", got, s)
	}
}

// A variable that the program sets for the first time where its text does not show it, after the template
// has read it: the worker says so, and the next start is right, whatever becomes of the worker.
func TestFirstSet(t *testing.T) {
	l := newLab(t)
	script := l.packages(map[string]string{"mode": "import os\nx = os.environ.get('MODE', 'default')"})
	text, err := os.ReadFile(script)
	must(t, err)
	config := l.script("config.json", "{}")
	script = l.script("script.py", "import json, os\nos.environ.update(json.load(open('"+config+"')))\n"+string(text)+
		"print(mode.x, flush=True)\nif os.path.exists('"+filepath.Join(l.dir, "now")+"'):\n    os._exit(0)\n")
	l.run(l.host().Start, 1, "-u", script) // learns
	l.script("config.json", `{"MODE": "other", "SEEN_BY_NOBODY": "x"}`)
	l.script("now", "")
	got := l.run(l.host().Start, 1, "-u", script)
	if want := "muster: MODE is set after mode has read it, in the template of warm starts"; !strings.HasPrefix(got[0].Stderr, want) || strings.Count(got[0].Stderr, "\n") != 1 {
		t.Errorf("%+v, want %q", got[0], want)
	}
	if got := l.run(l.host().Start, 1, "-u", script); got[0].Stdout != "[]\nother\n" || got[0].Stderr != "" {
		t.Errorf("the next start: %+v", got[0])
	}
}

// What is learnt is forgotten when a module of the program's own changes, or what is installed.
func TestForgotten(t *testing.T) {
	l := newLab(t)
	script := l.packages(map[string]string{"clean": ""})
	text, err := os.ReadFile(script)
	must(t, err)
	script = l.script("script.py", string(text)+"import own\n")
	l.script("own.py", "")
	start := func(want string) {
		t.Helper()
		if got := l.run(l.host().Start, 1, "-u", script); got[0].Stdout != want+"\n" {
			t.Errorf("got %+v, want %s", got[0], want)
		}
	}
	start("[]")
	start("['clean']")
	l.script("own.py", "x = 1")
	start("[]")
	start("['clean']")
	must(t, os.WriteFile(filepath.Join(l.dir, "site-packages", "new.py"), nil, 0o600))
	start("[]")
	start("['clean']")
	must(t, os.Remove(filepath.Join(l.dir, "own.py"))) // it was made for one job
	l.script("script.py", string(text))
	start("[]")
}

// What the program does to its environment and its modules where its text does not show it is learnt:
// no module is imported ahead that would have seen it.
func TestProgramsOwn(t *testing.T) {
	l := newLab(t)
	script := l.packages(map[string]string{
		"clean":    "",
		"mode":     "import os\nx = os.environ.get('MODE', 'default')",
		"other":    "import os\nx = os.environ.get('OTHER')",
		"gone":     "import os\nx = os.environ.get('GONE')",
		"sets":     "import os\nos.environ['BY_IMPORT'] = 'b'",
		"later":    "import sets, os\nx = os.environ['BY_IMPORT']",
		"user":     "import vendored\nx = vendored.x",
		"numbers_": "import random\nx = random.Random()\ny = random.Random(7)",
	})
	site := filepath.Join(l.dir, "site-packages")
	vendor := filepath.Join(l.dir, "vendor")
	must(t, os.Mkdir(vendor, 0o755))
	must(t, os.WriteFile(filepath.Join(site, "vendored.py"), []byte("x = 'installed'"), 0o644))
	must(t, os.WriteFile(filepath.Join(vendor, "vendored.py"), []byte("x = 'vendored'"), 0o644))
	must(t, os.WriteFile(filepath.Join(l.dir, "config.py"), []byte("import os\nos.environ.update(**{'MODE': 's'})\nfor k in ['OTHER']:\n    os.environ[k] = 'o'\nE = os.environ\ndel E['GO' + 'NE']\n"), 0o644))
	text, err := os.ReadFile(script)
	must(t, err)
	body := "import sys\nfirst = set(sys.modules)\nsys.path.insert(0, '" + vendor + "')\nimport config, vendored\n" + strings.SplitN(string(text), "\n", 3)[2] +
		"print(mode.x, other.x, gone.x, later.x, user.x, numbers_.y.random())\nprint(numbers_.x.random())\n"
	must(t, os.WriteFile(script, []byte(body), 0o644))
	l.env = append(l.env, "GONE=g")
	cold := l.run(l.sup.Start, 1, "-u", script)
	want := strings.Split(cold[0].Stdout, "\n")[1]
	if !strings.HasPrefix(want, "s o None b vendored ") {
		t.Fatalf("cold: %+v", cold)
	}
	l.run(l.host().Start, 1, "-u", script) // learns
	drawn := map[string]bool{}
	h := l.host()
	for range 2 {
		for rank, e := range l.run(h.Start, 2, "-u", script) {
			lines := strings.Split(e.Stdout, "\n")
			if e.Code != 0 || len(lines) < 3 || lines[0] != "['clean', 'later', 'numbers_', 'sets']" || lines[1] != want {
				t.Errorf("rank %d: %+v, want %q", rank, e, want)
				continue
			}
			drawn[lines[2]] = true
		}
	}
	if len(drawn) != 4 {
		t.Errorf("four workers have drawn %v", slices.Collect(maps.Keys(drawn)))
	}
	if s := l.log.String(); strings.Contains(s, "cold") {
		t.Errorf("workers have started cold:\n%s", s)
	}
}

// The interpreter's end collects what a module left in the template, too.
func TestLastCollection(t *testing.T) {
	l := newLab(t)
	script := l.packages(map[string]string{
		"cycle": "import os\nclass A:\n    def __del__(self, write=os.write):\n        write(1, b'deleted\\n')\na = A()\na.self = a\n",
	})
	cold := l.run(l.sup.Start, 1, "-u", script)
	l.run(l.host().Start, 1, "-u", script) // learns
	got := l.run(l.host().Start, 1, "-u", script)
	if want := "deleted\n"; cold[0].Stdout != "[]\n"+want || got[0].Stdout != "['cycle']\n"+want {
		t.Errorf("cold %+v, warm %+v", cold, got)
	}
}

// A module that initializes CUDA is left out; so is one that holds a device without it, as other
// libraries of GPUs do.
func TestCUDA(t *testing.T) {
	l := newLab(t)
	script := l.packages(map[string]string{
		"torch":  "import types\nstate = []\ncuda = types.SimpleNamespace(init=lambda: state.append(1), is_initialized=lambda: bool(state))\n",
		"usesit": "import torch\ntorch.cuda.init()\n",
		"other":  "import os\nfd = os.open('/dev/full', os.O_RDWR)\n",
	})
	l.run(l.host().Start, 1, "-u", script) // learns
	if got := l.run(l.host().Start, 1, "-u", script); got[0].Stdout != "['torch']\n" {
		t.Errorf("the worker: %+v", got[0])
	}
	l.left(t, "usesit\tinitializes CUDA", "other\tleaves /dev/full open")
}

// left checks what is remembered of modules that are left out.
func (l *lab) left(t *testing.T, want ...string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(l.cache, "*", "left"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err, l.log.String())
	}
	left, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range want {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(want) + `(\t.*)?$`).Match(left) {
			t.Errorf("no %q in:\n%s", want, left)
		}
	}
}

// An import that hangs, ends the template, or needs more memory than there is, costs one cold
// start at most, with the reason, and is not tried again. One that is killed may have been so for
// other reasons, and is tried once more.
func TestBadImports(t *testing.T) {
	tests := []struct{ name, body, reason, left string }{
		{"hangs", "import time\ntime.sleep(1000)", "has not answered for", "takes too long to import"},
		{"is killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "signal: killed, at the import of bad", "ends the template: signal: killed"}, // as for want of memory
		{"exits", "import os\nos._exit(3)", "", "ends the template: exit status 3"},
		{"crashes", "import ctypes\nctypes.string_at(1)", "", "ends the template: signal: segmentation fault"},
		{"raises SystemExit", "import sys\nsys.exit(3)", "", "cannot be imported: SystemExit: 3"},
		{"has not the memory", "x = bytearray(1 << 60)", "", "cannot be imported: MemoryError:"},
		{"is over the limit of its memory", "x = bytearray(2 << 30)", "", "cannot be imported: MemoryError:"},
		{"is over the limit of the control group", "x = bytearray(256 << 20)", "signal: killed, at the import of bad", "ends the template: signal: killed"},
		{"is gone", "raise ModuleNotFoundError('x')", "", "cannot be imported: ModuleNotFoundError: x"},
		{"imports what is not installed", "sys.path.append(os.path.dirname(os.path.dirname(__file__)))\nimport outsider", "", "imports outsider, which is not an installed module"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			now := filepath.Join(l.dir, "now")
			script := l.packages(map[string]string{
				"clean": "",
				"bad":   "import os, sys\nif os.path.exists('" + now + "') and '-c' in sys.argv:\n    " + strings.ReplaceAll(tt.body, "\n", "\n    ") + "\n",
			})
			l.script("outsider.py", "")
			first := "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n" // as by ulimit -v
			if strings.Contains(tt.name, "control group") {
				first = "import os\nwith open('" + small(t) + "', 'w') as f:\n    f.write(str(os.getpid()))\n"
			}
			l.script("site-packages/sitecustomize.py", first)
			l.run(l.host().Start, 1, "-u", script) // learns
			if err := os.WriteFile(now, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if tt.name == "hangs" {
				l.limit = 5 * time.Second
			}
			before := l.log.String()
			got := l.run(l.host().Start, 2, "-u", script)
			said := strings.TrimPrefix(l.log.String(), before)
			// The template that is to follow may get to the import, too, and the first be made anew by then.
			want, cold := "['clean']\n", strings.Count(said, "started cold")
			if cold == 1 && tt.reason != "" {
				want = "[]\n"
			} else if cold > 0 {
				t.Errorf("%d cold starts:\n%s", cold, said)
			}
			for rank, e := range got {
				if e.Code != 0 || e.Stdout != want {
					t.Errorf("rank %d: %+v, want %q", rank, e, want)
				}
			}
			if slow := `takes long to import a module" module=bad so_far=`; tt.name == "hangs" && !strings.Contains(said, slow) || !strings.Contains(said, tt.reason) {
				t.Errorf("no %q and %q:\n%s", slow, tt.reason, said)
			}
			if got := l.run(l.host().Start, 1, "-u", script); got[0].Stdout != "['clean']\n" {
				t.Errorf("the job after it: %+v", got[0])
			}
			l.left(t, "bad\t"+tt.left)
		})
	}
}

// A directory in which another user can write is not used, of which the log warns once in a job.
func TestUnusableDir(t *testing.T) {
	l := newLab(t)
	script := l.packages(map[string]string{"clean": ""})
	l.run(l.host().Start, 1, "-u", script) // learns
	found, err := filepath.Glob(filepath.Join(l.cache, "*"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	must(t, os.Chmod(found[0], 0o777))
	h := l.host()
	for range 2 {
		if got := l.run(h.Start, 1, "-u", script); got[0].Stdout != "[]\n" {
			t.Errorf("%+v", got[0])
		}
	}
	if s := l.log.String(); strings.Count(s, `level=WARN msg="cannot save what warm starts learn" error="`+found[0]+` is not a directory that only this user can change"`) != 1 {
		t.Errorf("not one warning:\n%s", s)
	}
}

// small makes a control group with a limit of 64 MiB on memory, and returns the file by which a process joins it.
func small(t *testing.T) string {
	t.Helper()
	dir, limits := "/sys/fs/cgroup/memory", map[string]string{"memory.swappiness": "0", "memory.limit_in_bytes": "64M"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil { // version 2
		dir, limits = "/sys/fs/cgroup", map[string]string{"memory.swap.max": "0", "memory.max": "64M"}
	}
	dir = filepath.Join(dir, fmt.Sprint("muster-test-", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("no control group of its own: ", err)
	}
	t.Cleanup(func() { must(t, os.Remove(dir)) })
	for name, value := range limits {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0); err != nil {
			t.Skip("no limit on memory: ", err)
		}
	}
	return filepath.Join(dir, "cgroup.procs")
}

// A script that changes while the job runs: the next attempt runs what is there then.
func TestScriptChanges(t *testing.T) {
	l := newLab(t)
	h := l.host()
	for _, text := range []string{"1", "2"} {
		if got := l.run(h.Start, 1, "-u", l.script("script.py", "print("+text+")\n")); got[0].Stdout != text+"\n" {
			t.Errorf("got %+v, want %s", got[0], text)
		}
	}
	if s := l.log.String(); strings.Contains(s, "cold") || !strings.Contains(s, "template of warm starts is ready") {
		t.Errorf("not from a template:\n%s", s)
	}
	if err := os.Remove(filepath.Join(l.dir, "script.py")); err != nil {
		t.Fatal(err)
	}
	if got := l.run(h.Start, 1, "-u", filepath.Join(l.dir, "script.py")); got[0].Code != 2 || !strings.Contains(got[0].Stderr, "No such file") {
		t.Errorf("without a script: %+v", got[0])
	}
}

// A virtual environment that is deleted, or gets another package, makes the next start cold, but
// not the one after it.
func TestEnvironmentChanges(t *testing.T) {
	l := newLab(t)
	venv := filepath.Join(l.dir, "venv")
	if out, err := exec.Command(l.python, "-m", "venv", "--without-pip", venv).CombinedOutput(); err != nil {
		t.Skipf("no virtual environments: %v\n%s", err, out)
	}
	l.python = filepath.Join(venv, "bin", "python3")
	script := l.script("script.py", "import sys\nprint(sys.prefix)\n")
	h := l.host()
	start := func(reason string) {
		t.Helper()
		before := l.log.String()
		if got := l.run(h.Start, 1, "-u", script); got[0].Stdout != venv+"\n" {
			t.Errorf("got %+v, want %s", got[0], venv)
		}
		if s := strings.TrimPrefix(l.log.String(), before); strings.Contains(s, "started cold") != (reason != "") || !strings.Contains(s, reason) {
			t.Errorf("want the reason %q:\n%s", reason, s)
		}
	}
	start("")
	h.Close()
	h = l.host() // which has all that the worker imports, and makes no other template beside the next ones
	start("")
	site, err := filepath.Glob(filepath.Join(venv, "lib", "python*", "site-packages"))
	if err != nil || len(site) != 1 {
		t.Fatal(site, err)
	}
	if err := os.WriteFile(filepath.Join(site[0], "new.py"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start("a package was installed or removed")
	start("")
	if err := os.RemoveAll(venv); err != nil {
		t.Fatal(err)
	}
	if g, err := h.Start(l.workers(1, "-u", script)); err == nil {
		t.Errorf("workers without an interpreter: %v", g.PIDs())
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// A Python that cannot fork: workers start cold, which is said once.
func TestNoFork(t *testing.T) {
	l := newLab(t)
	l.script("sitecustomize.py", "import os\ndel os.fork\n")
	l.env = append(l.env, "PYTHONPATH="+l.dir)
	script := l.script("script.py", "print('ran')\n")
	h := l.host()
	for range 2 {
		for _, e := range l.run(h.Start, 2, "-u", script) {
			if e.Stdout != "ran\n" {
				t.Errorf("got %+v", e)
			}
		}
	}
	if s := l.log.String(); strings.Count(s, "started cold") != 1 || !strings.Contains(s, "this Python cannot fork") {
		t.Errorf("not said once:\n%s", s)
	}
	if s := h.Stats(); s.WarmStarts != 0 || s.ColdStarts != 4 || s.Ready {
		t.Errorf("statistics are %+v", s)
	}
}

// What makes a start cold, with the reason, while the worker runs all the same.
func TestCold(t *testing.T) {
	const say = "print('ran')\n"
	tests := []struct {
		name, body string
		prepare    func(l *lab)
		args       []string
		workers    int
		reason     string
	}{
		{name: "a variable that libraries have read", body: "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n" +
			"if os.path.exists('/proc/self/fd/4'):\n    print(os.readlink('/proc/self/fd/4'))\n" + say, reason: "the script sets OMP_NUM_THREADS"},
		{name: "its own ctypes.py", body: say, prepare: func(l *lab) { l.script("ctypes.py", "") }, reason: "stands before an installed module"},
		{name: "its own package ctypes", body: say, prepare: func(l *lab) {
			if err := os.Mkdir(filepath.Join(l.dir, "ctypes"), 0o700); err != nil {
				l.t.Fatal(err)
			}
			l.script("ctypes/__init__.py", "")
		}, reason: "stands before an installed module"},
		{name: "in code of --run-path", reason: "the script sets OMP_NUM_THREADS", prepare: func(l *lab) {
			l.script("other.py", "import os\nos.environ.update(OMP_NUM_THREADS='1')\n"+say)
		}, args: []string{"-c", "import runpy, sys\nrunpy.run_path(sys.argv[1])", "other.py"}},
		{name: "another process in between", body: say, prepare: func(l *lab) {
			wrapper := l.script("python3", "#!/bin/sh\n"+l.python+" \"$@\"\nexit $?\n")
			must(l.t, os.Chmod(wrapper, 0o700))
			l.python = wrapper
		}, reason: "another process stands between"},
		{name: "an option", args: []string{"-i", "-c", "print('ran')"}, reason: "option -i"},
		{name: "CPUs", body: say, workers: 2, prepare: func(l *lab) { l.cpus = map[int][]int{1: firstCPUs(l.t, 1)} }, reason: "different numbers of CPUs"},
		{name: "CPUs and OpenMP", body: say, workers: 2, prepare: func(l *lab) {
			l.env = append(l.env, "OMP_PROC_BIND=true")
			cpus := firstCPUs(l.t, 2)
			l.cpus = map[int][]int{0: cpus[:1], 1: cpus[1:]}
		}, reason: "OMP_PROC_BIND has libraries look"},
		{name: "a hook of the interpreter", body: say, prepare: func(l *lab) {
			l.script("sitecustomize.py", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()")
			l.env = append(l.env, "PYTHONPATH="+l.dir)
		}, reason: "before any import, starts a thread"},
		{name: "a hook that knows its rank", body: say, prepare: func(l *lab) {
			l.script("sitecustomize.py", "import os\nx = os.environ.get('RANK')")
			l.env = append(l.env, "PYTHONPATH="+l.dir)
		}, reason: "sitecustomize.py, which the interpreter runs first, has RANK"},
		{name: "an archive", reason: "the script is an archive", prepare: func(l *lab) {
			var archive bytes.Buffer
			z := zip.NewWriter(&archive)
			f, err := z.Create("__main__.py")
			must(l.t, err)
			_, err = f.Write([]byte(say))
			must(l.t, errors.Join(err, z.Close()))
			l.script("app.pyz", archive.String())
		}, args: []string{"-u", "app.pyz"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			if tt.prepare != nil {
				tt.prepare(l)
			}
			args := tt.args
			if args == nil {
				args = []string{"-u", l.script("script.py", tt.body)}
			}
			h := l.host()
			if strings.HasPrefix(tt.name, "its own") { // what is imported is learnt from another script
				args = []string{"-u", l.script("script.py", "import ctypes\n"+say)}
			}
			if last := &args[len(args)-1]; *last == "other.py" || *last == "app.pyz" {
				*last = filepath.Join(l.dir, *last)
			}
			got := l.run(h.Start, max(1, tt.workers), args...)
			if !strings.HasPrefix(got[0].Stdout, "ran") || got[0].Code != 0 {
				t.Errorf("the worker: %+v", got[0])
			}
			h.Close() // nobody writes any more
			if s := l.log.String(); !strings.Contains(s, tt.reason) || !strings.Contains(s, "cold") {
				t.Errorf("no %q in:\n%s", tt.reason, s)
			}
		})
	}
}

// Files and directories beside a script that have a module's name, but are none, change nothing.
func TestNamesOfModules(t *testing.T) {
	l := newLab(t)
	l.script("ctypes.txt", "")
	if err := os.Mkdir(filepath.Join(l.dir, "site"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := l.host()
	l.run(h.Start, 1, "-u", l.script("script.py", "import ctypes\n"))
	if s := h.Stats(); s.WarmStarts != 1 {
		t.Errorf("statistics are %+v:\n%s", s, l.log.String())
	}
}

// firstCPUs returns n CPUs that this process may use.
func firstCPUs(t *testing.T, n int) (cpus []int) {
	t.Helper()
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; len(cpus) < n && cpu < 1024; cpu++ {
		if mine.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	if len(cpus) < n {
		t.Skipf("needs %d CPUs", n)
	}
	return cpus
}

// Workers that are bound to CPUs are forks of a template that may use as many, and may use
// their own.
func TestBound(t *testing.T) {
	l := newLab(t)
	cpus := firstCPUs(t, 2)
	l.cpus = map[int][]int{0: cpus[:1], 1: cpus[1:]}
	script := l.packages(map[string]string{"counts": "import os\nn = len(os.sched_getaffinity(0))\n"})
	const body = "import counts, os\nprint(counts.n, os.sched_getaffinity(0))\n"
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	script = l.script("script.py", string(text)+body)
	l.run(l.host().Start, 2, "-u", script) // learns
	for rank, e := range l.run(l.host().Start, 2, "-u", script) {
		if want := fmt.Sprintf("['counts']\n1 {%d}\n", cpus[rank]); e.Stdout != want {
			t.Errorf("rank %d: %+v, want %q", rank, e, want)
		}
	}
	if s := l.log.String(); strings.Contains(s, "cold") {
		t.Errorf("workers have started cold:\n%s", s)
	}
}

// A template that is killed costs nothing but the warm start of those workers, and another
// one takes its place.
func TestTemplateKilled(t *testing.T) {
	l := newLab(t)
	l.env = append(l.env, testproc.Unpaused)
	h := l.host()
	script := l.script("script.py", "import os, time\nprint(os.environ['RANK'], 'ran')\ntime.sleep(0)\n")
	l.run(h.Start, 1, "-u", script)
	pid := regexp.MustCompile(`template of warm starts is ready.* pid=(\d+)`).FindStringSubmatch(l.log.String())
	if pid == nil {
		t.Fatalf("no template:\n%s", l.log.String())
	}
	n, _ := strconv.Atoi(pid[1])
	if err := syscall.Kill(n, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	start := func(cfg process.Config) (*process.Group, error) {
		time.AfterFunc(2*time.Second, func() { _ = syscall.Kill(n, syscall.SIGKILL) }) // once it has been asked
		return h.Start(cfg)
	}
	for rank, e := range l.run(start, 2, "-u", script) {
		if e.Code != 0 || e.Stdout != fmt.Sprintf("%d ran\n", rank) {
			t.Errorf("rank %d: %+v", rank, e)
		}
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("took %v", took)
	}
	if s := l.log.String(); !strings.Contains(s, "no warm start: workers are started cold") || !strings.Contains(s, "the template has ended") {
		t.Errorf("nothing is said:\n%s", s)
	}
	before := l.log.String()
	l.run(h.Start, 1, "-u", script)
	if s := strings.TrimPrefix(l.log.String(), before); strings.Contains(s, "cold") {
		t.Errorf("the next start is cold:\n%s", s)
	}
}

// The template is made before there is a group to start.
func TestPrepare(t *testing.T) {
	l := newLab(t)
	script := l.packages(map[string]string{"clean": ""})
	first := l.host()
	l.run(first.Start, 1, "-u", script) // learns
	if s := first.Stats(); !s.Ready || s.WarmStarts != 1 || s.ColdStarts != 0 || s.PSSBytes < 1<<20 || s.BuildSeconds <= 0 || s.Modules == 0 {
		t.Errorf("statistics are %+v", s)
	}
	first.Close()
	if s := first.Stats(); s.Ready || s.PID != 0 || s.WarmStarts != 1 {
		t.Errorf("at the end, statistics are %+v", s)
	}

	h := l.host()
	before := l.log.String()
	h.Prepare(func() process.Config { return l.workers(2, "-u", script) })
	await(t, "a template", func() bool { return h.Stats().Ready })
	pid := h.Stats().PID
	for rank, e := range l.run(h.Start, 2, "-u", script) {
		if e.Stdout != "['clean']\n" {
			t.Errorf("rank %d: %+v", rank, e)
		}
	}
	if s := h.Stats(); s.PID != pid || s.WarmStarts != 2 || s.ColdStarts != 0 {
		t.Errorf("prepared as %d, then %+v", pid, s)
	}
	if s := strings.TrimPrefix(l.log.String(), before); strings.Count(s, "template of warm starts is ready") != 1 {
		t.Errorf("not one template:\n%s", s)
	}
}

// Whoever waits for the workers' variables for ever does not keep a Host from its end.
func TestPrepareStuck(t *testing.T) {
	h := newLab(t).host()
	stuck := make(chan process.Config)
	h.Prepare(func() process.Config { return <-stuck })
	h.Close()
	close(stuck)
}

// A wrapper of Python, as pyenv has them, asks another program first: that ends with the template, too.
func TestWrapper(t *testing.T) {
	l := newLab(t)
	began, python := filepath.Join(l.dir, "began"), l.python
	l.python = filepath.Join(l.dir, "python3")
	if err := testproc.WriteProgram(l.python, "#!/bin/sh\nsleep 1000 &\necho $! >"+began+"~\nmv "+began+"~ "+began+"\nwait\nexec "+python+" \"$@\"\n"); err != nil {
		t.Fatal(err)
	}
	h := l.host()
	h.Prepare(func() process.Config { return l.workers(1, "-u", l.script("script.py", "")) })
	var pid int
	await(t, "the wrapper", func() bool {
		text, _ := os.ReadFile(began)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid != 0
	})
	h.Close()
	if !testproc.AwaitEnd(pid, 10*time.Second) {
		t.Error("what the wrapper has started runs on")
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(testproc.Patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", testproc.Patience, what)
		}
	}
}

// A worker that fails in its first second makes the next start cold, and only that.
func TestEarlyDeath(t *testing.T) {
	l := newLab(t)
	l.env = append(l.env, testproc.Unpaused)
	h := l.host()
	script := l.script("script.py", "import sys\nsys.exit(5)\n")
	for i, want := range []bool{false, true, false} {
		before := l.log.String()
		if got := l.run(h.Start, 1, "-u", script); got[0].Code != 5 {
			t.Fatalf("start %d: %+v", i, got)
		}
		if s := strings.TrimPrefix(l.log.String(), before); strings.Contains(s, "started cold") != want {
			t.Errorf("start %d: cold should be %v:\n%s", i, want, s)
		}
	}
}

// What is learnt of a script is forgotten when the script changes, and not believed where
// others can write.
func TestMemory(t *testing.T) {
	l := newLab(t)
	script := l.script("script.py", "import sys\nprint('shelve' in sys.modules)\nimport shelve\n")
	start := func() string { l.t.Helper(); return l.run(l.host().Start, 1, "-u", script)[0].Stdout }
	if got := start() + start(); got != "False\nTrue\n" {
		t.Errorf("the module was there at the first and at the second start: %q", got)
	}
	l.script("script.py", "import sys\nprint('shelve' in sys.modules)\n\nimport shelve\n")
	if got := start(); got != "False\n" {
		t.Errorf("the module was there after the script changed: %q", got)
	}
	found, err := filepath.Glob(filepath.Join(l.cache, "*"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if err := os.WriteFile(filepath.Join(found[0], "modules"), []byte("no name\n\x00\xff\nimport os\nnot.there\n../x\nshelve\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := start(); got != "True\n" {
		t.Errorf("one good name among broken ones: %q", got)
	}
	if err := os.Chmod(found[0], 0o777); err != nil {
		t.Fatal(err)
	}
	if got := start(); got != "False\n" {
		t.Errorf("a directory in which others can write is believed: %q", got)
	}
	if err := os.Chmod(found[0], 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		for _, path := range []string{found[0], filepath.Join(found[0], "modules")} {
			if err := os.Chown(path, 1, 1); err != nil {
				t.Fatal(err)
			}
			if got := start(); got != "False\n" {
				t.Errorf("%s of another user is believed: %q", path, got)
			}
			if err := os.Chown(path, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}
