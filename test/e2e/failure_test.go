//go:build linux

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/testproc"
)

var (
	anyPID   = regexp.MustCompile(`\bpid: \d+|PID \d+`)
	anyTime  = regexp.MustCompile(`\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d`)
	anyHost  = regexp.MustCompile(`(?m)^  host      : .+$`)
	anyIndex = regexp.MustCompile(`(?m)^\[\d+\]:$`)
	anyRun   = regexp.MustCompile(`/[^ ]*/attempt_`)
)

// rootCause returns the lines of the report's root cause, without what differs
// from run to run.
func (j *job) rootCause() []string {
	j.t.Helper()
	_, block, ok := strings.Cut(j.errs(), "Root Cause (first observed failure):\n")
	if !ok {
		j.t.Fatalf("%s shows no root cause\n%s", j.l.name, j.console())
	}
	if end := regexp.MustCompile(`(?m)^(-{10,}|={10,})$`).FindStringIndex(block); end != nil {
		block = block[:end[0]]
	}
	block = anyPID.ReplaceAllString(block, "pid: N")
	block = anyTime.ReplaceAllString(block, "TIME")
	block = anyHost.ReplaceAllString(block, "host      : HOST") // torchrun's may be "localhost"
	block = anyIndex.ReplaceAllString(block, "[N]:")
	block = anyRun.ReplaceAllString(block, "RUN/attempt_")
	return strings.Split(strings.TrimSuffix(block, "\n"), "\n")
}

// sameReport checks that every line of torchrun's entry is in ours, in the same order:
// tools that look for its fields find them.
func sameReport(t *testing.T, ours, theirs *job) {
	t.Helper()
	got := ours.rootCause()
	for _, line := range theirs.rootCause() {
		if strings.HasPrefix(line, "  traceback : To enable traceback see: ") {
			line = "  traceback : none, neither in an error file nor on the worker's stderr" // advice for Python only
		}
		i := slices.Index(got, line)
		if i < 0 {
			t.Errorf("torchrun's line %q is missing, or not in its place\n%s", line, ours.console())
			break
		}
		got = got[i+1:]
	}
	ours.says(strings.Join(grep(theirs.errs(), ` FAILED$`), ""), "\nFailures:\n", "  <NO_OTHER_FAILURES>\n")
}

func TestReportHasTorchrunsLines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		program []string
	}{
		{"exit", worker("r1:exit:3", "hang")},
		{"signal", worker("r1:kill:KILL", "hang")},
		{"record of any language", worker(`r1:errorfile:{"message": "out of cheese", "timestamp": "1700000000"}`, "r1:exit:1", "hang")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const flags = "--standalone --nproc-per-node 2 --no-python"
			theirs := run(t, torchrun(t), setup{forked: true}, flags, tt.program...).want(1)
			ours := run(t, muster(t), setup{}, flags, tt.program...).want(1).noneLeft(0)
			sameReport(t, ours, theirs)
		})
	}
}

// The first line says what happened, and the traceback is there although nothing
// recorded it.
func TestUndecoratedFailure(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, flags string }{{"console", ""}, {"redirected", "-r 3"}, {"tee", "-t 3"}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			j := run(t, muster(t), withPython(t), "--standalone --nproc-per-node 2 "+tt.flags+" --log-dir "+dir, "testdata/raise.py").want(1).noneLeft(0)
			first := grep(j.errs(), "^muster: rank")
			if len(first) == 0 || !strings.Contains(first[0], "rank 1") || !strings.Contains(first[0], "ValueError: boom") {
				t.Errorf("first line of the report: %q\n%s", first, j.console())
			}
			cause := strings.Join(j.rootCause(), "\n")
			if !strings.Contains(cause, "Traceback (most recent call last)") || !strings.Contains(cause, "in inner") {
				t.Errorf("no traceback in\n%s", cause)
			}
			// The same for machines.
			var report map[string]any
			if err := json.Unmarshal([]byte(contents(t, one(t, dir, "*/attempt_0/report.json"))), &report); err != nil {
				t.Error(err)
			}
		})
	}
}

