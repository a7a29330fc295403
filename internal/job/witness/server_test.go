//go:build linux

package witness_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/job/witness"
)

// A lab is a server, and a worker's directory with a torch.distributed that has one dump.
type lab struct {
	*testing.T
	server *witness.Server
	dir    string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	server, err := witness.Listen(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	l := &lab{t, server, t.TempDir()}
	l.write("torch/__init__.py", "")
	l.write("torch/_C/__init__.py", "")
	l.write("torch/distributed/__init__.py", "import torch._C._distributed_c10d\n")
	l.write("torch/_C/_distributed_c10d.py", "def _dump_fr_trace(entries, stacks, active):\n    return b'entries: %d' % entries\n")
	return l
}

func (l *lab) write(name, text string) {
	l.Helper()
	path := filepath.Join(l.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		l.Fatal(err)
	}
}

// A python is a worker that says something after its script, and then waits.
type python struct {
	*exec.Cmd
	said   string
	stderr stderr
	in     io.WriteCloser
	out    *bufio.Reader
}

// stderr is a file, so that all is there that was written before what stdout has.
type stderr struct{ *os.File }

func (f stderr) String() string {
	text, _ := os.ReadFile(f.Name())
	return string(text)
}

// start runs a script with flags of the interpreter, in an environment that has PYTHONPATH.
func (l *lab) start(script string, env []string, flags ...string) *python {
	l.Helper()
	interpreter, err := exec.LookPath("python3")
	if named := os.Getenv("MUSTER_PYTHON"); named != "" {
		interpreter, err = named, nil
	}
	if err != nil {
		l.Skip("no python3")
	}
	env = append([]string{"RANK=0", "LOCAL_RANK=0", "PYTHONPATH=" + l.dir, "PYTHONDONTWRITEBYTECODE=1"}, env...)
	env = append(env, "PYTHONPATH="+l.server.PythonPath(env))
	file, err := os.CreateTemp(l.TempDir(), "")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { file.Close() })
	p := &python{Cmd: exec.Command(interpreter, append(flags, "-c", script+"\nprint('', flush=True)\ninput()")...), stderr: stderr{file}}
	p.Env, p.Stderr, p.Dir = env, file, l.dir
	in, err := p.StdinPipe()
	if err != nil {
		l.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() {
		in.Close()
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	p.in, p.out = in, bufio.NewReader(out)
	p.read()
	return p
}

// read reads what it says until an empty line.
func (p *python) read() {
	for {
		line, err := p.out.ReadString('\n')
		if line == "\n" || err != nil {
			return
		}
		p.said += line
	}
}

// ask asks until there is an answer: the connection comes a moment after the import.
func (l *lab) ask(pid int, ask func(context.Context, int) ([]byte, error)) string {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), 20*time.Second)
	defer cancel()
	for {
		body, err := ask(ctx, pid)
		if err == nil {
			return string(body)
		}
		if ctx.Err() != nil {
			l.Fatal(err)
		}
		time.Sleep(time.Millisecond) // nothing tells when a connection has come
	}
}

func (l *lab) absent(pid int) {
	l.Helper()
	if body, err := l.server.Status(l.Context(), pid); err == nil {
		l.Errorf("it answers %q", body)
	}
}

const sees = `
import os, sys
print(os.environ.get("PYTHONPATH") == %q, [p for p in sys.path if "witness" in p], "sitecustomize" in sys.modules, "_socket" in sys.modules)
`

// A worker answers once it has imported torch.distributed, and sees nothing of what answers.
func TestWorker(t *testing.T) {
	l := newLab(t)
	before := l.start(fmt.Sprintf(sees, l.dir), nil)
	if before.said != "True [] False False\n" || before.stderr.String() != "" {
		t.Errorf("before the import: %q, %q", before.said, before.stderr)
	}
	l.absent(before.Process.Pid)
	p := l.start(fmt.Sprintf(sees, l.dir)+"import torch.distributed, threading; print([f for f in sys.meta_path if type(f).__name__ == 'Witness'], threading.enumerate()[1:])", nil)
	if p.said != "True [] False False\n[] []\n" || p.stderr.String() != "" {
		t.Errorf("%q, %q", p.said, p.stderr)
	}
	if got := l.ask(p.Process.Pid, l.server.Status); got != `{"dumps":["ZW50cmllczogMA=="],"threads":null}` {
		t.Errorf("status: %s", got)
	}
	all := l.ask(p.Process.Pid, l.server.Everything)
	for _, want := range []string{`{"dumps":["ZW50cmllczogMQ=="],"threads":[{"name": "MainThread", `, `"main": true`, `{"function": "<module>", "file": "<string>", "line": `} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in %s", want, all)
		}
	}
}

