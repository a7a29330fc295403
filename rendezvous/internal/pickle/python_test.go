package pickle_test

import (
	"encoding/binary"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/state"
)

// asPython pickles a state as Python's pickler does with protocol 4: everything
// is stored in the memo and fetched from there if it comes again, and no SETITEMS
// or ADDITEMS has more than 1000 items. There is one frame.
func asPython(s *state.State) []byte {
	p := pickler{memo: map[any]uint32{}}
	p.object("_RendezvousState", "\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00", func() {
		p.str("round")
		p.int(s.Round)
		p.str("complete")
		p.bool(s.Complete)
		p.str("deadline")
		if s.Deadline.IsZero() {
			p.raw("N")
		} else {
			p.time(s.Deadline)
		}
		p.str("closed")
		p.bool(s.Closed)
		p.str("participants")
		batches(&p, "}\x94", "s", "u", s.Participants, p.int)
		p.str("wait_list")
		batches(&p, "\x8f\x94", "", "\x90", s.WaitList, func(struct{}) {})
		p.str("redundancy_list")
		batches(&p, "\x8f\x94", "", "\x90", s.RedundancyList, func(struct{}) {})
		p.str("last_heartbeats")
		batches(&p, "}\x94", "s", "u", s.LastHeartbeats, p.time)
	})
	p.raw(".")
	binary.LittleEndian.PutUint64(p.b[3:], uint64(len(p.b)-11))
	return p.b
}

type pickler struct {
	b    []byte
	memo map[any]uint32
	n    uint32
}

type (
	classKey string
	utcKey   struct{}
)

func (p *pickler) raw(s string) { p.b = append(p.b, s...) }

// memoized writes what key stands for, or a reference to where that was written.
func (p *pickler) memoized(key any, write func()) {
	if at, ok := p.memo[key]; ok {
		if at < 256 {
			p.b = append(p.b, 'h', byte(at))
		} else {
			p.b = binary.LittleEndian.AppendUint32(append(p.b, 'j'), at)
		}
		return
	}
	write()
	p.memo[key] = p.n
	p.anonymous()
}

// anonymous stores what is never fetched.
func (p *pickler) anonymous() {
	p.n++
	p.raw("\x94")
}

func (p *pickler) str(s string) {
	p.memoized(s, func() {
		if len(s) < 256 {
			p.b = append(p.b, 0x8c, byte(len(s)))
		} else {
			p.b = binary.LittleEndian.AppendUint32(append(p.b, 'X'), uint32(len(s)))
		}
		p.raw(s)
	})
}

func (p *pickler) int(n int) {
	switch {
	case n >= 0 && n < 1<<8:
		p.b = append(p.b, 'K', byte(n))
	case n >= 0 && n < 1<<16:
		p.b = binary.LittleEndian.AppendUint16(append(p.b, 'M'), uint16(n))
	default:
		p.b = binary.LittleEndian.AppendUint32(append(p.b, 'J'), uint32(n))
	}
}

func (p *pickler) bool(v bool) {
	if v {
		p.raw("\x88")
	} else {
		p.raw("\x89")
	}
}

func (p *pickler) global(module, name string) {
	p.memoized(classKey(module+"."+name), func() {
		p.str(module)
		p.b = append(p.b, 0x8c, byte(len(name))) // never the same object as a module's name
		p.raw(name)
		p.anonymous()
		p.raw("\x93")
	})
}

func (p *pickler) object(class, before string, attrs func()) {
	p.raw(before)
	p.global("torch.distributed.elastic.rendezvous.dynamic_rendezvous", class)
	p.raw(")\x81")
	p.anonymous()
	p.raw("}")
	p.anonymous()
	p.raw("(")
	attrs()
	p.raw("ub")
}

func (p *pickler) node(n state.Node) {
	if _, again := p.memo[n]; again {
		p.memoized(n, nil)
		return
	}
	p.global("torch.distributed.elastic.rendezvous.dynamic_rendezvous", "_NodeDesc")
	p.raw(")\x81")
	p.memo[n] = p.n
	p.anonymous()
	p.raw("}")
	p.anonymous()
	p.raw("(")
	p.str("addr")
	p.str(n.Addr)
	p.str("pid")
	p.int(n.PID)
	p.str("local_id")
	p.int(n.LocalID)
	p.raw("ub")
}

func (p *pickler) time(t time.Time) {
	p.global("datetime", "datetime")
	us := t.Nanosecond() / 1000
	p.raw("C\x0a")
	p.b = append(p.b, byte(t.Year()>>8), byte(t.Year()), byte(t.Month()), byte(t.Day()), byte(t.Hour()), byte(t.Minute()), byte(t.Second()), byte(us>>16), byte(us>>8), byte(us))
	p.anonymous()
	p.memoized(utcKey{}, func() {
		p.global("datetime", "timezone")
		p.global("datetime", "timedelta")
		p.raw("K\x00K\x00K\x00\x87")
		p.anonymous()
		p.raw("R")
		p.anonymous()
		p.raw("\x85")
		p.anonymous()
		p.raw("R")
	})
	p.raw("\x86")
	p.anonymous()
	p.raw("R")
	p.anonymous()
}

// batches writes a dict or a set, the opcode `one` for a batch of one item, or
// `several` for one of more or if there is no such opcode.
func batches[V any](p *pickler, new, one, several string, m map[state.Node]V, value func(V)) {
	p.raw(new)
	p.n++
	var nodes []state.Node
	for n := range m {
		nodes = append(nodes, n)
	}
	for len(nodes) > 0 {
		batch := nodes[:min(1000, len(nodes))]
		nodes = nodes[len(batch):]
		single := one != "" && len(batch) == 1
		if !single {
			p.raw("(")
		}
		for _, n := range batch {
			p.node(n)
			value(m[n])
		}
		if single {
			p.raw(one)
		} else {
			p.raw(several)
		}
	}
}
