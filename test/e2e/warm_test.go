//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The template of warm starts is there before the host has a rank: on hosts that wait for others,
// and on a spare host, whose workers are forks of it when it takes a place.
func TestWarmBeforeRank(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs Python: ", err)
	}
	dir := t.TempDir()
	program := script(t, "train.py", `import os, sys, time
with open(os.path.join(os.environ["DIR"], os.environ["HOST"]), "a") as f:
    f.write("%s %s\n" % (os.environ["RANK"], os.getppid()))
while not os.path.exists(os.path.join(os.environ["DIR"], "end")):
    time.sleep(0.01)
`)
	flags := "--nnodes 2:2 --nproc-per-node 1 --warm -v --rdzv-backend c10d --rdzv-id warm --rdzv-conf last_call_timeout=1s --rdzv-endpoint 127.0.0.1:" + strconv.Itoa(freePort(t))
	host := func(name string) *job {
		t.Helper()
		j := start(t, muster(t), setup{env: []string{"XDG_CACHE_HOME=" + filepath.Join(dir, "cache-"+name), "DIR=" + dir, "HOST=" + name, "PYTHON_EXEC=" + python}}, flags, program)
		awaitText(j, "the template of warm starts is ready")
		return j
	}
	awaitFile := func(j *job, name string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return
			} else if time.Now().After(end) {
				t.Fatalf("no worker on %s:\n%s", name, j.errs())
			}
		}
	}
	a := host("a")
	if s := a.errs(); strings.Contains(s, "rendezvous complete") {
		t.Errorf("the template is not ready before the rendezvous:\n%s", s)
	}
	b := host("b")
	awaitFile(a, "a")
	awaitFile(b, "b")
	c := host("c")
	if s := c.errs(); strings.Contains(s, "rendezvous complete") {
		t.Errorf("host c has a rank:\n%s", s)
	}
	b.signal(syscall.SIGTERM)
	b.status()
	awaitFile(c, "c")
	if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, j := range []*job{a, c} {
		j.want(0).noneLeft(time.Second)
		if s := j.errs(); strings.Contains(s, "started cold") {
			t.Errorf("workers have started cold:\n%s", s)
		}
	}
}

// A host that joins a job in which others train does not interrupt them before its workers can start.
func TestWarmBeforeItJoins(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs Python: ", err)
	}
	dir := t.TempDir()
	program := script(t, "train.py", `import os, time
with open(os.environ["TESTPROC_BOARD"], "w") as board:
    board.write("up %s\n" % os.environ["WORLD_SIZE"])
while os.environ["WORLD_SIZE"] == "1":
    time.sleep(0.01)
`)
	gated := filepath.Join(dir, "python3")
	if err := os.WriteFile(gated, []byte("#!/bin/sh\nuntil [ -e "+dir+"/open ]; do sleep 0.01; done\nexec "+python+` "$@"`), 0o700); err != nil {
		t.Fatal(err)
	}
	flags := "--nnodes 1:2 --nproc-per-node 1 --warm -v --rdzv-backend c10d --rdzv-id warm --rdzv-conf last_call_timeout=1s --rdzv-endpoint 127.0.0.1:" + strconv.Itoa(freePort(t))
	host := func(name, python string) *job {
		t.Helper()
		return start(t, muster(t), setup{env: []string{"XDG_CACHE_HOME=" + filepath.Join(dir, "cache-"+name), "PYTHON_EXEC=" + python}}, flags, program)
	}
	a := host("a", python)
	a.await("up 1")
	b := host("b", gated)
	awaitText(b, "this host joins the job when its template of warm starts is ready")
	if s := a.errs(); strings.Contains(s, "other hosts join the job") {
		t.Errorf("it has joined:\n%s", s)
	}
	if err := os.WriteFile(filepath.Join(dir, "open"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, j := range []*job{a, b} {
		j.await("up 2")
		j.want(0).noneLeft(time.Second)
	}
}

// awaitText waits until the agent has said something.
func awaitText(j *job, text string) {
	j.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(j.errs(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			j.t.Fatalf("no %q:\n%s", text, j.errs())
		}
	}
}

// What a worker gets, does and leaves is the same when it is a fork of the template: these tests
// pass with --warm, too. Each worker of theirs is a script that becomes the program.
func TestJudgeThroughTemplate(t *testing.T) {
	judge(t)
	cmd := exec.Command(exe, "-test.v", "-test.parallel", "4", "-test.run", "^Test(EnvironmentEquals|ProcessEquals|PythonCommandLine|RunIDIsKept|"+
		"Threads|ReportHas|UndecoratedFailure|ErrorFile|ExitStatus|EventsMatch|EventFile|MetricsMatch|StreamsStay|StuckConsole|NothingIsLeft|LogTree|Tee|"+
		"Filters|NoLine|DiskFull|Signals|SecondSignal|SignalSkips|ShutdownTimeout|GraceIsKept|Nohup|Restarts|Pipeline|Console|Closed|Terminal|Preemption)")
	cmd.Env = append(os.Environ(), "E2E_WARM=1")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if n := strings.Count(string(out), "\n--- PASS"); err != nil || n < 40 {
		t.Errorf("%d tests pass: %v", n, err)
	}
}
