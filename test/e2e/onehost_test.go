//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
)

// phases of a job are the columns of the table.
var phases = [5]string{"start", "running", "a worker fails", "restart", "end"}

// A strait is something that a host lacks, or that happens to a job on it.
type strait struct {
	name  string
	setup func(t testing.TB) (s setup, flags string)
	// during happens while the first workers run, after once one of them was told to
	// fail.
	during, after func(t testing.TB, j *job)
	// cells say what the user sees. What is in backquotes has to be on the console.
	// An empty one is a phase like any other's.
	cells [5]string
	// ends is the phase that the job gets to, and status what it then ends with.
	ends, status int
	bare         bool // there is no report
	quiet        bool // the console cannot be read
	strays       bool // what workers leave behind in sessions of its own cannot be found
}

func inMounts(script string) []string {
	return []string{"unshare", "--mount", "/bin/sh", "-c", script + `; exec "$@"`, "sh"}
}

var noControlGroups = inMounts(`for d in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts); do umount -l "$d" || exit 77; done`)

// sandboxed is a strait that the job has from its beginning, put there by a command
// in front of the agent's.
func sandboxed(wrap ...string) func(testing.TB) (setup, string) {
	return func(t testing.TB) (setup, string) {
		s := setup{wrap: wrap}
		if !slices.Contains(wrap, "testproc-refuse") {
			needs(t, s)
		}
		return s, ""
	}
}

// noFork refuses new processes, but no threads.
func noFork(errno syscall.Errno) testproc.Call {
	return testproc.Call{Number: unix.SYS_CLONE, Mask: unix.CLONE_THREAD, Errno: errno}
}

func noForks(errno syscall.Errno) func(testing.TB) (setup, string) {
	return sandboxed(testproc.Refuse(noFork(errno), testproc.NoClone3)...)
}

// noForkLater refuses the first process of the restart.
func noForkLater(name string, errno syscall.Errno, says string) strait {
	var refuse atomic.Int32
	return strait{name: name, ends: len(phases) - 1,
		setup: func(t testing.TB) (setup, string) {
			return setup{wrap: slices.Concat(testproc.RefuseSome(t, &refuse, noFork(errno)), testproc.Refuse(testproc.NoClone3))}, ""
		},
		during: func(testing.TB, *job) { refuse.Store(1) },
		cells:  [5]string{3: says + "; muster tries again after a second, as often as there are restarts"},
	}
}

