package warm_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/programs"
	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testproc"
)

// build returns muster, built.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, programs.Put(dir, "muster"))
	return filepath.Join(dir, "muster")
}

// judge skips what takes minutes, and what packages are installed for.
func judge(t *testing.T) {
	t.Helper()
	if os.Getenv("MUSTER_JUDGE") == "" {
		t.Skip("takes minutes; `make judge` runs it")
	}
}

// On a busy machine a job may be over before the agent has found all modules that break a rule.
const unlearnt = "several templates in turn have imported modules that break a rule"

// same runs a script on two workers, cold, and warm without knowledge and with it. What the
// workers write has to be the same, and no start cold.
func same(t *testing.T, muster, python, script string) {
	t.Helper()
	cache := t.TempDir()
	run := func(flags ...string) (results [2]string, log string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		out := t.TempDir()
		args := append([]string{"run", "--nproc-per-node", "2", "--max-restarts", "1"}, flags...)
		cmd := exec.CommandContext(ctx, muster, append(args, filepath.Join("testdata", script))...)
		cmd.Env = append(os.Environ(), "PYTHON_EXEC="+python, "XDG_CACHE_HOME="+cache, "TORCHINDUCTOR_CACHE_DIR="+out, "OUT="+out)
		text, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for rank := range results {
			body, err := os.ReadFile(filepath.Join(out, fmt.Sprint("out", rank)))
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			results[rank] = string(body)
		}
		return results, string(text)
	}
	want, _ := run()
	for _, when := range []string{"without knowledge", "with it"} {
		got, log := run("--warm")
		for range 4 {
			if strings.Contains(log, unlearnt) {
				got, log = run("--warm")
			}
		}
		if got != want {
			t.Errorf("%s: got %q, want %q as cold", when, got, want)
		}
		if strings.Contains(log, "started cold") {
			t.Errorf("%s, workers have started cold:\n%s", when, log)
		}
	}
}

// Real programs do the same as when they start cold.
func TestPrograms(t *testing.T) {
	muster := build(t)
	t.Run("processes of its own", func(t *testing.T) { same(t, muster, realPython(t), "pools.py") })
	t.Run("torch", func(t *testing.T) { same(t, muster, pypeer.Python(t), "programs.py") })
}

