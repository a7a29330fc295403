package process_test

import (
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// The kernel kills a worker that uses more memory than its cgroup may have.
func TestOOM(t *testing.T) {
	for _, tt := range []struct{ name, want string }{
		{"log", `^1 \d+ -9 kernel log: .*[Kk]illed process \d+ \(.*\).*$`},
		{"no log", `^1 (\d+) -9 cgroup .*/memory\.oom_control: oom_kill \d+ -> \d+$`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := makeV1(t, "memory")
			if err := os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte("256M"), 0); err != nil {
				t.Skipf("needs a limit of memory: %v", err)
			}
			lab := testproc.New(t)
			cmd := program(t, lab, "oom", dir, tt.name, "hang", "alloc:1024/exit:3")
			if tt.name == "no log" {
				cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			} else if log, err := os.Open("/dev/kmsg"); err != nil {
				t.Skipf("needs the right to read the kernel's log: %v", err)
			} else {
				log.Close()
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			peer, killed := lab.Line(), lab.Line()
			if want := regexp.MustCompile(`^0 \d+ -15 $`); !want.MatchString(peer) {
				t.Errorf("the other: %q does not match %s", peer, want)
			}
			if want := regexp.MustCompile(tt.want); !want.MatchString(killed) {
				t.Errorf("%q does not match %s", killed, want)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A SIGKILL that comes from somebody else is not a lack of memory.
func TestKilledBySomebody(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	for _, step := range []string{"kill:9", "exit:137"} {
		if x := wait(t, start(t, s, workers(lab, do(step)))).Exits[0]; x.OOMKilled != "" {
			t.Errorf("%s: %q", step, x.OOMKilled)
		}
	}
}

func TestParseKill(t *testing.T) {
	const (
		global = "Out of memory: Killed process 42 (python) total-vm:9kB, UID:0 pgtables:60kB oom_score_adj:0"
		memcg  = "Memory cgroup out of memory: Killed process 42 (a (b) c) total-vm:9kB"
	)
	for _, tt := range []struct {
		name, record string
		pid          int
		text         string
	}{
		{"whole machine", "3,1,5000,-;" + global + "\n SUBSYSTEM=x\n", 42, global},
		{"cgroup", "3,1,5001,-,caller=T1;" + memcg, 42, memcg},
		{"older kernels", "3,1,9999;Kill process: Killed process 42 (x), now", 42, "Kill process: Killed process 42 (x), now"},
		{"before", "3,1,4999,-;" + global, 0, ""},
		{"another message", "3,1,5000,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=42", 0, ""},
		{"no text", "3,1,5000,-", 0, ""},
		{"no time", "3,1;" + global, 0, ""},
		{"no number for a time", "3,1,x,-;" + global, 0, ""},
		{"no pid", "3,1,5000,-;Killed process python (x)", 0, ""},
		{"an impossible pid", "3,1,5000,-;Killed process -1 (x)", 0, ""},
		{"cut short", "3,1,5000,-;Killed process 42", 0, ""},
		{"empty", "", 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pid, text := process.ParseKill(tt.record, 5000)
			if pid != tt.pid || text != tt.text {
				t.Errorf("got %d, %q, want %d, %q", pid, text, tt.pid, tt.text)
			}
		})
	}
}

func FuzzParseKill(f *testing.F) {
	f.Add("3,1,5000,-;Memory cgroup out of memory: Killed process 42 (a) total-vm:9kB\n A=b", int64(1))
	f.Add("3,1;Killed process ", int64(-1))
	f.Fuzz(func(t *testing.T, record string, since int64) {
		pid, text := process.ParseKill(record, since)
		if pid < 0 || (pid == 0) != (text == "") {
			t.Errorf("got %d, %q", pid, text)
		}
	})
}

// Where the kernel's log says who was killed, another process' end is no evidence.
func TestOOMOfAnother(t *testing.T) {
	if ns, err := os.Readlink("/proc/self/ns/pid"); err != nil || ns != "pid:[4026531836]" {
		t.Skipf("needs the pid namespace that the kernel's log has: %q, %v", ns, err)
	}
	log, err := os.Open("/dev/kmsg")
	if err != nil {
		t.Skipf("needs the right to read the kernel's log: %v", err)
	}
	log.Close()
	dir := makeV1(t, "memory")
	if err := os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte("256M"), 0); err != nil {
		t.Skipf("needs a limit of memory: %v", err)
	}
	lab := testproc.New(t)
	cmd := program(t, lab, "oom", dir, "log", "spawn::say:victim|alloc:1024|say:alive/gate/kill:9")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, lab.PID("victim"))
	lab.OpenGate()
	if got, want := lab.Line(), regexp.MustCompile(`^0 \d+ -9 $`); !want.MatchString(got) {
		t.Errorf("%q does not match %s", got, want)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
