//go:build linux

package netlab

import (
	"fmt"
	"math"
	"strings"

	"golang.org/x/sys/unix"
)

// Unplug pulls the host's cable out of the switch: packets from and to it vanish,
// with no answer to anybody. Connections stay open until those who use them lose
// patience.
func (h *Host) Unplug() {
	h.lab.t.Helper()
	h.port("down")
}

// Plug puts the cable back.
func (h *Host) Plug() {
	h.lab.t.Helper()
	h.port("up")
}

func (h *Host) port(state string) {
	h.lab.t.Helper()
	if h.net == nil {
		h.lab.t.Fatalf("netlab: set the link of %s %s: %v", h.Name, state, ErrDown)
	}
	err := h.lab.run(h.lab.net, nil, h.lab.ip, fmt.Sprintf("link set %s %s\n", h.Name, state))
	if err == nil {
		err = h.lab.settle(h)
	}
	if err != nil {
		h.lab.t.Fatalf("netlab: set the link of %s %s: %v", h.Name, state, err)
	}
}

// Cut makes all packets between the two hosts vanish, in both directions, until
// Heal. Others still reach both.
func (h *Host) Cut(other *Host) {
	h.lab.t.Helper()
	h.cut[other], other.cut[h] = true, true
	h.refilter(other)
}

// Heal undoes Cut.
func (h *Host) Heal(other *Host) {
	h.lab.t.Helper()
	delete(h.cut, other)
	delete(other.cut, h)
	h.refilter(other)
}

// Drop makes the switch lose packets from and to the host at random, percent of each
// direction, 0 to 100. It replaces what an earlier Drop said.
func (h *Host) Drop(percent float64) {
	h.lab.t.Helper()
	if !(percent >= 0 && percent <= 100) {
		h.lab.t.Fatalf("netlab: drop %v percent; want 0 to 100", percent)
	}
	h.percent = percent
	h.refilter()
}

func (h *Host) refilter(others ...*Host) {
	h.lab.t.Helper()
	for _, o := range append(others, h) {
		if o.net == nil {
			continue // powered off; Boot sets the filter
		}
		if err := o.filter(); err != nil {
			h.lab.t.Fatalf("netlab: filter packets of %s: %v", o.Name, err)
		}
	}
}

// filter brings the filters of the host's port in line with what is to be lost. Each
// is replaced in one step.
func (h *Host) filter() error {
	if !h.filters && len(h.cut) == 0 && h.percent == 0 {
		return nil
	}
	h.filters = true
	var b strings.Builder
	fmt.Fprintf(&b, "qdisc replace dev %s clsact\n", h.Name)
	// Seen from the switch, egress is to the host, ingress from it.
	for _, dir := range []struct {
		name string
		prog program
	}{{"egress", h.toHost()}, {"ingress", loss(h.percent)}} {
		fmt.Fprintf(&b, "filter replace dev %s %s pref 1 handle 1 protocol all bpf da bytecode \"%s\"\n",
			h.Name, dir.name, dir.prog)
	}
	return h.lab.run(h.lab.net, nil, h.lab.tc, b.String())
}

// Verdicts of a filter. Source: linux/pkt_cls.h.
const (
	pass = 0 // TC_ACT_OK
	drop = 2 // TC_ACT_SHOT
)

// randomNumber is the offset at which a filter reads a random number instead of the
// packet: SKF_AD_OFF + SKF_AD_RANDOM. Source: linux/filter.h.
const randomNumber = 0xfffff000 + 56

// A program is a packet filter in the classic BPF of the kernel.
type program []unix.SockFilter

// toHost is the filter of frames to the host: it drops those of hosts that are cut
// off, known by the last four bytes of the source address, and some at random.
func (h *Host) toHost() program {
	p := program{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 8}}
	for _, o := range h.lab.hosts {
		if h.cut[o] {
			p = append(p,
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: o.number(), Jf: 1},
				unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: drop})
		}
	}
	return append(p, loss(h.percent)...)
}

// loss is a filter that drops some percent of all frames.
func loss(percent float64) program {
	ret := func(verdict uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: verdict}
	}
	switch limit := percent / 100 * (1 << 32); {
	case limit < 1:
		return program{ret(pass)}
	case limit > math.MaxUint32:
		return program{ret(drop)}
	default:
		return program{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: randomNumber},
			{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: uint32(limit), Jf: 1},
			ret(pass),
			ret(drop),
		}
	}
}

// String is the program as tc reads it: the number of instructions, then each.
func (p program) String() string {
	var b strings.Builder
	fmt.Fprint(&b, len(p))
	for _, i := range p {
		fmt.Fprintf(&b, ",%d %d %d %d", i.Code, i.Jt, i.Jf, i.K)
	}
	return b.String()
}
