//go:build linux

package e2e

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/testproc"
)

// asPID1 makes muster the first process of a pid namespace with its own /proc, as it
// is in a container. wrap comes after that.
func asPID1(t testing.TB, wrap ...string) setup {
	t.Helper()
	s := setup{
		wrap: slices.Concat([]string{"/bin/sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc && exec "$@"`, "sh"}, wrap),
		attr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS},
	}
	needs(t, s)
	return s
}

// needs skips the test where nothing can be started like that.
func needs(t testing.TB, s setup) {
	t.Helper()
	argv := append(slices.Clone(s.wrap), "/bin/true")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = s.attr
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("cannot start %q: %v\n%s", argv, err, out)
	}
}

// An agent that is PID 1 serves its workers' timers of both kinds and their
// heartbeats, watches over hangs, and drains, as any other; nothing of an attempt is
// there in the next. The same where there are no pidfds.
func TestPID1(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		wrap []string
	}{{"plain", nil}, {"no pidfds", testproc.Refuse(testproc.NoPidfds()...)}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := asPID1(t, tt.wrap...)
			dir := t.TempDir()
			socket := filepath.Join(dir, "health")
			s.env = []string{"TORCHELASTIC_ENABLE_FILE_TIMER=1"}
			drained := workers(t, muster(t), s, "--standalone --preemption-signals TERM --health-addr unix:"+socket, "beat:17", "catch:TERM", "exit:0")
			j := workers(t, muster(t), s, "--standalone --max-restarts 3 --hang-timeout 2 --shutdown-timeout 1 --log-dir "+dir,
				"census", "a0:brood", "a0:timer:fifo", "a1:timer:socket", "a3:exit:0", "hang")

			drained.await("ready 0")
			p := probe(t, socket)
			for late := time.Now().Add(patience); ; {
				if _, state := p.get("/v1/state", patience); strings.Contains(state, `"step":17`) {
					break
				} else if time.Now().After(late) {
					t.Fatalf("no heartbeat in the state: %s", state)
				}
			}
			p.end()
			drained.signal(syscall.SIGTERM)
			drained.await("SIGTERM at 0").want(75).noneLeft(0)

			j.want(0).noneLeft(0).saysNot("refused")
			for attempt, cause := range []string{`missed a deadline: timer "a step" ran out at `, `missed a deadline: timer "a step" ran out at `, "missed a deadline: --hang-timeout"} {
				var report struct{ Cause string }
				readJSON(t, filepath.Join(dir, "*", "attempt_"+itoa(attempt), "report.json"), &report)
				if !strings.Contains(report.Cause, cause) {
					t.Errorf("cause of the end of attempt %d: %s", attempt, report.Cause)
				}
			}
			census := slices.DeleteFunc(j.rest(), func(line string) bool { return line == "grandchild" })
			// In the first one the guard may not have its name yet.
			if want := slices.Repeat([]string{"agent 1, others: "}, 3); len(census) != 4 || !slices.Equal(census[1:], want) {
				t.Errorf("at the beginning of each attempt: %q, want %q", census, want)
			}
		})
	}
}
