//go:build linux

package netlab_test

import (
	"bufio"
	"context"
	"errors"
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
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/cgroup"
	"github.com/muster-run/muster/internal/test/netlab"
	"github.com/muster-run/muster/internal/test/programs"
)

func TestCommand(t *testing.T) {
	h := netlab.New(t, 1).Host(0)
	ctx := context.Background()
	t.Run("output and working directory", func(t *testing.T) {
		want, _ := os.Getwd()
		got, err := h.Command(ctx, "pwd").Output()
		if err != nil || string(got) != want+"\n" {
			t.Errorf("pwd: got %q, %v; want %s", got, err, want)
		}
	})
	t.Run("exit code and stderr", func(t *testing.T) {
		_, err := h.Command(ctx, "sh", "-c", "echo no >&2; exit 7").Output()
		e, ok := errors.AsType[*exec.ExitError](err)
		if !ok || e.ExitCode() != 7 || string(e.Stderr) != "no\n" {
			t.Errorf("got %v, want exit code 7 and \"no\" on stderr", err)
		}
	})
	t.Run("signal", func(t *testing.T) {
		g := invite(t, h, "hang")
		g.line()
		if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		g.cmd.Wait()
		if ws := g.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGTERM {
			t.Errorf("a guest sent SIGTERM ended with %v", g.cmd.ProcessState)
		}
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		cmd := h.Command(ctx, os.Args[0], "guest", "hang")
		out, err := cmd.StdoutPipe()
		if err = errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		bufio.NewReader(out).ReadString('\n')
		cancel()
		if err := cmd.Wait(); err == nil {
			t.Error("a guest whose context was cancelled ended well")
		}
	})
	t.Run("parent-death signal", func(t *testing.T) {
		cmd := h.Command(ctx, "true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Run(); err == nil || !strings.Contains(err.Error(), "Pdeathsig") {
			t.Errorf("got %v, want an error about Pdeathsig", err)
		}
	})
	if out, err := h.Command(ctx, "ps", "-e", "-o", "stat=").Output(); err == nil && strings.Contains(string(out), "Z") {
		t.Errorf("the host has zombies: %q", out)
	}
}

func TestKill(t *testing.T) {
	lab := netlab.New(t, 2)
	a, b := lab.Host(0), lab.Host(1)
	orphan(t, b)
	inside := connected(t, b, a)
	conn := dial(t, a, b)
	pids := b.Processes()
	if len(pids) != 3 {
		t.Errorf("processes of the host: %v; want the orphan and two guests", pids)
	}
	start := time.Now()
	b.Kill()
	t.Logf("kill took %v", time.Since(start))
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d survived", pid)
		}
	}
	// Its kernel says goodbye.
	conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the peer of a killed host: %v, want the end of its connection", err)
	}
	if err := inside.cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("guest of a killed host: %v, want killed", err)
	}
	if err := b.Command(context.Background(), "true").Run(); !errors.Is(err, netlab.ErrDown) {
		t.Errorf("start on a killed host: %v, want ErrDown", err)
	}
	if err := b.Do(func() error { return nil }); !errors.Is(err, netlab.ErrDown) {
		t.Errorf("Do on a killed host: %v, want ErrDown", err)
	}
	b.Boot()
	connected(t, a, b)
	if n := len(b.Processes()); n != 1 {
		t.Errorf("%d processes after Boot, want the new guest", n)
	}
}

