package cgroup_test

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/muster-run/muster/internal/host/cgroup"
)

// makeDir makes a cgroup, or skips the test where this user may not.
func makeDir(t *testing.T, name string) *cgroup.Dir {
	t.Helper()
	own, err := cgroup.Own()
	if err != nil || own.Unified == "" {
		t.Skipf("needs a cgroup of version 2: %v", err)
	}
	d, err := cgroup.Make(own.Unified, fmt.Sprintf("%s-%d", name, os.Getpid()))
	if err != nil {
		t.Skipf("needs the right to make a cgroup: %v", err)
	}
	t.Cleanup(func() { _ = d.Remove() })
	return d
}

func TestDir(t *testing.T) {
	d := makeDir(t, "muster-test-dir")
	sub, err := cgroup.Make(d.Path(), "sub")
	if err != nil {
		t.Fatal(err)
	}
	if p, err := d.Populated(); p || err != nil {
		t.Fatalf("new cgroup populated: %v, %v", p, err)
	}

	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: sub.FD()}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Skipf("needs clone3 into a cgroup: %v", err)
	}
	if p, err := d.Populated(); !p || err != nil {
		t.Errorf("populated %v, %v with a process in a cgroup below", p, err)
	}
	pids, err := d.PIDs()
	if err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("processes %v, %v; want %d", pids, err, cmd.Process.Pid)
	}
	if err := d.Remove(); err == nil {
		t.Error("a cgroup with a process in it was removed")
	}
	d, err = cgroup.Open(d.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if s := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v", cmd.ProcessState)
	}
	sub.Close()
	if err := d.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.Path()); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}

func TestRemoveStale(t *testing.T) {
	outer := makeDir(t, "muster-test-stale")
	made := map[string]*cgroup.Dir{}
	held, err := cgroup.MakeLocked(outer.Path(), "muster-")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Remove()
	for _, name := range []string{"muster-2-0a1b2c", "muster-3-0a1b2c", "muster-x-0a1b2c", "muster-4", "other"} {
		d, err := cgroup.Make(outer.Path(), name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Remove() })
		made[name] = d
	}
	if err := os.Mkdir(filepath.Join(made["muster-2-0a1b2c"].Path(), "0.1"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Processes of a program that was killed, and of somebody with a like name.
	left, theirs := sleepIn(t, made["muster-3-0a1b2c"]), sleepIn(t, made["muster-x-0a1b2c"])

	cgroup.RemoveStale(outer.Path(), "muster-", func(d *cgroup.Dir) { _ = d.Kill() })
	if err := left.Wait(); err == nil || left.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("what was left ended with %v", err)
	}
	for made["muster-3-0a1b2c"].Remove() != nil { // until the kernel is through with it
	}
	for name, want := range map[string]bool{path.Base(held.Path()): true, "muster-2-0a1b2c": false, "muster-x-0a1b2c": true, "muster-4": true, "other": true} {
		if _, err := os.Stat(filepath.Join(outer.Path(), name)); (err == nil) != want {
			t.Errorf("%s: exists %v, want %v", name, err == nil, want)
		}
	}
	if err := theirs.Process.Kill(); err != nil {
		t.Error("somebody else's process was killed:", err)
	}
	_ = theirs.Wait()
	for made["muster-x-0a1b2c"].Remove() != nil {
	}
}

// A cgroup is never swept from under the process that has just made it.
func TestRemoveStaleBesideStarts(t *testing.T) {
	outer := makeDir(t, "muster-test-starts")
	var starts, sweeps sync.WaitGroup
	var ended atomic.Bool
	for range 2 {
		sweeps.Go(func() {
			for !ended.Load() {
				cgroup.RemoveStale(outer.Path(), "muster-", nil)
			}
		})
		starts.Go(func() {
			for range 200 {
				d, err := cgroup.MakeLocked(outer.Path(), "muster-")
				if err != nil {
					t.Errorf("MakeLocked: %v", err)
					return
				}
				if _, err := cgroup.Make(d.Path(), "worker"); err != nil {
					t.Errorf("a cgroup that is locked: %v", err)
				}
				if err := d.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	starts.Wait()
	ended.Store(true)
	sweeps.Wait()
}

func TestOOMFiles(t *testing.T) {
	root := t.TempDir()
	inner := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	p := cgroup.Paths{Unified: inner, UnifiedRoot: root, MemoryV1: t.TempDir()}
	if got := p.OOMFiles(inner); len(got) != 0 {
		t.Errorf("without counters: got %q", got)
	}
	events := filepath.Join(root, "a", "memory.events")
	control := filepath.Join(p.MemoryV1, "memory.oom_control")
	for file, text := range map[string]string{
		events:  "low 0\nhigh 0\nmax 3\noom 2\noom_kill 5\noom_group_kill 0\n",
		control: "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.OOMFiles(inner); !slices.Equal(got, []string{events, control}) {
		t.Errorf("got %q", got)
	}
	if n, err := cgroup.OOMKills(events); n != 5 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if n, err := cgroup.OOMKills(control); n != 7 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if err := os.WriteFile(control, []byte("under_oom 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := cgroup.OOMKills(control); err == nil {
		t.Error("a file without the counter: no error")
	}
}

// sleepIn starts a process in a cgroup.
func sleepIn(t *testing.T, d *cgroup.Dir) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: d.FD(), Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}
