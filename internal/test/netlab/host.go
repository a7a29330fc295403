//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
)

// ErrDown is returned for what needs a host that is up, after Kill or PowerOff.
var ErrDown = errors.New("host is down")

// A Host is one of a lab's hosts.
type Host struct {
	Name  string // "host0"; the host's own name and one that all hosts resolve
	Addr  string // IPv4 address, "10.77.0.11"
	Addr6 string // IPv6 address, "fd77::11"; empty where the kernel has no IPv6

	lab     *Lab
	index   int
	net     *os.File       // network namespace; nil after PowerOff
	inits   []*initProcess // of every boot, to be closed with the lab
	up      atomic.Pointer[initProcess]
	cut     map[*Host]bool
	percent float64 // of packets lost
	filters bool    // whether the port has a filter
}

// mac is the address of the host's interface. Its last four bytes are number().
func (h *Host) mac() string { return fmt.Sprintf("02:77:00:00:00:%02x", h.number()) }

func (h *Host) number() uint32 { return uint32(11 + h.index) }

// interfaces configures the host's network. The others' hardware addresses are
// fixed, so that a packet to a host that is gone vanishes, as it does behind a
// router, where an unanswered ARP request would end in "no route to host". Packets
// do not grow beyond the MTU on their way through the kernel, so that a lost one is
// one packet as on a real wire.
func (h *Host) interfaces() string {
	var b strings.Builder
	b.WriteString("link set lo up\nlink set eth0 up\n")
	fmt.Fprintf(&b, "addr add %s/24 brd + dev eth0\n", h.Addr)
	if h.Addr6 != "" {
		fmt.Fprintf(&b, "addr add %s/64 dev eth0 nodad\n", h.Addr6)
	}
	for _, o := range h.lab.hosts {
		if o == h {
			continue
		}
		fmt.Fprintf(&b, "neigh replace %s lladdr %s nud permanent dev eth0\n", o.Addr, o.mac())
		if o.Addr6 != "" {
			fmt.Fprintf(&b, "neigh replace %s lladdr %s nud permanent dev eth0\n", o.Addr6, o.mac())
		}
	}
	return b.String()
}

func (h *Host) boot() error {
	in, err := h.startInit()
	if err != nil {
		return err
	}
	h.inits = append(h.inits, in)
	h.up.Store(in)
	return nil
}

// Kill ends every process of the host at once. Its kernel continues: it closes their
// connections, so that others see an end of file or a reset at once.
// The host is down until Boot.
func (h *Host) Kill() {
	h.lab.t.Helper()
	if err := h.kill(); err != nil {
		h.lab.t.Fatalf("netlab: kill %s: %v", h.Name, err)
	}
}

func (h *Host) kill() error {
	in := h.up.Swap(nil)
	if in == nil {
		return ErrDown
	}
	in.kill()
	return in.await(patience)
}

// PowerOff is what happens when somebody trips over the cord: no process of the host
// and nothing of its kernel says goodbye. Others only notice that nobody answers.
// The host is down until Boot.
func (h *Host) PowerOff() {
	h.lab.t.Helper()
	h.Unplug()
	h.Kill()
	// Connections that wait to be closed go with the link and the namespace.
	if err := h.lab.run(h.lab.net, nil, h.lab.ip, "link del "+h.Name+"\n"); err != nil {
		h.lab.t.Fatalf("netlab: power off %s: %v", h.Name, err)
	}
	h.net.Close()
	h.net = nil
}

// Boot starts a host after Kill or PowerOff, with the same name and addresses. After
// PowerOff it is plugged in, and knows nothing of its former connections. What Cut
// and Drop said still holds.
func (h *Host) Boot() {
	h.lab.t.Helper()
	if h.up.Load() != nil {
		h.lab.t.Fatalf("netlab: boot %s: it is up", h.Name)
	}
	if h.net == nil {
		h.filters = false
		if err := errors.Join(h.lab.connect(h), h.filter()); err != nil {
			h.lab.t.Fatalf("netlab: boot %s: %v", h.Name, err)
		}
	}
	if err := h.boot(); err != nil {
		h.lab.t.Fatalf("netlab: boot %s: %v", h.Name, err)
	}
}

// Processes lists the living processes of the host but its init, by their IDs in the
// test's PID namespace, such as exec.Cmd's Process.Pid. It is empty for a host that
// is down.
func (h *Host) Processes() []int {
	in := h.up.Load()
	if in == nil {
		return nil
	}
	return in.processes()
}

// Start starts a command inside the host instead of cmd.Start. The process is a
// child of the test process; everything else of cmd works as ever, and the test must
// Wait for it also when the host was killed. The working directory defaults to the
// test's. SysProcAttr.Pdeathsig is not possible, and not needed: the end of the test
// process ends the host.
// The error is ErrDown for a host that is down.
func (h *Host) Start(cmd *exec.Cmd) error {
	in := h.up.Load()
	if in == nil {
		return fmt.Errorf("start %s on %s: %w", cmd.Path, h.Name, ErrDown)
	}
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Pdeathsig != 0 {
		return fmt.Errorf("start %s on %s: SysProcAttr.Pdeathsig is set; it would be sent at once", cmd.Path, h.Name)
	}
	if cmd.Dir == "" {
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		cmd.Dir = dir
	}
	in.join(cmd)
	err := onThread(func() error {
		if err := in.enterAll(); err != nil {
			return fmt.Errorf("enter %s: %w", h.Name, err)
		}
		return cmd.Start()
	})
	if err != nil && h.up.Load() != in {
		return fmt.Errorf("start %s on %s: %w: %v", cmd.Path, h.Name, ErrDown, err)
	}
	return err
}

// Do calls f on a thread inside the host's namespaces, for sockets of the test
// process itself: what f listens on or dials belongs to the host's network for good.
// f must not start goroutines to do so, as package net does for names; numeric
// addresses are safe. f must not end the test (t.Fatal). Several may run at once.
// The error is f's, or ErrDown for a host that is down.
func (h *Host) Do(f func() error) error {
	in := h.up.Load()
	if in == nil {
		return fmt.Errorf("%s: %w", h.Name, ErrDown)
	}
	return onThread(func() error {
		if err := in.enterAll(); err != nil {
			return fmt.Errorf("enter %s: %w", h.Name, err)
		}
		return f()
	})
}
