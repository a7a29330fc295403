//go:build linux

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
)

// pipe is one that the test reads.
func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// In a pipeline such as `muster run … | cat`, each line comes out when it is
// written.
func TestPipeline(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{"", "-t 1", "-t 3"} {
		r, w := pipe(t)
		j := workers(t, muster(t), setup{stdout: w}, "--standalone "+flags, `print:one\n`, "gate", `print:two\n`, "exit:0")
		w.Close()
		lines := bufio.NewReader(r)
		first, err := lines.ReadString('\n')
		if err != nil || !strings.HasSuffix(first, "one\n") {
			t.Errorf("%s: read %q, %v", flags, first, err)
		}
		j.gate.Open()
		if second, err := lines.ReadString('\n'); err != nil || !strings.HasSuffix(second, "two\n") {
			t.Errorf("%s: read %q, %v", flags, second, err)
		}
		j.want(0)
	}
}

// `muster run … | head -1`: the console goes away, the job does not.
func TestConsoleGoesAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, w := pipe(t)
	steps := []string{`print:one\n`, "gate"}
	for range 100 {
		steps = append(steps, `print:more\n`)
	}
	j := workers(t, muster(t), setup{stdout: w}, "--standalone -t 3 --log-dir "+dir, append(steps, "exit:0")...)
	w.Close()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "[default0]:one\n" {
		t.Errorf("read %q, %v", line, err)
	}
	r.Close()
	j.gate.Open()
	j.want(0).noneLeft(0)
	if got := contents(t, one(t, dir, "*/attempt_0/0/stdout.log")); got != "one\n"+strings.Repeat("more\n", 100) {
		t.Errorf("the log file lacks lines: %q", got)
	}
}

// Nor does it change the exit status, though muster writes its report when the job has ended.
func TestStatusWithoutConsole(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flags  string
		signal bool
		status int
	}{{"", false, 1}, {"--exit-code worker", false, 7}, {"--preemption-signals TERM", true, 75}} {
		t.Run(tt.flags, func(t *testing.T) {
			t.Parallel()
			r, w := pipe(t)
			j := workers(t, muster(t), setup{stdout: w, stderr: w}, "--standalone "+tt.flags, "ready", "gate", "exit:7")
			w.Close()
			j.await("ready 0")
			r.Close()
			if tt.signal { // of which the worker dies at the gate
				j.signal(syscall.SIGTERM)
			} else {
				j.gate.Open()
			}
			if got := j.status(); got != tt.status {
				t.Errorf("status %d, want %d", got, tt.status)
			}
		})
	}
}

// A `muster store` whose console has gone serves on, whatever strangers make it say.
func TestStoreWithoutConsole(t *testing.T) {
	t.Parallel()
	r, w := pipe(t)
	port := freePort(t)
	store := exec.Command(filepath.Join(bin, "muster"), "store", "--host", "127.0.0.1", "--port", itoa(port))
	store.Env = append(os.Environ(), "MUSTER_TOKEN=0123456789abcdef0123456789abcdef")
	store.Stdout, store.Stderr = w, w
	if err := store.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil {
		t.Fatalf("the store said %q, %v", line, err)
	}
	r.Close()
	for range 3 {
		c, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
		if err != nil {
			t.Fatalf("the store is gone: %v", err)
		}
		c.Write(make([]byte, 64)) // which it refuses, and says so
		io.Copy(io.Discard, c)
		c.Close()
	}
	store.Process.Signal(syscall.SIGTERM)
	if err := store.Wait(); err != nil {
		t.Errorf("the store ended with %v", err)
	}
}

// A console that nobody reads blocks no worker.
func TestConsoleIsStuck(t *testing.T) {
	t.Parallel()
	r, w := pipe(t)
	steps := []string{}
	for range 64 {
		steps = append(steps, "print:"+strings.Repeat("x", 4095)+`\n`)
	}
	j := workers(t, muster(t), setup{stdout: w}, "--standalone -t 1", append(steps, "report:done", "exit:0")...)
	w.Close()
	j.await("done") // four times what the pipe holds
	all := collect(r)
	j.want(0)
	if got := len(all()); got != 64*(4096+len("[default0]:")) {
		t.Errorf("the console got %d bytes", got)
	}
}