// What torchrun hands to its own parent we hand over as well, and the report has what
// PyTorch's @record has recorded.
func TestErrorFileIsPropagated(t *testing.T) {
	t.Parallel()
	var got [2]any
	var jobs [2]*job
	for i, l := range []launcher{muster(t), torchrun(t)} {
		path := filepath.Join(t.TempDir(), "agent_error.json")
		s := withForks(t, "TORCHELASTIC_ERROR_FILE="+path)
		s.forked = true
		jobs[i] = run(t, l, s, "--standalone --nproc-per-node 2", "testdata/rec.py").want(1)
		text := regexp.MustCompile(`"timestamp": "\d+"`).ReplaceAllString(contents(t, path), `"timestamp": "T"`)
		if err := json.Unmarshal([]byte(text), &got[i]); err != nil {
			t.Fatalf("%s: %v in %s", l.name, err, text)
		}
	}
	if diff := cmp.Diff(got[1], got[0]); diff != "" {
		t.Errorf("(-torchrun +muster)\n%s", diff)
	}
	sameReport(t, jobs[0].noneLeft(0), jobs[1])
	if code := got[0].(map[string]any)["message"].(map[string]any)["errorCode"]; code != 1.0 {
		t.Errorf("errorCode is %v, want 1", code)
	}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		flags string
		env   []string
		steps []string
		want  int
	}{
		{name: "success", steps: []string{"exit:0"}, want: 0},
		{name: "failure", steps: []string{"r1:exit:3", "hang"}, want: 1},
		{name: "signal", steps: []string{"r1:kill:SEGV", "hang"}, want: 1},
		{name: "failure of a worker", flags: "--exit-code worker", steps: []string{"r1:exit:3", "hang"}, want: 3},
		{name: "signal of a worker", flags: "--exit-code=worker", steps: []string{"r1:kill:KILL", "hang"}, want: 128 + 9},
		{name: "by environment", env: []string{"MUSTER_EXIT_CODE=worker"}, steps: []string{"r1:exit:42", "hang"}, want: 42},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			workers(t, muster(t), setup{env: tt.env}, "--standalone --nproc-per-node 2 "+tt.flags, tt.steps...).want(tt.want).noneLeft(0)
		})
	}
}

// What cannot be executed is explained like any other failure.
func TestCannotExecute(t *testing.T) {
	t.Parallel()
	noShebang := script(t, "noshebang", "echo hi\n")
	noInterpreter := script(t, "nointerpreter", "#!/opt/missing/python\n")
	for _, tt := range []struct {
		program string
		says    []string
	}{
		{noShebang, []string{noShebang, "xec format error"}},
		{noInterpreter, []string{"/opt/missing/python"}},
	} {
		j := run(t, muster(t), setup{}, "--standalone --nproc-per-node 2 --no-python", tt.program)
		j.want(1).says(tt.says...).noneLeft(0)
	}
}

// A worker that the kernel killed for memory is told from one that somebody
// killed, by the kernel's own counters.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	group := memoryGroup(t, 256<<20)
	s := setup{wrap: []string{"/bin/sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(group, "cgroup.procs")}}
	j := workers(t, muster(t), s, "--standalone --nproc-per-node 2", "r1:alloc:1024", "hang").want(1).noneLeft(0)
	first := strings.Join(grep(j.errs(), "^muster: "), "\n")
	if !strings.Contains(first, "out of memory") {
		t.Errorf("the report does not say why: %q\n%s", first, j.console())
	}
	j = workers(t, muster(t), s, "--standalone --nproc-per-node 2", "r1:kill:KILL", "hang").want(1)
	if first := strings.Join(grep(j.errs(), "^muster: "), "\n"); strings.Contains(first, "out of memory") {
		t.Errorf("a plain SIGKILL is taken for want of memory: %q", first)
	}
}

// memoryGroup makes a control group with a memory limit, of version 1 or 2.
func memoryGroup(t *testing.T, limit int) string {
	t.Helper()
	for _, v := range []struct{ root, file string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max"},
	} {
		group, err := os.MkdirTemp(v.root, "muster-e2e-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { os.Remove(group) })
		if os.WriteFile(filepath.Join(group, v.file), []byte(itoa(limit)), 0) == nil {
			return group
		}
	}
	t.Skip("needs a memory control group that can be made: root")
	return ""
}

// On a full disk there is no report, rather than half of one.
func TestReportOnFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs to be root, to mount a small file system")
	}
	dir, found := t.TempDir(), filepath.Join(t.TempDir(), "found")
	wrap := []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs -o size=64k tmpfs "$0" && "$@"; s=$?; find "$0" -name "*report.json*" >` + found + `; exit $s`, dir}
	j := start(t, muster(t), setup{wrap: wrap}, "--standalone --no-python --log-dir "+dir, "sh", "-c", "cat /dev/zero >"+dir+"/fill; exit 3")
	j.want(1).says("cannot write the failure report", "no space left on device")
	if got := contents(t, found); got != "" {
		t.Errorf("left behind: %s", got)
	}
}

// The agent that holds the rendezvous waits for one that has not heard yet how the job ended.
func TestLateAgentHearsTheFailure(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2", "", "report:$RANK", "gate", "r0:exit:3", "hang")
	m.conf, m.env = "keep_alive_max_attempt=60", []string{testproc.Unpaused}
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"})
	agents[0].await("0", "1")
	agents[1].signal(syscall.SIGSTOP)
	m.gate.Open()
	agents[0].awaitErrs("[M1222]", 1)
	agents[1].signal(syscall.SIGCONT)
	wantAll(agents, 1)
	agents[1].says(": exit code 3").saysNot("lost the connection")
}
