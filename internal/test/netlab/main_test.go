//go:build linux

package netlab_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/netlab"
)

// patience bounds every wait for what should happen.
const patience = 5 * time.Minute

// guests are what the test binary does when it is started again in a host, by the
// first word of its command line. Each tells the test how far it is on stdout.
var guests = map[string]func(args []string) error{
	"echo": echo,
	"ask":  ask,
	"hang": hang,
	"fork": fork,
}

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "guest" {
		if err := guests[os.Args[2]](os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// echo listens at an address, prints the port, and sends back all it gets.
func echo(args []string) error {
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go io.Copy(c, c)
	}
}

// ask sends a line to an address and prints the peer's IP and what comes back; then
// it does the same, on the same connection, for each line of stdin.
func ask(args []string) error {
	c, err := net.DialTimeout("tcp", args[0], patience)
	if err != nil {
		return err
	}
	from := bufio.NewReader(c)
	lines := bufio.NewScanner(io.MultiReader(strings.NewReader("hello\n"), os.Stdin))
	for lines.Scan() {
		if _, err := fmt.Fprintln(c, lines.Text()); err != nil {
			return err
		}
		line, err := from.ReadString('\n')
		if err != nil {
			return err
		}
		fmt.Print(c.RemoteAddr().(*net.TCPAddr).IP, " ", line)
	}
	return lines.Err()
}

// hang prints its process ID and waits for its end.
func hang([]string) error {
	fmt.Println(os.Getpid())
	for {
		time.Sleep(time.Hour)
	}
}

// fork starts an orphan that hangs, in a session of its own, and prints when that is
// ready.
func fork([]string) error {
	cmd := exec.Command("/bin/sh", "-c", `setsid "$0" guest hang &`, os.Args[0])
	cmd.Stdout = os.Stdout
	return cmd.Run()
}

// A guest is the test binary in a host.
type guest struct {
	t      *testing.T
	cmd    *netlab.Cmd
	in     io.Writer
	lines  *bufio.Reader
	errors strings.Builder
}

// invite starts a guest. It ends with the test at the latest.
func invite(t *testing.T, h *netlab.Host, args ...string) *guest {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	g := &guest{t: t, cmd: h.Command(ctx, os.Args[0], append([]string{"guest"}, args...)...)}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if g.in, err = g.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	g.lines = bufio.NewReader(out)
	g.cmd.Stderr = &g.errors
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); g.cmd.Wait() })
	return g
}

// line returns the next line that the guest prints.
func (g *guest) line() string {
	g.t.Helper()
	line, err := g.lines.ReadString('\n')
	if err != nil {
		g.cmd.Wait()
		g.t.Fatalf("guest ended instead of printing: %v: %s", err, &g.errors)
	}
	return strings.TrimSpace(line)
}

// say sends the guest a line.
func (g *guest) say(line string) {
	g.t.Helper()
	if _, err := fmt.Fprintln(g.in, line); err != nil {
		g.t.Fatal(err)
	}
}
