//go:build linux

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testproc"
)

// forks is the process that has imported torchrun (testdata/forked.py): an import takes
// more processor time than most of the jobs.
var forks struct {
	once sync.Once
	mu   sync.Mutex // held from a request to its answer
	conn *os.File   // nil where a fork would differ from a start
}

// fork starts torchrun without importing it again. cmd is as after its Start.
func fork(t testing.TB, cmd *exec.Cmd) error {
	t.Helper()
	forks.once.Do(func() {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs := os.NewFile(uintptr(ends[1]), "forked.py")
		defer theirs.Close()
		template := exec.Command(pypeer.Python(t), "testdata/forked.py")
		template.Env, template.ExtraFiles = usualEnv(), []*os.File{theirs}
		if err := template.Start(); err != nil { // it ends with this process
			t.Fatal(err)
		}
		conn := os.NewFile(uintptr(ends[0]), "forks")
		if n, _ := conn.Read(make([]byte, 16)); n > 0 {
			forks.conn = conn
		} else {
			conn.Close()
			t.Log("torchrun is not forked:", template.Wait())
		}
	})
	if forks.conn == nil {
		return cmd.Start()
	}
	forks.mu.Lock()
	defer forks.mu.Unlock()
	env := map[string]string{}
	for _, kv := range cmd.Env {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	request, err := json.Marshal(map[string]any{"argv": cmd.Args, "env": env})
	if err != nil {
		return err
	}
	fds := unix.UnixRights(int(cmd.Stdout.(*os.File).Fd()), int(cmd.Stderr.(*os.File).Fd()))
	if err := unix.Sendmsg(int(forks.conn.Fd()), request, fds, nil, 0); err != nil {
		return err
	}
	answer := make([]byte, 16)
	n, err := forks.conn.Read(answer)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(answer[:n]))
	if err != nil || pid <= 0 {
		return errors.Join(errors.New("no fork"), err)
	}
	cmd.Process, err = os.FindProcess(pid)
	return err
}

// pytorch is the process that has imported PyTorch (testdata/forks.py).
var pytorch struct {
	once sync.Once
	cmd  *exec.Cmd // it ends with its stdin
	env  []string
}

// withForks is withPython where it is of no matter how workers start: that of a script is a fork of a
// process that has imported PyTorch, and testdata/python3, which the agent starts, ends as it does. In
// `make judge` and `make stress` they are interpreters of their own.
func withForks(t testing.TB, env ...string) setup {
	t.Helper()
	s := withPython(t, env...)
	if os.Getenv("MUSTER_E2E_LONG") != "" {
		return s
	}
	pytorch.once.Do(func() {
		python, socket := pypeer.Python(t), filepath.Join(bin, "forks")
		cmd := exec.Command(python, "-u", "testdata/forks.py", socket)
		cmd.Env, cmd.Stderr = usualEnv(), os.Stderr
		out, err := cmd.StdoutPipe()
		must(err)
		_, err = cmd.StdinPipe()
		must(err)
		must(cmd.Start())
		pytorch.cmd = cmd
		if _, err := out.Read(make([]byte, 16)); err != nil {
			t.Fatal("forks.py: ", err, cmd.Wait())
		}
		standIn, err := filepath.Abs("testdata/python3")
		must(err)
		pytorch.env = []string{"PYTHON_EXEC=" + standIn, "FORKS_PYTHON=" + python, "FORKS=" + socket}
	})
	s.env = append(s.env, pytorch.env...)
	return s
}

// The process that stands for a worker's interpreter ends as the script does, and the script with it.
func TestForks(t *testing.T) {
	t.Parallel()
	path := script(t, "worker.py", `
import os, signal, sys
print(sys.argv[1:], os.getcwd(), os.environ["X"], "torch" in sys.modules, os.getpid(), flush=True)
how = input()
if how == "signal":
    os.kill(os.getpid(), signal.SIGUSR1)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("waits", flush=True)
while how == "wait":
    signal.pause()
sys.exit(how)
`)
	s, dir := withForks(t, "X=x"), t.TempDir()
	if len(pytorch.env) == 0 {
		t.Skip("workers are interpreters of their own")
	}
	standIn := strings.TrimPrefix(pytorch.env[0], "PYTHON_EXEC=")
	for _, tt := range []struct {
		how  string
		sent syscall.Signal
		want string
	}{
		{how: "message", want: "exit status 1"},
		{how: "signal", want: "signal: user defined signal 1"},
		{how: "wait", sent: syscall.SIGTERM, want: "exit status 7"},
		{how: "wait", sent: syscall.SIGKILL, want: "signal: killed"},
	} {
		cmd := exec.Command(standIn, "-u", path, "a", "-b")
		cmd.Dir, cmd.Env = dir, slices.Concat(usualEnv(), s.env)
		in, err := cmd.StdinPipe()
		must(err)
		out, err := cmd.StdoutPipe()
		must(err)
		must(cmd.Start())
		lines := bufio.NewScanner(out)
		lines.Scan()
		words := strings.Fields(lines.Text())
		if got, want := strings.Join(words[:len(words)-1], " "), "['a', '-b'] "+dir+" x True"; got != want {
			t.Errorf("%s: got %q, want %q", tt.how, got, want)
		}
		pid, err := strconv.Atoi(words[len(words)-1])
		must(err)
		fmt.Fprintln(in, tt.how)
		if lines.Scan(); tt.sent != 0 {
			must(cmd.Process.Signal(tt.sent))
		}
		if err := cmd.Wait(); err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", tt.how, err, tt.want)
		}
		testproc.AwaitEnd(pid, soon)
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("%s: the worker is still there: %v", tt.how, err)
		}
	}
}