// The worker's own sitecustomize runs as without the witness, also one that fails.
func TestOwnSitecustomize(t *testing.T) {
	for _, tt := range []struct{ own, said, stderr string }{
		{"import os\nprint('own', os.environ['PYTHONPATH'])", "own DIR\nTrue [] True False\n", ""},
		{"raise ValueError('own')", "True [] False False\n", "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nValueError: own\n"},
		{"import nosuch", "True [] False False\n", "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nModuleNotFoundError: No module named 'nosuch'\n"},
	} {
		l := newLab(t)
		l.write("sitecustomize.py", tt.own)
		p := l.start(fmt.Sprintf(sees, l.dir)+"import torch.distributed", nil)
		if want := strings.ReplaceAll(tt.said, "DIR", l.dir); p.said != want || p.stderr.String() != tt.stderr {
			t.Errorf("%s:\n%q, %q\nwant %q, %q", tt.own, p.said, p.stderr, want, tt.stderr)
		}
		l.ask(p.Process.Pid, l.server.Status)
	}
}

// A worker leaves what it knows at its end, whatever ends it that lets Python end; a child that it forks does not.
func TestLeft(t *testing.T) {
	began := time.Now().Add(-time.Second) // the file system's clock may be behind
	for _, tt := range []struct{ end, want string }{
		{"raise ValueError", `{"dumps":["ZW50cmllczogMQ=="],"threads":null}`},
		{"sys.exit(3)", `{"dumps":["ZW50cmllczogMQ=="],"threads":null}`},
		{"", `{"dumps":["ZW50cmllczogMQ=="],"threads":null}`},
		{"os.kill(os.getpid(), 9)", ""},
		{"sys.modules['torch._C._distributed_c10d']._dump_fr_trace = None; os.fork(); os.environ['LOCAL_RANK'] = '5'", `{"dumps":[],"threads":null}`},
		{"child = os.fork(); child == 0 and sys.exit(); os.waitpid(child, 0); os.kill(os.getpid(), 9)", ""},
	} {
		l := newLab(t)
		p := l.start("import os, sys, torch.distributed; print('', flush=True); input()\n"+tt.end+"\nos.sys.exit()", nil)
		l.ask(p.Process.Pid, l.server.Status)
		fmt.Fprintln(p.in)
		p.in.Close()
		_ = p.Wait()
		body, at, err := l.server.Left(0, began)
		if string(body) != tt.want || (err == nil) != (tt.want != "") || err == nil && at.Before(began) {
			t.Errorf("%q: left %s, %v, %v; want %s\n%s", tt.end, body, at, err, tt.want, p.stderr)
		}
		for _, file := range l.server.Files(1) {
			_ = os.Remove(file)
		}
		if err := os.Remove(l.server.Dir()); err != nil {
			t.Errorf("%q: %v", tt.end, err)
		}
		if body, _, err := l.server.Left(0, time.Now().Add(time.Hour)); err == nil {
			t.Errorf("%q: left %s later", tt.end, body)
		}
	}
}

// Where nothing can answer, the worker runs all the same.
func TestAbsent(t *testing.T) {
	l := newLab(t)
	for _, flags := range [][]string{{"-S"}, {"-I"}, {"-E"}} {
		p := l.start("import sys; sys.path.insert(0, '"+l.dir+"'); import torch.distributed; print('runs')", nil, flags...)
		if p.said != "runs\n" || p.stderr.String() != "" {
			t.Errorf("%v: %q, %q", flags, p.said, p.stderr)
		}
		l.absent(p.Process.Pid)
	}
	p := l.start("import os; del os.environ['RANK']; import torch.distributed; print('runs')", nil) // no worker
	if p.said != "runs\n" {
		t.Errorf("%q, %q", p.said, p.stderr)
	}
	l.absent(p.Process.Pid)
}