// Without --warm there is nothing of it: muster opens no file of what is learnt, and starts no
// process but its worker. A job with --warm does both, which shows that the test would see it.
func TestOff(t *testing.T) {
	muster, python, cache, dir := build(t), realPython(t), t.TempDir(), t.TempDir()
	script := filepath.Join(dir, "script.py")
	must(t, os.WriteFile(script, []byte("import os\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n    try:\n"+
		"        if open('/proc/%s/stat' % pid).read().rpartition(')')[2].split()[1] == str(os.getppid()):\n"+
		"            print('CHILD', open('/proc/%s/cmdline' % pid).read().replace('\\0', ' '))\n    except OSError:\n        pass  # it has ended\n"), 0o600))
	run := func(flags ...string) string {
		t.Helper()
		cmd := exec.Command(muster, append(append([]string{"run"}, flags...), script)...)
		cmd.Env = append(os.Environ(), "PYTHON_EXEC="+python, "XDG_CACHE_HOME="+cache, "TMPDIR="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	run("--warm") // learns
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	defer unix.Close(watch)
	must(t, filepath.WalkDir(cache, func(path string, entry os.DirEntry, err error) error {
		if err == nil {
			_, err = unix.InotifyAddWatch(watch, path, unix.IN_ALL_EVENTS)
		}
		return err
	}))
	touched := func() bool {
		n, err := unix.Read(watch, make([]byte, 1<<16))
		return err == nil && n > 0
	}
	_ = touched() // the walk
	for _, flags := range [][]string{nil, {"--warm"}} {
		out := run(flags...)
		isWarm := flags != nil
		if got := touched(); got != isWarm {
			t.Errorf("%v: files of warm starts are opened: %v", flags, got)
		}
		var more []string
		for line := range strings.Lines(out) {
			if strings.Contains(line, "CHILD") && !strings.Contains(line, "muster-guard") && !strings.Contains(line, script) {
				more = append(more, line)
			}
		}
		if (len(more) == 1) != isWarm || len(more) > 1 {
			t.Errorf("%v: more processes than the guard and the worker: %q", flags, more)
		}
	}
}

// The same with the compiler, and with trainers from PyPI. Each is restarted once.
func TestJudgePrograms(t *testing.T) {
	judge(t)
	muster, dir := build(t), t.TempDir()
	for _, script := range []string{"compiled.py", "trainer_lightning.py", "trainer_transformers.py"} {
		t.Run(script, func(t *testing.T) { same(t, muster, interpreter(t, script, dir), script) })
	}
}

// interpreter returns one that has what a program of testdata needs. In dir are those from PyPI.
func interpreter(t *testing.T, script, dir string) string {
	t.Helper()
	switch {
	case script == "pools.py":
		return realPython(t)
	case script == "compiled.py":
		if _, err := exec.LookPath("cc"); err != nil {
			t.Skipf("TorchInductor needs a C++ compiler: %v", err)
		}
	case strings.HasPrefix(script, "trainer_"):
		dir = filepath.Join(dir, "trainers")
		python := filepath.Join(dir, "bin", "python3")
		if _, err := os.Stat(python); err == nil {
			return python
		}
		if out, err := exec.Command("../../internal/tools/beside.sh", pypeer.Python(t), dir, "lightning", "transformers", "accelerate").CombinedOutput(); err != nil {
			_ = os.RemoveAll(dir)
			t.Skipf("cannot install Lightning and Transformers: %v\n%s", err, out)
		}
		return python
	}
	return pypeer.Python(t)
}

// Restarts at random moments, a few, and 200 of each program.
func TestRestarts(t *testing.T) {
	t.Run("steps.py", func(t *testing.T) { restarts(t, 10, pypeer.Python(t), "steps.py") })
	t.Run("pools.py", func(t *testing.T) { restarts(t, 3, realPython(t), "pools.py") })
}

func TestJudgeRestarts(t *testing.T) {
	judge(t)
	dir := t.TempDir()
	for _, script := range []string{"steps.py", "pools.py", "programs.py", "compiled.py", "trainer_lightning.py", "trainer_transformers.py"} {
		t.Run(script, func(t *testing.T) {
			python := interpreter(t, script, dir)
			t.Parallel() // most of it is to wait
			restarts(t, 200, python, script)
		})
	}
}

// restarts restarts a program n times at random moments between its beginning and its first step or
// its end: by muster restart, or by killing a worker. None hangs or is cold, nothing grows, nothing
// is left, and the last attempt has the result of a job that nobody restarts. How much sooner the first step
// comes, bench/ measures.
func restarts(t *testing.T, n int, python, script string) {
	muster := build(t)
	lab := testproc.New(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	out, enough := t.TempDir(), filepath.Join(t.TempDir(), "enough")
	env := append(lab.Env(), "PYTHON_EXEC="+python, "XDG_CACHE_HOME="+t.TempDir(), "TMPDIR="+t.TempDir(), "TORCHINDUCTOR_CACHE_DIR="+out, "OUT="+out, "ENOUGH="+enough)
	program := []string{filepath.Join("testdata", script)}
	if script != "steps.py" {
		program = []string{"testdata/again.py", program[0]}
	}
	var log text
	start := func() *exec.Cmd {
		t.Helper()
		// Some programs have a restart of their own.
		cmd := exec.Command(muster, append([]string{"run", "--warm", "--nproc-per-node", "2", "--max-restarts", strconv.Itoa(n + 1)}, program...)...)
		cmd.Env, cmd.Stdout, cmd.Stderr = env, &log, &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // after what is fatal
			if cmd.ProcessState == nil {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				_ = cmd.Wait()
			}
		})
		return cmd
	}
	// said waits until a worker says a word in an attempt, or in another one.
	said := func(want, in string, other bool) (attempt string, pid int) {
		t.Helper()
		for {
			word, rest, _ := strings.Cut(lab.Line(), " ")
			attempt, number, _ := strings.Cut(rest, " ")
			if word == want && (attempt == in) != other {
				pid, err := strconv.Atoi(number)
				if err != nil {
					t.Fatal(err)
				}
				return attempt, pid
			}
		}
	}
	// works waits until both workers have come to their step.
	works := func(attempt string) {
		t.Helper()
		said("step", attempt, false)
		said("step", attempt, false)
	}
	results := func() (all [2]string) {
		for rank := range all {
			body, _ := os.ReadFile(filepath.Join(out, fmt.Sprint("out", rank)))
			all[rank] = string(body)
			_ = os.Remove(filepath.Join(out, fmt.Sprint("out", rank)))
		}
		return all
	}
	stop := func(job *exec.Cmd) {
		t.Helper()
		if err := os.WriteFile(enough, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := job.Wait(); err != nil {
			t.Fatalf("%v\n%s", err, log.String())
		}
		if err := os.Remove(enough); err != nil {
			t.Fatal(err)
		}
	}
	var job *exec.Cmd
	for i := range 6 {
		log.Reset()
		job = start() // learns
		said("step", "", true)
		said("step", "", true)
		stop(job)
		if (i > 0 || n < 100) && !strings.Contains(log.String(), unlearnt) {
			break // it has had a template, or the program is one of those that need no second try
		}
	}
	want, learnt := results(), len(log.String())
	job = start()
	attempt, pid := said("begin", "", true)
	begun := time.Now()
	if strings.HasPrefix(script, "trainer_") || script == "compiled.py" { // which restart themselves
		attempt, pid = said("begin", attempt, true)
		begun = time.Now()
	}
	works(attempt)
	took := min(max(time.Since(begun), 400*time.Millisecond), 5*time.Second) // of DDP more, which trains on; on a busy machine less
	t.Logf("an attempt takes %v", took)
	var first use
	for i := range n {
		if i == n/5 {
			if i != 0 {
				works(attempt)
			}
			first = measure(t, lab, job.Process.Pid)
		}
		time.Sleep(time.Duration(random.Float64() * random.Float64() * float64(took))) // more often early on, where a start is
		if random.IntN(5) == 0 {
			time.Sleep(1100 * time.Millisecond) // earlier, the next start would be cold
			_ = syscall.Kill(pid, syscall.SIGKILL)
		} else {
			for { // until all of its workers run
				out, err := exec.Command(muster, "restart", strconv.Itoa(job.Process.Pid)).CombinedOutput()
				if err == nil {
					break
				}
				if !bytes.Contains(out, []byte("no workers of this host run at the moment")) {
					t.Fatalf("%v: %s\n%s", err, out, log.String())
				}
			}
		}
		attempt, pid = said("begin", attempt, true)
	}
	works(attempt)
	last := measure(t, lab, job.Process.Pid)
	for deadline := time.Now().Add(10 * time.Second); (last.agent > first.agent || last.descriptors > first.descriptors) && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		last = measure(t, lab, job.Process.Pid) // a busy one may still have the files of the last attempt
	}
	t.Logf("after %d restarts %+v, after %d %+v", n/5, first, n, last)
	if last.agent > first.agent || last.descriptors > first.descriptors {
		t.Errorf("open descriptors: %d and %d, then %d and %d", first.agent, first.descriptors, last.agent, last.descriptors)
	}
	// An attempt that runs for 12 s is looked at again, and the template may be another one then.
	if grown := last.memory - first.memory; grown > 2<<10 && last.template == first.template {
		t.Errorf("the template's memory has grown by %d KiB", grown)
	}
	stop(job)
	if got := results(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if strings.Contains(log.String(), "cold") {
		t.Errorf("a start was cold:\n%s", log.String())
	}
	if script == "steps.py" {
		ownSeeds(t, log.String()[learnt:])
	}
}

// ownSeeds checks that the workers of three attempts or more have found torch imported, and that each has
// random numbers of its own.
func ownSeeds(t *testing.T, log string) {
	t.Helper()
	seeds := map[string]bool{}
	all := regexp.MustCompile(`(?m)^SEED (\d+) (\d)$`).FindAllStringSubmatch(log, -1)
	for _, m := range all {
		if m[2] != "1" {
			t.Error("a worker has not found torch imported")
		}
		seeds[m[1]] = true
	}
	if len(all) < 6 || len(seeds) != len(all) {
		t.Errorf("%d workers have %d seeds:\n%s", len(all), len(seeds), log)
	}
}

// A use is what an agent and its template have.
type use struct {
	agent               int    // open descriptors of the agent
	template            string // its PID
	descriptors, memory int    // of the template: open ones, and KiB that are of no file
}

// measure waits until there is one template: the next one is ready before the last one ends.
func measure(t *testing.T, lab *testproc.Lab, agent int) (u use) {
	t.Helper()
	var templates []string
	for deadline := time.Now().Add(time.Minute); len(templates) != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the templates are %q", templates)
		}
		templates = nil
		for _, pid := range lab.Left() {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if bytes.Contains(line, []byte("muster: template of warm starts")) {
				templates = append(templates, strconv.Itoa(pid))
			}
		}
	}
	template := templates[0]
	u.template = template
	descriptors := func(pid string) int {
		all, err := os.ReadDir("/proc/" + pid + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	u.agent, u.descriptors = descriptors(strconv.Itoa(agent)), descriptors(template)
	text, err := os.ReadFile("/proc/" + template + "/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^Anonymous: +(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s", text)
	}
	u.memory, err = strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return u
}
