//go:build linux

package timer_test

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/timer"
)

// childVar makes TestSocketChild a child that does what its stdin says.
const childVar = "TIMER_TEST_CHILD"

// A child is a process that uses a socket. Each command is answered with a line.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t *testing.T, path string, extra ...*os.File) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0], "-test.run=^TestSocketChild$")}
	c.cmd.Env = append(os.Environ(), childVar+"=1", timer.EnvSocket+"="+path)
	c.cmd.Stderr = os.Stderr
	c.cmd.ExtraFiles = extra
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.in, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	t.Cleanup(func() { c.end() })
	return c
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// ask sends a command and returns its answer; "" when the child has ended.
func (c *child) ask(command string, args ...any) string {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.in, command+"\n", args...); err != nil && !errors.Is(err, syscall.EPIPE) {
		c.t.Fatal(err)
	}
	line, err := c.out.ReadString('\n')
	if err != nil && err != io.EOF {
		c.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (c *child) want(want, command string, args ...any) {
	c.t.Helper()
	if got := c.ask(command, args...); !strings.HasPrefix(got, want) || want == "" && got != "" {
		c.t.Errorf("%s: %q, want %q", fmt.Sprintf(command, args...), got, want)
	}
}

// end ends the child and returns how it ended.
func (c *child) end() *os.ProcessState {
	c.in.Close()
	_ = c.cmd.Wait()
	return c.cmd.ProcessState
}

// TestSocketChild is the child, and otherwise no test.
func TestSocketChild(t *testing.T) {
	if os.Getenv(childVar) == "" {
		t.Skip("for other tests to start")
	}
	w := &childState{path: os.Getenv(timer.EnvSocket), raw: -1}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer, err := w.do(words[0], words[1:])
		if err != nil {
			answer = "error: " + err.Error()
		}
		fmt.Println(strings.ReplaceAll(answer, "\n", " "))
	}
	os.Exit(0)
}

type childState struct {
	path  string
	raw   int
	grand *exec.Cmd
}

func number(words []string, i int) int {
	if i >= len(words) {
		return 0
	}
	n, err := strconv.Atoi(words[i])
	if err != nil {
		panic(err)
	}
	return n
}

func (w *childState) do(verb string, args []string) (string, error) {
	switch verb {
	case "acquire": // SCOPE MILLISECONDS [PID]
		c := &timer.SocketClient{Path: w.path, PID: number(args, 2)}
		defer c.Close()
		return "ok", c.Acquire(args[0], time.Now().Add(time.Duration(number(args, 1))*time.Millisecond))
	case "release": // SCOPE
		c := &timer.SocketClient{Path: w.path}
		defer c.Close()
		return "ok", c.Release(args[0])
	case "setuid":
		return "ok", syscall.Setuid(number(args, 0))
	case "hang":
		time.Sleep(time.Hour)
	case "dial":
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
		w.raw = fd
		return "ok", errors.Join(err, unix.Connect(fd, &unix.SockaddrUnix{Name: w.path}))
	case "inherited":
		w.raw = 3
		return "ok", nil
	case "send": // HEX
		packet, err := hex.DecodeString(strings.Join(args, ""))
		if err != nil {
			return "", err
		}
		return "ok", unix.Sendto(w.raw, packet, unix.MSG_NOSIGNAL, nil)
	case "recv":
		buf := make([]byte, 1024)
		n, err := unix.Read(w.raw, buf)
		if err != nil || n <= 0 {
			return "closed", nil
		}
		return fmt.Sprintf("%d %s", buf[1], buf[4:n]), nil
	case "flood": // N packets of HEX, no answer is read
		packet, err := hex.DecodeString(args[1])
		if err != nil {
			return "", err
		}
		for i := range number(args, 0) {
			if err := unix.Sendto(w.raw, packet, unix.MSG_NOSIGNAL, nil); err != nil {
				return fmt.Sprintf("closed after %d: %v", i, err), nil
			}
		}
		return "ok", nil
	case "give": // the connection, over descriptor 3
		return "ok", unix.Sendmsg(3, []byte{0}, unix.UnixRights(w.raw), nil, 0)
	case "spawn": // a child of its own
		w.grand = exec.Command("sleep", "1000")
		return fmt.Sprint("ok ", w.grandPID()), nil
	case "leave":
		return "ok", errors.Join(w.grand.Process.Kill(), ignoreExit(w.grand.Wait()))
	}
	return "", fmt.Errorf("no command %s", verb)
}

func (w *childState) grandPID() int {
	if err := w.grand.Start(); err != nil {
		return -1
	}
	return w.grand.Process.Pid
}

func ignoreExit(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// packet is a request in hex.
func packet(kind, signal, pid int, value uint64, scope string) string {
	f := timer.Frame{Kind: kind, Signal: signal, PID: pid, Scope: scope, Step: int64(value), Time: math.Float64frombits(value)}
	return hex.EncodeToString(f.Append(nil))
}