// A descriptor that the program has closed, and that is another's by now, gets nothing.
func TestClosedDescriptors(t *testing.T) {
	l := newLab(t)
	p := l.start(`
import torch.distributed, os, select, socket
print("", flush=True)
input()
os.closerange(3, 100)
pairs = [socket.socketpair() for _ in range(20)]
print("", flush=True)
input()
for s in select.select([end for pair in pairs for end in pair], [], [], 0.5)[0]:
    print("got", s.recv(100))
`, nil)
	l.ask(p.Process.Pid, l.server.Status)
	fmt.Fprintln(p.in)
	p.read()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if body, err := l.server.Status(ctx, p.Process.Pid); err == nil {
		t.Errorf("it answers %q", body)
	}
	fmt.Fprintln(p.in)
	if p.read(); p.said != "" {
		t.Errorf("the program's sockets: %s", p.said)
	}
}

// A script that starts Python answers by that; a child that it forks does not.
func TestDescendants(t *testing.T) {
	l := newLab(t)
	p := l.start(`
import torch.distributed, os, time
child = os.fork()
if child == 0:
    time.sleep(1000)
print(child)
import atexit, signal
atexit.register(os.kill, child, signal.SIGKILL)
`, nil)
	var child int
	fmt.Sscan(p.said, &child)
	l.ask(p.Process.Pid, l.server.Status)
	l.absent(child)
	if got := l.ask(os.Getpid(), l.server.Status); got == "" { // whose child it is
		t.Error("no answer")
	}
	if process, err := os.FindProcess(child); err == nil {
		_ = process.Kill()
	}
}

// Whatever connects and answers, the agent gets an error and does not wait.
func TestBadAnswers(t *testing.T) {
	l := newLab(t)
	for _, tt := range []struct{ answer, want string }{
		{`b"\xff" * 8`, "the worker's answer has 18446744073709551615 bytes, more than 134217728"},
		{`(100).to_bytes(8, "little") + b"cut"`, io.ErrUnexpectedEOF.Error()},
		{`(5).to_bytes(8, "little") + b"!down"`, `the worker cannot read its flight recorder: "down"`},
		{`b""`, io.EOF.Error()},
		{`None`, context.DeadlineExceeded.Error()},
	} {
		p := l.start(`
import socket, threading
agent = socket.socket(socket.AF_UNIX)
agent.connect("`+l.server.Dir()+`/agent")
def serve():
    agent.recv(1)
    answer = `+tt.answer+`
    if answer is not None:
        agent.sendall(answer)
        agent.shutdown(socket.SHUT_RDWR)
threading.Thread(target=serve, daemon=True).start()
`, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		body, err := l.server.Status(ctx, p.Process.Pid)
		for err != nil && strings.HasPrefix(err.Error(), "nothing in the worker") && ctx.Err() == nil {
			body, err = l.server.Status(ctx, p.Process.Pid)
		}
		if cancel(); err == nil || err.Error() != tt.want {
			t.Errorf("%s: %q, %v; want %s", tt.answer, body, err, tt.want)
		}
	}
}

// A worker that has ended leaves no descriptor behind once another one connects.
func TestEndedWorkers(t *testing.T) {
	l := newLab(t)
	descriptors := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := 0
	for i := range 5 {
		p := l.start("import torch.distributed", nil)
		l.ask(p.Process.Pid, l.server.Status)
		now := descriptors() - 2 // its pipes
		if before == 0 {
			before = now
		}
		if now > before {
			t.Errorf("%d descriptors with worker %d, %d with the first", now, i, before)
		}
		_ = p.Process.Kill()
		_ = p.Wait()
		p.stderr.Close()
	}
}

func TestPythonPath(t *testing.T) {
	l := newLab(t)
	for _, tt := range []struct{ env, want string }{
		{"", l.server.Dir()}, {"PYTHONPATH=", l.server.Dir()}, {"PYTHONPATH=/a:/b", l.server.Dir() + ":/a:/b"},
	} {
		got := l.server.PythonPath([]string{tt.env})
		if rest := witness.Without(got); got != tt.want || "PYTHONPATH="+rest != tt.env && rest != "" {
			t.Errorf("%s: %s, and %s without the directory", tt.env, got, rest)
		}
	}
}

// Nobody needs to ask before a worker has connected.
func TestAnswers(t *testing.T) {
	answers := make(chan struct{})
	server, err := witness.Listen(answers)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	select {
	case <-answers:
		t.Error("a worker answers that has not connected")
	default:
	}
	for range 2 {
		c, err := net.Dial("unix", filepath.Join(server.Dir(), "agent"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		<-answers
	}
}

// A socket's path has at most 107 bytes, so a long directory for temporary files is not used.
func TestLongTemporaryDirectory(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", long)
	server, err := witness.Listen(nil)
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
}