func smallDisk(t testing.TB, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := exec.Command("mount", "-t", "tmpfs", "-o", options, "tmpfs", dir).Run(); err != nil {
		t.Skipf("needs the right to mount a file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func fillUp(t testing.TB, dir string) {
	t.Helper()
	if f, err := os.Create(filepath.Join(dir, "ballast")); err == nil {
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		f.Close()
	}
}

// fileLimit sets the agent's limit of open files, and returns the one before.
func fileLimit(t testing.TB, j *job, limit unix.Rlimit) (before unix.Rlimit) {
	t.Helper()
	if err := unix.Prlimit(j.cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, &before); err != nil {
		t.Fatal(err)
	}
	return before
}

func stopAgent(t testing.TB, j *job) {
	t.Helper()
	j.signal(syscall.SIGSTOP)
	if err := awaitStop(j.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
}

func theGuard(t testing.TB, j *job) (pid int) {
	t.Helper()
	for late := time.Now().Add(patience); time.Now().Before(late); _, _ = unix.Poll(nil, 1) {
		children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", j.cmd.Process.Pid))
		for _, path := range children {
			list, _ := os.ReadFile(path)
			for child := range strings.FieldsSeq(string(list)) {
				if name, _ := os.ReadFile("/proc/" + child + "/comm"); string(name) == "muster-guard\n" {
					_, _ = fmt.Sscan(child, &pid)
					return pid
				}
			}
		}
	}
	t.Fatal("no guard")
	return 0
}

func straits() []strait {
	const blind = "with a hang timeout: `cannot tell whether the workers hang`"
	const last = len(phases) - 1
	full := func(t testing.TB) (setup, string) {
		dir := smallDisk(t, "size=256k")
		return setup{}, "-r 3 --log-dir " + dir
	}
	fill := func(t testing.TB, j *job) {
		for i, arg := range j.cmd.Args {
			if arg == "--log-dir" {
				fillUp(t, j.cmd.Args[i+1])
			}
		}
	}
	return []strait{
		{name: "descriptors exhausted, from the start", ends: 0, status: 1, bare: true,
			setup: sandboxed("prlimit", "--nofile=64:64"),
			cells: [5]string{"`the limit of open files (ulimit -n) is 64, but 2 workers need 88`; status 1"}},
		{name: "descriptors exhausted, later", ends: last,
			setup:  func(testing.TB) (setup, string) { return setup{}, "--max-restarts 9" }, // each second without success takes one
			during: func(t testing.TB, j *job) { fileLimit(t, j, unix.Rlimit{Cur: 3, Max: 4096}) },
			after: func(t testing.TB, j *job) {
				for late := time.Now().Add(patience); !strings.Contains(j.errs(), "trying again") && time.Now().Before(late); _, _ = unix.Poll(nil, 1) {
				}
				fileLimit(t, j, unix.Rlimit{Cur: 4096, Max: 4096})
			},
			bare:  true,
			cells: [5]string{2: "`cannot write the failure report`", 3: "`too many open files`; muster tries again after a second, as often as there are restarts"}},
		{name: "log disk full, from the start", ends: last, bare: true,
			setup: func(t testing.TB) (setup, string) {
				dir := smallDisk(t, "size=64k")
				fillUp(t, dir)
				return setup{}, "-r 3 --log-dir " + dir
			},
			cells: [5]string{0: "`cannot tell from the log directory whether this job is running`; the workers start", 2: "the cause ends with `no room is left in …, where its output goes`; `cannot write the failure report`"}},
		{name: "log disk full, later", ends: last, setup: full, during: fill, bare: true,
			cells: [5]string{2: "the cause ends with `no room is left in …, where its output goes`; `cannot write the failure report`"}},
		{name: "TMPDIR disk full", ends: last, bare: true,
			setup: func(t testing.TB) (setup, string) {
				dir := smallDisk(t, "size=64k")
				fillUp(t, dir)
				return setup{env: []string{"TMPDIR=" + dir}}, ""
			}},
		{name: "no memory for a process", ends: 0, status: 1, bare: true, setup: noForks(unix.ENOMEM),
			cells: [5]string{"`out of memory`; muster tries again every second until the restarts are used up, then status 1"}},
		{name: "no more processes", ends: 0, status: 1, bare: true, setup: noForks(unix.EAGAIN),
			cells: [5]string{"`no more processes or threads`; muster tries again every second until the restarts are used up, then status 1"}},
		noForkLater("no memory for a process, later", unix.ENOMEM, "`out of memory`"),
		noForkLater("no more processes, later", unix.EAGAIN, "`no more processes or threads`"),
		{name: "read-only log directory", ends: 0, status: 2, bare: true,
			setup: func(t testing.TB) (setup, string) { return setup{}, "--log-dir " + smallDisk(t, "ro") },
			cells: [5]string{"`is not writable` and `name another directory with --log-dir`; status 2"}},
		{name: "log directory covered by a read-only mount, later", ends: last, bare: true,
			setup: func(t testing.TB) (setup, string) { return setup{}, "-r 3 --log-dir " + smallDisk(t, "size=1m") },
			during: func(t testing.TB, j *job) {
				dir := j.cmd.Args[slices.Index(j.cmd.Args, "--log-dir")+1]
				// What is open stays writable, so only a mount of its own can be read-only. That muster has the
				// directory below open, and what a file system is like that turns read-only, is tested in package logs.
				if err := errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			},
			cells: [5]string{2: "`cannot write the failure report`", 3: "normal: muster makes the next attempt's log files in the directory that it has opened"}},
		{name: "log directory removed, later", ends: last, bare: true,
			setup: func(t testing.TB) (setup, string) {
				return setup{}, "-r 3 --log-dir " + filepath.Join(t.TempDir(), "logs")
			},
			during: func(t testing.TB, j *job) {
				if err := os.RemoveAll(j.cmd.Args[slices.Index(j.cmd.Args, "--log-dir")+1]); err != nil {
					t.Fatal(err)
				}
			},
			cells: [5]string{2: "`cannot write the failure report`", 3: "normal: muster makes the directory again"}},
		{name: "read-only TMPDIR", ends: last, bare: true,
			setup: func(t testing.TB) (setup, string) {
				return setup{env: []string{"TMPDIR=" + smallDisk(t, "ro")}}, ""
			}},
		{name: "no /proc", ends: last, strays: true,
			setup: func(t testing.TB) (setup, string) {
				s, _ := sandboxed(inMounts(`umount -l /proc || exit 77`)...)(t)
				return s, "--hang-timeout 600"
			},
			cells: [5]string{0: "`no guard`", 1: blind, 4: "processes that workers left in other sessions stay"}},
		{name: "/proc of another pid namespace", ends: last,
			setup: func(t testing.TB) (setup, string) {
				s := setup{attr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}}
				needs(t, s)
				return s, "--hang-timeout 600"
			},
			cells: [5]string{1: blind}},
		{name: "/proc with hidepid=2", ends: last, setup: func(t testing.TB) (setup, string) {
			s := setup{
				wrap: []string{"/bin/sh", "-c", `mount --make-rprivate / && mount -t proc -o hidepid=2 proc /proc && exec "$@"`, "sh"},
				attr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS},
			}
			needs(t, s)
			return s, ""
		}},
		{name: "the agent is PID 1", ends: last, setup: func(t testing.TB) (setup, string) { return asPID1(t), "" }},
		{name: "no control groups", ends: last, setup: sandboxed(noControlGroups...)},
		{name: "control groups of version 1 only", ends: last, setup: sandboxed(inMounts(`for d in $(awk '$3 == "cgroup2" {print $2}' /proc/mounts); do umount -l "$d" || exit 77; done`)...)},
		{name: "no pidfds", ends: last, setup: sandboxed(testproc.Refuse(testproc.NoPidfds()...)...)},
		{name: "signals through pidfds forbidden, no control groups", ends: last, setup: func(t testing.TB) (setup, string) {
			s := setup{wrap: noControlGroups}
			needs(t, s)
			s.wrap = slices.Concat(s.wrap, testproc.Refuse(testproc.NoPidfdSignal))
			return s, ""
		}},
		{name: "ptrace forbidden", ends: last, setup: sandboxed(testproc.Refuse(testproc.NoPtrace)...)},
		{name: "the agent is stopped and continued", ends: last, during: stopAgent,
			after: func(_ testing.TB, j *job) { j.signal(syscall.SIGCONT) },
			cells: [5]string{1: "the workers continue", 2: "noticed when the agent continues"}},
		{name: "the same, and for longer than a host may be silent", ends: last,
			setup: func(testing.TB) (setup, string) {
				return setup{}, "--rdzv-conf keep_alive_interval=1,keep_alive_max_attempt=1"
			},
			during: stopAgent,
			after: func(_ testing.TB, j *job) {
				time.Sleep(2 * time.Second) // the limit is 1 s
				j.signal(syscall.SIGCONT)
			},
			cells: [5]string{1: "the workers continue", 2: "noticed when the agent continues"}},
		{name: "the console is gone", ends: last, quiet: true, setup: func(t testing.TB) (setup, string) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			r.Close()
			t.Cleanup(func() { w.Close() })
			return setup{stdout: w, stderr: w}, ""
		}, cells: [5]string{1: "messages are lost; the report has the failure"}},
		{name: "nobody reads the console", ends: last, quiet: true, setup: func(t testing.TB) (setup, string) {
			_, w := fullPipe(t)
			return setup{stdout: w, stderr: w}, ""
		}, cells: [5]string{0: "messages wait for the console, workers do not", 4: "messages that nobody reads for 10 s are discarded"}},
		{name: "the guard is killed", ends: last,
			during: func(t testing.TB, j *job) {
				pid := theGuard(t, j)
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
				testproc.AwaitEnd(pid, patience)
			},
			cells: [5]string{1: "`the guard has ended; starting another`"}},
	}
}

