package autopsy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A process that has got the pid of the one that was meant is not signalled, with pidfds or
// without.
func TestAnotherProcess(t *testing.T) {
	const whom = "AUTOPSY_TEST_KILL" // the pid and its start
	if text := os.Getenv(whom); text != "" {
		var pid int
		var start uint64
		_, err := fmt.Sscan(text, &pid, &start)
		must(t, err)
		fmt.Print(autopsy.SendSignal(pid, start, syscall.SIGKILL))
		os.Exit(0)
	}
	for name, wrap := range map[string][]string{"pidfds": nil, "no pidfds": testproc.Refuse(testproc.NoPidfds()...)} {
		victim := exec.Command(testproc.Program(), testproc.Args("hang")...)
		must(t, victim.Start())
		stat, err := procfs.Read(victim.Process.Pid)
		must(t, err)
		kill := func(start uint64) string {
			argv := append(slices.Clone(wrap), testproc.Program(), "-test.run=^TestAnotherProcess$")
			cmd := exec.Command(argv[0], argv[1:]...)
			cmd.Env = append(os.Environ(), fmt.Sprint(whom, "=", victim.Process.Pid, " ", start))
			out, err := cmd.Output()
			must(t, err)
			return string(out)
		}
		if got := kill(stat.Start - 1); got != "no such process" {
			t.Errorf("%s: the signal for an earlier process: %s", name, got)
		}
		if got := kill(stat.Start); got != "<nil>" {
			t.Errorf("%s: the signal: %s", name, got)
			_ = victim.Process.Kill()
		}
		_ = victim.Wait()
	}
}

// A process chooses the paths of its flight recorder's pipe, and of the file that this writes.
// What is not its user's, or is of another kind, is not even opened: who reads a FIFO would notice.
func TestLeftAlone(t *testing.T) {
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	must(t, unix.Mkfifo(fifo, 0o600), os.WriteFile(file, []byte("text"), 0o600))
	reader, err := unix.Open(fifo, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(reader)
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	defer unix.Close(watch)
	for _, path := range []string{fifo, file} {
		_, err := unix.InotifyAddWatch(watch, path, unix.IN_OPEN)
		must(t, err)
	}
	me := os.Getuid()
	trigger := func(uid int, pipe string) string {
		_, err := autopsy.Trigger(t.Context(), uid, pipe, file)
		if err == nil {
			return ""
		}
		return err.Error()
	}
	for _, tt := range []struct {
		name, want string
		look       func() string
	}{
		{"pipe of another user", "is not a pipe of the worker's user", func() string { return trigger(me+1, fifo) }},
		{"file in the pipe's place", "is not a named pipe", func() string { return trigger(me, file) }},
		{"flight recorder's file of another user", "is not a file of the worker's user", func() string {
			_, err := autopsy.ReadBounded(file, me+1)
			return err.Error()
		}},
		{"FIFO in that file's place", "is not a file of the worker's user", func() string {
			_, err := autopsy.ReadBounded(fifo, me)
			return err.Error()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.look(); !strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if n, err := unix.Read(watch, make([]byte, 4096)); n > 0 || err != unix.EAGAIN {
				t.Errorf("it was opened: %v", err)
			}
			ends := []unix.PollFd{{Fd: int32(reader), Events: unix.POLLIN}}
			if n, err := unix.Poll(ends, 0); n != 0 || err != nil {
				t.Errorf("the pipe's reader sees events %#x, %v", ends[0].Revents, err)
			}
		})
	}
}
