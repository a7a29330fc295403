package embedtest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/muster-run/muster/internal/test/pypeer"
)

// goExample builds a program of examples/go in a module of its own, and returns its path.
func goExample(t *testing.T, name string) string {
	t.Helper()
	source, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, file := range []string{"examples/go/" + name + "/main.go", "go.mod", "go.sum"} { // as in built
		text, err := os.ReadFile(filepath.Join(source, file))
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(text, []byte("\n")); strings.HasSuffix(file, ".go") && lines >= 60 {
			t.Errorf("%s has %d lines, want fewer than 60", file, lines)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"mod", "edit", "-module=example.test/" + name, "-require=github.com/muster-run/muster@v0.0.0",
			"-replace=github.com/muster-run/muster@v0.0.0=" + source},
		{"build", "-trimpath", "-ldflags=-s -w", "-o", name, "."},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", args[0], err, out)
		}
	}
	return filepath.Join(dir, name)
}

// isolated has a program run as others do: see command.
func isolated(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	wrap, err := alone()
	if err != nil {
		t.Skip("needs the right to make a PID namespace:", err)
	}
	cmd := exec.Command("unshare", slices.Concat(wrap, args)...)
	cmd.Dir = t.TempDir()
	return cmd
}

// prints runs a command and compares what it prints.
func prints(t *testing.T, cmd *exec.Cmd, failed bool, want ...string) {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); (err != nil) != failed {
		t.Errorf("error %v", err)
	}
	for _, want := range want {
		if !strings.Contains(stdout.String()+stderr.String(), want) {
			t.Errorf("it does not print %q", want)
		}
	}
	if t.Failed() {
		t.Fatalf("stdout:\n%s\nstderr:\n%s", stdout.String(), stderr.String())
	}
}

func TestGoJob(t *testing.T) {
	job := goExample(t, "job")
	prints(t, isolated(t, job, "sh", "-c", "exit $((RANK * TORCHELASTIC_RESTART_COUNT - RANK))"), false, "succeeded after 1 restarts\n")
	prints(t, isolated(t, job, "sh", "-c", "test $RANK = 0 || { echo ValueError: boom >&2; exit 3; }"), true,
		"failed after 1 restarts: rank 1", "ValueError: boom\nrank 1, exit code 3, class")
	prints(t, isolated(t, job, "no-such-program"), true, "cannot run no-such-program")
}

func TestGoWatchdog(t *testing.T) {
	prints(t, isolated(t, goExample(t, "watchdog"), "100ms", "exec sleep 300", "5m", "true"), false,
		"exec sleep 300: killed at its time limit\n", "exec sleep 300: ended: signal: killed\n", "true: ended: <nil>\n")
}

// The container's image is this host's root directory.
func TestGoContainer(t *testing.T) {
	runtime, err := filepath.Abs("testdata/runtime.sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("RUNTIME", runtime)
	t.Setenv("CONTAINERS", t.TempDir())
	container := goExample(t, "container")
	const namespace = "test $(readlink /proc/self/ns/uts) != %s && echo rank $RANK of $WORLD_SIZE"
	own, err := os.Readlink("/proc/self/ns/uts")
	if err != nil {
		t.Fatal(err)
	}
	prints(t, isolated(t, container, "/", "sh", "-c", fmt.Sprintf(namespace, "'"+own+"'")), false, "rank 0 of 2\n", "rank 1 of 2\n")
	prints(t, isolated(t, container, "/", "sh", "-c", "test $RANK = 1 || exec sleep 300; echo ValueError: boom >&2; exit 3"), true,
		"rank 1", "ValueError: boom")
}

const allReduce = `
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
sum = torch.ones(1)
dist.all_reduce(sum)
print("rank", dist.get_rank(), "sums", int(sum), flush=True)
dist.destroy_process_group()
`

func TestGoScheduler(t *testing.T) {
	python, scheduler := pypeer.Python(t), goExample(t, "scheduler")
	port := freePort(t)
	var hosts sync.WaitGroup
	for rank := range 2 {
		cmd := isolated(t, scheduler, python, "-c", allReduce)
		cmd.Env = append(os.Environ(), "JOB_ID=17", fmt.Sprint("NODE_RANK=", rank), "NODES=2", "MASTER_ADDR=127.0.0.1",
			"MASTER_PORT="+port, "GLOO_SOCKET_IFNAME=lo")
		hosts.Go(func() {
			out, err := cmd.CombinedOutput()
			for local := range 2 {
				if want := fmt.Sprintf("rank %d sums 4\n", 2*rank+local); err != nil || !strings.Contains(string(out), want) {
					t.Errorf("host %d: error %v, want %q in\n%s", rank, err, want, out)
				}
			}
		})
	}
	hosts.Wait()
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// A server is a command that has printed its first line, and ends when its input does.
type server struct {
	*exec.Cmd
	in    io.Closer
	out   *bufio.Reader
	first string
}

func serve(t *testing.T, first string, args ...string) *server {
	t.Helper()
	s := &server{Cmd: exec.Command(args[0], args[1:]...)}
	s.Stderr = os.Stderr
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.in, s.out = in, bufio.NewReader(out)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Process.Kill() })
	line, err := s.out.ReadString('\n')
	if s.first = strings.TrimSuffix(line, "\n"); err != nil || !strings.HasPrefix(line, first) {
		t.Fatalf("%q, error %v, want %q", line, err, first)
	}
	return s
}