// table is what the document has of the straits.
func table() string {
	var b strings.Builder
	b.WriteString("\n| what is wrong |")
	for _, phase := range phases {
		b.WriteString(" " + phase + " |")
	}
	b.WriteString("\n|" + strings.Repeat("---|", 1+len(phases)) + "\n")
	for _, row := range straits() {
		b.WriteString("| " + row.name + " |")
		for i, cell := range row.cells {
			switch {
			case cell == "" && i > row.ends:
				cell = "–"
			case cell == "":
				cell = "normal"
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// The document has this table.
func TestOneHostTable(t *testing.T) {
	if *tables != "" {
		leave(t, "one host", table())
		return
	}
	if !strings.Contains(contents(t, "../../docs/internals/failures.md"), table()) {
		t.Error("docs/internals/failures.md has another table: run `make reliability`")
	}
}

// Whatever a host lacks, a job on it starts, restarts and ends as ever or says why
// not, and leaves nothing behind.
func TestOneHost(t *testing.T) {
	t.Parallel()
	for _, row := range straits() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s, flags := setup{}, ""
			if row.setup != nil {
				s, flags = row.setup(t)
			}
			dir := ""
			if !strings.Contains(flags, "--log-dir") {
				if !row.bare {
					dir = t.TempDir()
					flags += " --log-dir " + dir
				}
			}
			j := workers(t, muster(t), s, "--standalone --nproc-per-node 2 --max-restarts 2 --shutdown-timeout 5 --helper-timeout 0.5 "+flags,
				"stray", "report:up $RANK $TORCHELASTIC_RESTART_COUNT", "a0:gate", "a0:r1:exit:3", "a0:hang", "exit:0")
			if row.ends > 0 {
				j.await("up 0 0", "up 1 0")
				if row.during != nil {
					row.during(t, j)
				}
				j.gate.Open()
				if row.after != nil {
					row.after(t, j)
				}
			}
			if j.want(row.status); !row.strays {
				j.noneLeft(0)
			}
			for _, cell := range row.cells {
				if row.quiet {
					break
				}
				for _, quoted := range regexp.MustCompile("`[^`]*`").FindAllString(cell, -1) {
					for part := range strings.SplitSeq(strings.Trim(quoted, "`"), "…") {
						j.says(part)
					}
				}
			}
			if row.ends > 0 && dir != "" {
				var report struct{ Cause string }
				readJSON(t, filepath.Join(dir, "*", "attempt_0", "report.json"), &report)
				if !strings.Contains(report.Cause, "rank 1 ") || !strings.Contains(report.Cause, "exit code 3") {
					t.Errorf("cause: %s", report.Cause)
				}
			}
		})
	}
}
