//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/cgroup"
)

// maxHosts is how many hosts the addresses 10.77.0.11 and up have room for.
const maxHosts = 200

// patience bounds every wait for the kernel or a helper program. Nothing is
// expected to take this long; it turns a hang into a failure.
const patience = time.Minute

// A Lab is a switch with hosts. It ends with the test that made it.
//
// Methods of Lab and Host that do not return an error fail the test instead, and so
// belong to the test's goroutine. Those that do may be called from anywhere.
type Lab struct {
	t      TB
	net    *os.File // the switch's network namespace
	hosts  []*Host
	etc    string      // directory of hosts and resolv.conf
	group  *cgroup.Dir // nil where there are no cgroups of version 2
	ip, tc string
	ipv6   bool
}

// A TB is a test, as testing.TB is, or what takes its place in a program that is none.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Skip(args ...any)
	Skipf(format string, args ...any)
	TempDir() string
	Cleanup(func())
}

// New makes n hosts, host0 to host(n-1), that reach each other. It skips the test
// where that is not possible: without root, without iproute2.
func New(t TB, n int) *Lab {
	t.Helper()
	if n < 1 || n > maxHosts {
		t.Fatalf("netlab: %d hosts; want 1 to %d", n, maxHosts)
	}
	l := &Lab{t: t}
	l.need()
	l.etc = t.TempDir()
	t.Cleanup(l.close)
	l.group = newGroup()
	if err := l.build(n); err != nil {
		t.Fatalf("netlab: %v", err)
	}
	return l
}

// Host returns host i, counted from 0.
func (l *Lab) Host(i int) *Host { return l.hosts[i] }

// Hosts returns all hosts in order.
func (l *Lab) Hosts() []*Host { return l.hosts }

// need skips the test where a lab cannot be had.
func (l *Lab) need() {
	l.t.Helper()
	var err error
	if os.Geteuid() != 0 {
		l.t.Skip("netlab: needs root to make network namespaces")
	}
	if l.ip, err = lookTool("ip"); err != nil {
		l.t.Skipf("netlab: needs iproute2: %v", err)
	}
	if l.tc, err = lookTool("tc"); err != nil {
		l.t.Skipf("netlab: needs iproute2: %v", err)
	}
	if l.net, err = newNetwork(); err != nil {
		l.t.Skipf("netlab: may not make network namespaces: %v", err)
	}
	_, err = os.Stat("/proc/sys/net/ipv6")
	l.ipv6 = err == nil
}

// lookTool finds a program also where PATH lacks the directories of root.
func lookTool(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

func (l *Lab) build(n int) error {
	for i := range n {
		h := &Host{
			lab: l, index: i, Name: fmt.Sprintf("host%d", i), Addr: fmt.Sprintf("10.77.0.%d", 11+i),
			cut: map[*Host]bool{},
		}
		if l.ipv6 {
			h.Addr6 = fmt.Sprintf("fd77::%d", 11+i)
		}
		l.hosts = append(l.hosts, h)
	}
	if err := l.writeEtc(); err != nil {
		return err
	}
	bridge := "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set br0 up\n"
	if err := l.run(l.net, nil, l.ip, bridge); err != nil {
		return err
	}
	if err := l.connect(l.hosts...); err != nil {
		return err
	}
	for _, h := range l.hosts {
		if err := h.boot(); err != nil {
			return fmt.Errorf("boot %s: %w", h.Name, err)
		}
	}
	return nil
}

// writeEtc writes what name resolution in the hosts reads. A resolv.conf without
// name servers means one on loopback, where none listens: other names fail at once.
func (l *Lab) writeEtc() error {
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, h := range l.hosts {
		fmt.Fprintf(&hosts, "%s %s\n", h.Addr, h.Name)
		if h.Addr6 != "" {
			fmt.Fprintf(&hosts, "%s %s\n", h.Addr6, h.Name)
		}
	}
	if err := os.WriteFile(filepath.Join(l.etc, "hosts"), []byte(hosts.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.etc, "resolv.conf"), []byte("options attempts:1 timeout:1\n"), 0o644)
}

// connect gives each of the hosts a network namespace of its own, plugged into the
// switch.
func (l *Lab) connect(hosts ...*Host) error {
	var batch strings.Builder
	var files []*os.File
	for _, h := range hosts {
		var err error
		if h.net, err = newNetwork(); err != nil {
			return err
		}
		fmt.Fprintf(&batch, "link add %s type veth peer name eth0 address %s netns /proc/self/fd/%d\n",
			h.Name, h.mac(), 3+len(files))
		fmt.Fprintf(&batch, "link set %s master br0 up\n", h.Name)
		files = append(files, h.net)
	}
	if err := l.run(l.net, files, l.ip, batch.String()); err != nil {
		return err
	}
	for _, h := range hosts {
		if err := l.run(h.net, nil, l.ip, h.interfaces()); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if err := splitSegments(h.net, "eth0"); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	return l.settle(hosts...)
}

// settle waits until both ends of the hosts' cables carry packets, or do not.
func (l *Lab) settle(hosts ...*Host) error {
	var ports []string
	var errs []error
	for _, h := range hosts {
		ports = append(ports, h.Name)
		errs = append(errs, settle(h.net, "eth0"))
	}
	return errors.Join(append(errs, settle(l.net, ports...))...)
}

// run runs ip or tc in a network namespace, with a batch of commands. The batch
// finds files[i] at /proc/self/fd/3+i.
func (l *Lab) run(net *os.File, files []*os.File, program, batch string) error {
	cmd := exec.Command(program, "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	cmd.ExtraFiles = files
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := onThread(func() error {
		if err := enter(net); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s\n%s", filepath.Base(program), err, out.String(), batch)
	}
	return nil
}

// close ends all hosts and gives everything back.
func (l *Lab) close() {
	for _, h := range l.hosts {
		for _, in := range h.inits {
			in.kill()
		}
	}
	for _, h := range l.hosts {
		for _, in := range h.inits {
			if err := in.close(patience); err != nil {
				l.t.Errorf("netlab: %s: %v", h.Name, err)
			}
		}
		if h.net != nil {
			h.net.Close()
		}
	}
	l.net.Close()
	if l.group != nil {
		if err := removeGroup(l.group); err != nil {
			l.t.Errorf("netlab: %v", err)
		}
	}
}

// enter makes a network namespace that of the calling thread.
func enter(net *os.File) error {
	if err := unix.Setns(int(net.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}