// fullPipe is a console that takes nothing until it is read, as a terminal after Ctrl-S.
func fullPipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w = pipe(t)
	conn, err := w.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) {
			for err == nil {
				_, err = unix.Write(int(fd), []byte("x"))
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// An agent that waits for the others does not wait for its console: it joins the round
// when they come, and ends at a signal.
func TestConsoleIsStuckWhileWaiting(t *testing.T) {
	t.Parallel()
	flags := func() string {
		return "--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id stuck --rdzv-endpoint 127.0.0.1:" + strconv.Itoa(freePort(t))
	}
	begin := func(flags string, stderr *os.File) (*job, *prober) {
		socket := filepath.Join(t.TempDir(), "health")
		j := workers(t, muster(t), setup{stderr: stderr}, flags+" --health-addr unix:"+socket, "report:ready $RANK", "gate", "exit:0")
		return j, probe(t, socket)
	}
	_, stuck := fullPipe(t)
	alone, aloneProbe := begin(flags(), stuck)
	r, stuck := fullPipe(t)
	together := flags()
	first, firstProbe := begin(together, stuck)
	stuck.Close()
	for _, p := range []*prober{aloneProbe, firstProbe} {
		for s := p.phase("rendezvous", false); s.Job.WaitingFor == ""; {
			s = p.phase("rendezvous", false)
		}
		p.end()
	}
	alone.signal(syscall.SIGTERM)
	s := setup{env: testproc.Env(first.board.Board, first.gate, "")}
	second := workers(t, muster(t), s, together, "report:ready $RANK", "gate", "exit:0")
	first.await("ready 0", "ready 1")
	shown := collect(r)
	first.gate.Open()
	first.want(0)
	second.want(0)
	if got := shown(); !strings.Contains(got, "muster: waiting for hosts: 1 of 2 nodes have joined") {
		t.Errorf("in the end the console shows %q", strings.TrimLeft(got, "x"))
	}
	alone.want(1).noneLeft(0)
}

// Without stdin, stdout or stderr, a job runs as well, and no worker's file ends
// up as one of them.
func TestClosedDescriptors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		closed []int
		flags  string
	}{
		{[]int{0}, ""}, {[]int{1}, "-t 3"}, {[]int{2}, "-t 3"}, {[]int{0, 1, 2}, ""}, {[]int{0, 1, 2}, "-t 3"}, {[]int{1, 2}, "-r 3"},
	} {
		dir := t.TempDir()
		j := workers(t, muster(t), setup{closed: tt.closed}, "--standalone --nproc-per-node 2 --log-dir "+dir+" "+tt.flags, "dump:"+dir, "exit:0")
		j.want(0)
		for rank := range 2 {
			var d description
			if err := json.Unmarshal([]byte(contents(t, filepath.Join(dir, itoa(rank)+".json"))), &d); err != nil {
				t.Fatal(err)
			}
			for _, fd := range tt.closed {
				to, open := d.Files[fd]
				if open && strings.HasPrefix(to, "anon_inode:") || strings.HasPrefix(to, "socket:") {
					t.Errorf("closed %v %s: rank %d has %s as descriptor %d", tt.closed, tt.flags, rank, to, fd)
				}
			}
		}
	}
}

// terminal opens a pseudo terminal; master is the person's end.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs a pseudo terminal: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	// Ctrl-C must not throw away what the test has not read yet.
	settings, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err == nil {
		settings.Lflag |= unix.NOFLSH
		err = unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, settings)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// On a terminal, workers see a terminal, and Ctrl-C reaches them through muster
// only.
func TestTerminal(t *testing.T) {
	t.Parallel()
	master, slave := terminal(t)
	dir := t.TempDir()
	j := workers(t, muster(t), setup{
		stdin: slave, stdout: slave, stderr: slave,
		attr: &syscall.SysProcAttr{Setsid: true, Setctty: true},
	}, "--standalone --nproc-per-node 2", "dump:"+dir, "error:hello from the worker\\n", "catch:INT", "exit:0")
	slave.Close()
	seen := collect(master) // ends with an error when the last user is gone
	j.await("ready 0", "ready 1")
	if _, err := master.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	j.await("SIGINT at 0", "SIGINT at 1").want(1).noneLeft(0)
	for rank := range 2 {
		var d description
		if err := json.Unmarshal([]byte(contents(t, filepath.Join(dir, itoa(rank)+".json"))), &d); err != nil {
			t.Fatal(err)
		}
		if d.TTY != [3]bool{true, true, true} {
			t.Errorf("rank %d sees terminals at %v", rank, d.TTY)
		}
	}
	if got := seen(); strings.Count(got, "hello from the worker") != 2 {
		t.Errorf("the terminal shows %q", got)
	}
}