// end closes the server's input, waits for its end, and returns what else it has printed.
func (s *server) end(t *testing.T) string {
	t.Helper()
	s.in.Close()
	out, err := io.ReadAll(s.out)
	if err := errors.Join(err, s.Wait()); err != nil {
		t.Error(err)
	}
	return string(out)
}

// killedBy is how the command ended, which is to be by a signal.
func killedBy(t *testing.T, cmd *exec.Cmd, want syscall.Signal) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != want {
		t.Errorf("it ended with %v, want %v\n%s", err, want, out)
	}
}

// PyTorch's client and our server, and the reverse.
func TestGoFIFO(t *testing.T) {
	python, fifo := pypeer.Python(t), goExample(t, "fifo")
	path := filepath.Join(t.TempDir(), "fifo")
	s := serve(t, "serving "+path, fifo, "serve", path)
	cmd := exec.Command(python, "-c", `
import sys, time
from torch.distributed.elastic import timer
timer.configure(timer.FileTimerClient(sys.argv[1]))
with timer.expires(after=0.1, scope="step 7"):
    time.sleep(300)
`, path)
	killedBy(t, cmd, syscall.SIGKILL)
	out := s.end(t)
	if want := fmt.Sprintf("process %d: timer \"step 7\" has expired, process killed: true\n", cmd.Process.Pid); !strings.Contains(out, want) {
		t.Errorf("the server prints %q, want %q", out, want)
	}

	s = serve(t, "serving", python, "-c", `
import os, sys
from torch.distributed.elastic import timer
server = timer.FileTimerServer(sys.argv[1], "run", max_interval=0.1, daemon=True)
reap = server._reap_worker
def reported(pid, signal):
    if pid == os.getpid():
        return True # it does not end itself
    print("reaps", pid, signal, flush=True)
    return reap(pid, signal)
server._reap_worker = reported
server.start()
print("serving", flush=True)
sys.stdin.read()
server.stop()
`, path)
	cmd = exec.Command(fifo, "run", path, "100ms", "/bin/sleep", "300")
	killedBy(t, cmd, syscall.SIGTERM)
	if out, want := s.end(t), fmt.Sprintf("reaps %d 15\n", cmd.Process.Pid); out != want {
		t.Errorf("the server prints %q, want %q", out, want)
	}
}

// PyTorch's client and our server, and the reverse.
func TestGoStore(t *testing.T) {
	python, store := pypeer.Python(t), goExample(t, "store")
	s := serve(t, "serving 127.0.0.1:", store, "serve", "127.0.0.1:"+freePort(t), "2")
	port := s.Args[2][strings.LastIndex(s.Args[2], ":")+1:]
	prints(t, exec.Command(python, "-c", `
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
n = store.add("count", 1)
store.set("members/%d" % n, "python")
print("member", n)
`, port), false, "member 1\n")
	prints(t, exec.Command(store, "join", s.Args[2], "go"), false, "member 2\n")
	if out, want := s.end(t), "member 1: python\nmember 2: go\n"; out != want {
		t.Errorf("the server prints %q, want %q", out, want)
	}

	s = serve(t, "", python, "-c", `
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
print(store.get("members/1").decode(), store.add("count", 0), flush=True)
sys.stdin.read()
`)
	prints(t, exec.Command(store, "join", "127.0.0.1:"+s.first, "go"), false, "member 1\n")
	if out, want := s.end(t), "go 1\n"; out != want {
		t.Errorf("the server prints %q, want %q", out, want)
	}
}