// orphan leaves a process in the host whose parent has ended.
func orphan(t *testing.T, h *netlab.Host) {
	t.Helper()
	g := invite(t, h, "fork")
	g.line()
	if err := g.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

// dial returns a connection, in use, of the test itself from one host to a guest of
// another.
func dial(t *testing.T, from, to *netlab.Host) net.Conn {
	t.Helper()
	port := invite(t, to, "echo", ":0").line()
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = net.Dial("tcp", net.JoinHostPort(to.Addr, port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	// A connection that is not accepted yet would be reset where others are ended.
	if _, err := conn.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestPowerOffIsSilent(t *testing.T) {
	lab := netlab.New(t, 3)
	a, b, c := lab.Host(0), lab.Host(1), lab.Host(2)
	conn := dial(t, a, b)
	b.Cut(c)
	start := time.Now()
	b.PowerOff()
	t.Logf("power off took %v", time.Since(start))
	quiet(t, conn)
	b.Heal(c)
	b.Cut(c) // also while it is down
	b.Boot()
	// The booted host has no such connection and says so.
	conn.SetReadDeadline(time.Now().Add(patience))
	fmt.Fprintln(conn, "anybody?")
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("old connection to a booted host: %v, want a reset", err)
	}
	connected(t, a, b)
	if got := exchange(t, c, b, 10, 0); got != 0 {
		t.Errorf("Boot forgot Cut: %d packets came through", got)
	}
	b.Heal(c)
	connected(t, c, b)
}

func TestNothingIsLeft(t *testing.T) {
	if os.Getenv("NETLAB_ALONE") == "" {
		netlab.New(t, 1) // skips where the other would
		alone(t)
		return
	}
	groups := cgroups(t)
	mounts, interfaces, held := mountinfo(t), links(t), namespaces(t)
	var pids []int
	for _, end := range []string{"return", "skip", "kill"} {
		t.Run(end, func(t *testing.T) {
			lab := netlab.New(t, 3)
			for _, h := range lab.Hosts() {
				orphan(t, h)
				pids = append(pids, h.Processes()...)
			}
			lab.Host(0).Cut(lab.Host(1))
			makeGroup(t, lab.Host(1))
			lab.Host(1).Drop(50)
			lab.Host(2).Unplug()
			switch end {
			case "skip":
				t.SkipNow() // ends the test's goroutine as Fatal does
			case "kill":
				lab.Host(0).Kill()
				lab.Host(1).PowerOff()
			}
		})
	}
	if len(pids) != 9 {
		t.Errorf("%d orphans were seen, want 9", len(pids))
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
	if diff := cmp.Diff(mounts, mountinfo(t)); diff != "" {
		t.Errorf("mounts (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(interfaces, links(t)); diff != "" {
		t.Errorf("interfaces (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(groups, cgroups(t)); diff != "" {
		t.Errorf("cgroups (-before +after):\n%s", diff)
	}
	// Threads end soon after what they were for.
	deadline := time.Now().Add(patience)
	for cmp.Diff(held, namespaces(t)) != "" && time.Now().Before(deadline) {
	}
	if diff := cmp.Diff(held, namespaces(t)); diff != "" {
		t.Errorf("namespaces of this process (-before +after):\n%s", diff)
	}
}

// alone runs the test in a process with mounts and interfaces of its own, since other
// tests mount file systems at any time.
func alone(t *testing.T) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "NETLAB_ALONE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// TestVictim is killed by TestDeathOfTheTest.
func TestVictim(t *testing.T) {
	if os.Getenv("NETLAB_VICTIM") == "" {
		t.Skip("runs as a child of another test")
	}
	lab := netlab.New(t, 2)
	for _, h := range lab.Hosts() {
		orphan(t, h)
		invite(t, h, "echo", ":0").line()
		fmt.Println("victim", h.Processes())
	}
	select {}
}

func TestDeathOfTheTest(t *testing.T) {
	netlab.New(t, 1) // skips where the victim would
	cmd := exec.Command(os.Args[0], "-test.run=^TestVictim$")
	cmd.Env = append(os.Environ(), "NETLAB_VICTIM=1")
	out, err := cmd.StdoutPipe()
	if err = errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for lines := bufio.NewScanner(out); len(pids) < 4 && lines.Scan(); {
		if list, ok := strings.CutPrefix(lines.Text(), "victim ["); ok {
			for _, word := range strings.Fields(strings.TrimSuffix(list, "]")) {
				pid, err := strconv.Atoi(word)
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
			}
		}
	}
	if len(pids) != 4 {
		t.Errorf("the victim had processes %v, want 4", pids)
	}
	cmd.Process.Kill()
	cmd.Wait()
	start := time.Now()
	for _, pid := range pids {
		awaitEnd(t, pid)
	}
	t.Logf("its hosts ended %v after it", time.Since(start))
}

func TestMusterRuns(t *testing.T) {
	lab := netlab.New(t, 1)
	dir := t.TempDir()
	if err := programs.Put(dir, "muster"); err != nil {
		t.Fatal(err)
	}
	out, err := lab.Host(0).Command(context.Background(), filepath.Join(dir, "muster"),
		"run", "--standalone", "--nproc-per-node", "2", "--no-python", "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE on $(hostname)").CombinedOutput()
	if err != nil {
		t.Fatalf("muster run: %v\n%s", err, out)
	}
	for _, want := range []string{"0 of 2 on host0\n", "1 of 2 on host0\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("muster run: no %q in\n%s", want, out)
		}
	}
	if left := lab.Host(0).Processes(); len(left) > 0 {
		t.Errorf("muster left processes %v", left)
	}
}

// alive reports whether a process can still do something.
func alive(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n == 0
}

// awaitEnd waits until a process has ended.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
	if n == 0 {
		t.Errorf("process %d is left (%v)", pid, err)
	}
}

func mountinfo(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

func links(t *testing.T) []string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

// makeGroup makes a cgroup in a host, as muster does.
func makeGroup(t *testing.T, h *netlab.Host) {
	t.Helper()
	own, err := cgroup.Own()
	if err != nil || own.Unified == "" {
		return
	}
	script := `mkdir "$0$(sed -n s/^0:://p /proc/self/cgroup)/sub"`
	if out, err := h.Command(context.Background(), "sh", "-c", script, own.UnifiedRoot).CombinedOutput(); err != nil {
		t.Errorf("make a cgroup: %v\n%s", err, out)
	}
}

// cgroups lists the cgroups that labs of this process have.
func cgroups(t *testing.T) []string {
	t.Helper()
	own, err := cgroup.Own()
	if err != nil || own.Unified == "" {
		return nil
	}
	found, err := filepath.Glob(fmt.Sprintf("%s/netlab-%d-*", own.Unified, os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// namespaces returns those that the threads and open files of this process hold.
func namespaces(t *testing.T) map[string]bool {
	t.Helper()
	held := map[string]bool{}
	for _, pattern := range []string{"/proc/self/task/*/ns/*", "/proc/self/fd/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if to, err := os.Readlink(path); err == nil && strings.Contains(to, ":[") && !strings.HasPrefix(to, "pipe") &&
				!strings.HasPrefix(to, "socket") {
				held[to] = true
			}
		}
	}
	return held
}
