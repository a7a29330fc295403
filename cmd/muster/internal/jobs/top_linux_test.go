package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A fixedJob is always in the same state.
type fixedJob struct{ state *jobstate.State }

func (j fixedJob) Alive() time.Time                      { return time.Now() }
func (j fixedJob) State(context.Context) *jobstate.State { return j.state }
func (j fixedJob) WriteMetrics(io.Writer) error          { return nil }
func (j fixedJob) GPUs(time.Duration) []agent.GPU        { return nil }

// serve serves a job's health until the test ends, and returns the address.
func serve(t *testing.T, addr string, job health.Source) string {
	t.Helper()
	s, err := health.Listen(health.Config{Addr: addr, Source: job, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	if strings.HasPrefix(addr, "unix:") {
		return addr
	}
	return s.Addr().String()
}

// A person sits at a terminal in which muster runs.
type person struct {
	t       *testing.T
	tty     *os.File // the person's end
	program *os.File
	cmd     *exec.Cmd
	seen    strings.Builder
	before  *unix.Termios // the terminal's settings before the program began
}

// sit starts muster in a terminal of its own.
func sit(t *testing.T, width, height uint16, args ...string) *person {
	t.Helper()
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	n, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(tty.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, tty: tty, program: program, cmd: exec.Command("muster", args...)}
	p.resize(width, height)
	p.cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=1", testproc.Unpaused)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = program, program, program
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p.before = p.settings()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
		program.Close()
		tty.Close()
	})
	return p
}

func (p *person) resize(width, height uint16) {
	p.t.Helper()
	if err := unix.IoctlSetWinsize(int(p.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *person) settings() *unix.Termios {
	p.t.Helper()
	s, err := unix.IoctlGetTermios(int(p.program.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// sees reads until text has come, and forgets what it has read.
func (p *person) sees(text string) {
	p.t.Helper()
	buf := make([]byte, 4096)
	for !strings.Contains(p.seen.String(), text) {
		n, err := p.tty.Read(buf)
		if err != nil {
			p.t.Fatalf("%v before %q, after %q", err, text, p.seen.String())
		}
		p.seen.Write(buf[:n])
	}
	p.seen.Reset()
}

// ends waits for the end and looks at the terminal that is left.
func (p *person) ends() {
	p.t.Helper()
	if err := p.cmd.Wait(); err != nil {
		p.t.Error(err)
	}
	if diff := cmp.Diff(p.before, p.settings()); diff != "" {
		p.t.Errorf("the terminal's settings (-before +after):\n%s", diff)
	}
}

// On a terminal the table is drawn again each second, as high as the terminal then is.
func TestTopInTerminal(t *testing.T) {
	addr := serve(t, "0", fixedJob{topState()})
	p := sit(t, 80, 24, "top", addr)
	p.sees("\x1b[?7l\x1b[2J\x1b[Hmuster train.py")
	p.sees("12:20:02  round 2: 2 hosts\x1b[K\r\n\x1b[J\x1b[?7h")
	p.resize(20, 3)
	p.sees("\x1b[Hmuster train.py  running HEALTHY  llama-7b  12:30:00\x1b[K\r\n" +
		"round 2  restarts 1/3  world 16  up 2h5m0s  c10d n0:29400\x1b[K\r\n\x1b[J\x1b[?7h")
	if _, err := io.WriteString(p.tty, "\x03"); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	p.ends()
}

func TestTopEnds(t *testing.T) {
	addr := serve(t, "unix:"+filepath.Join(t.TempDir(), "s"), fixedJob{topState()})
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		p := sit(t, 80, 24, "top", addr)
		p.sees("timeline")
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		p.ends()
	}
}

// The agent ends while somebody looks: the last state stays.
func TestTopLosesAgent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // answers once
		defer close(done)
		conn, err := l.Accept()
		l.Close()
		if err != nil {
			return
		}
		defer conn.Close()
		conn.Read(make([]byte, 4096))
		body, _ := json.Marshal(topState())
		fmt.Fprintf(conn, "HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}()
	p := sit(t, 80, 24, "top", l.Addr().String())
	p.sees("last failure 10m0s ago")
	<-done
	p.sees("connection refused")
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.ends()
}

// An agentJob is an agent with one worker, which reads a pipe until the test ends.
type agentJob struct {
	*exec.Cmd
	gate *os.File // the worker ends when it is closed
}

func (j *agentJob) pid() string { return fmt.Sprint(j.Process.Pid) }

// startJob starts a job and waits until its worker runs.
func startJob(t *testing.T, options ...string) *agentJob {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("needs sh")
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	args := append([]string{"run", "--log-dir", t.TempDir()}, options...)
	cmd := exec.Command("muster", append(args, "--no-python", "sh", "-c", "trap '' TERM; echo begun; read x")...)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", testproc.Unpaused) // some tests stop it
	cmd.Stdin = in
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		out.Close()
		cmd.Process.Signal(syscall.SIGCONT)
		cmd.Process.Signal(syscall.SIGTERM)
		io.Copy(io.Discard, stdout)
		cmd.Wait()
	})
	if _, err := io.ReadFull(stdout, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	return &agentJob{cmd, out}
}
