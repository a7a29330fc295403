package pickle

import (
	"encoding/base64"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/muster-run/muster/rendezvous"
)

// Sentinel is what the key holds before there is a state.
// Source: _NULL_SENTINEL in c10d_rendezvous_backend.py.
const Sentinel = "Y2FuaW1hZGFt"

const module = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"

// Encode pickles a state with protocol 4, the nodes of every collection sorted.
// Times are kept to the microsecond and must be of the years 1 to 9999.
func Encode(s *rendezvous.State) []byte {
	e := encoder{b: make([]byte, 0, 512+300*len(s.LastHeartbeats))}
	e.op(opProto, 4)
	e.global(module, "_RendezvousState")
	e.op(opEmptyTuple, opNewObj, opEmptyDict, opMark)
	e.str("round")
	e.int(s.Round)
	e.str("complete")
	e.bool(s.Complete)
	e.str("deadline")
	if s.Deadline.IsZero() {
		e.op(opNone)
	} else {
		e.time(s.Deadline)
	}
	e.str("closed")
	e.bool(s.Closed)
	e.str("participants")
	e.dict(slices.SortedFunc(maps.Keys(s.Participants), rendezvous.Node.Compare), func(n rendezvous.Node) { e.int(s.Participants[n]) })
	e.str("wait_list")
	e.set(s.WaitList)
	e.str("redundancy_list")
	e.set(s.RedundancyList)
	e.str("last_heartbeats")
	e.dict(slices.SortedFunc(maps.Keys(s.LastHeartbeats), rendezvous.Node.Compare), func(n rendezvous.Node) { e.time(s.LastHeartbeats[n]) })
	e.op(opSetItems, opBuild, opStop)
	return e.b
}

// EncodeText pickles a state as the key holds it, in base64.
func EncodeText(s *rendezvous.State) []byte {
	return base64.StdEncoding.AppendEncode(nil, Encode(s))
}

type encoder struct{ b []byte }

func (e *encoder) op(ops ...byte) { e.b = append(e.b, ops...) }

func (e *encoder) str(s string) {
	if len(s) < 256 {
		e.op(opShortBinUnicode, byte(len(s)))
	} else {
		e.op(opBinUnicode)
		e.b = binary.LittleEndian.AppendUint32(e.b, uint32(len(s)))
	}
	e.b = append(e.b, s...)
}

func (e *encoder) int(n int) {
	switch {
	case n >= 0 && n < 1<<8:
		e.op(opBinInt1, byte(n))
	case n >= 0 && n < 1<<16:
		e.op(opBinInt2)
		e.b = binary.LittleEndian.AppendUint16(e.b, uint16(n))
	default:
		e.op(opBinInt)
		e.b = binary.LittleEndian.AppendUint32(e.b, uint32(int32(n)))
	}
}

func (e *encoder) bool(v bool) {
	if v {
		e.op(opNewTrue)
	} else {
		e.op(opNewFalse)
	}
}

func (e *encoder) global(module, name string) {
	e.str(module)
	e.str(name)
	e.op(opStackGlobal)
}

func (e *encoder) node(n rendezvous.Node) {
	e.global(module, "_NodeDesc")
	e.op(opEmptyTuple, opNewObj, opEmptyDict, opMark)
	e.str("addr")
	e.str(n.Addr)
	e.str("pid")
	e.int(n.PID)
	e.str("local_id")
	e.int(n.LocalID)
	e.op(opSetItems, opBuild)
}

func (e *encoder) time(t time.Time) {
	t = t.UTC()
	e.global("datetime", "datetime")
	us := t.Nanosecond() / 1000
	e.op(opShortBinBytes, 10, byte(t.Year()>>8), byte(t.Year()), byte(t.Month()), byte(t.Day()),
		byte(t.Hour()), byte(t.Minute()), byte(t.Second()), byte(us>>16), byte(us>>8), byte(us))
	e.global("datetime", "timezone")
	e.global("datetime", "timedelta")
	e.op(opBinInt1, 0, opBinInt1, 0, opBinInt1, 0, opTuple3, opReduce, opTuple1, opReduce, opTuple2, opReduce)
}

func (e *encoder) dict(nodes []rendezvous.Node, value func(rendezvous.Node)) {
	e.op(opEmptyDict)
	if len(nodes) == 0 {
		return
	}
	e.op(opMark)
	for _, n := range nodes {
		e.node(n)
		value(n)
	}
	e.op(opSetItems)
}

func (e *encoder) set(nodes rendezvous.Set) {
	e.op(opEmptySet)
	if len(nodes) == 0 {
		return
	}
	e.op(opMark)
	for _, n := range slices.SortedFunc(maps.Keys(nodes), rendezvous.Node.Compare) {
		e.node(n)
	}
	e.op(opAddItems)
}
