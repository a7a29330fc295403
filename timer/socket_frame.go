package timer

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"syscall"
)

// A request is one packet of 18 bytes and the scope, numbers in network order;
// docs/internals/timers.md has the table.
const (
	frameVersion = 1
	frameHead    = 18
	maxFrame     = frameHead + maxScope
	maxSignal    = 64
)

type frameKind byte

const (
	frameAcquire   frameKind = 1
	frameRelease   frameKind = 2
	frameHeartbeat frameKind = 3
)

// A frame is a request as the socket carries it.
type frame struct {
	kind   frameKind
	signal syscall.Signal
	pid    int     // 0 is the sender
	time   float64 // of an acquire
	step   int64   // of a heartbeat; -1 is none
	scope  []byte
}

// appendFrame leaves out the length check: that is for the code that makes the scope.
func appendFrame(to []byte, f *frame) []byte {
	value := math.Float64bits(f.time)
	if f.kind == frameHeartbeat {
		value = uint64(f.step)
	}
	to = append(to, frameVersion, byte(f.kind), byte(f.signal), 0)
	to = binary.BigEndian.AppendUint32(to, uint32(f.pid))
	to = binary.BigEndian.AppendUint64(to, value)
	to = binary.BigEndian.AppendUint16(to, uint16(len(f.scope)))
	return append(to, f.scope...)
}

// parseFrame reads a whole packet. The scope lies in the packet.
func parseFrame(packet []byte) (frame, error) {
	switch {
	case len(packet) > maxFrame:
		return frame{}, fmt.Errorf("packet of more than %d bytes: scopes have at most %d", maxFrame, maxScope)
	case len(packet) >= 1 && packet[0] != frameVersion:
		return frame{}, fmt.Errorf("version %d: this server speaks %d", packet[0], frameVersion)
	case len(packet) < frameHead:
		return frame{}, fmt.Errorf("packet of %d bytes: want %d and the scope", len(packet), frameHead)
	}
	f := frame{
		kind:   frameKind(packet[1]),
		signal: syscall.Signal(packet[2]),
		pid:    int(binary.BigEndian.Uint32(packet[4:])),
		scope:  packet[frameHead:],
	}
	value := binary.BigEndian.Uint64(packet[8:])
	if n := int(binary.BigEndian.Uint16(packet[16:])); n != len(f.scope) {
		return frame{}, fmt.Errorf("scope of %d bytes in a packet that says %d", len(f.scope), n)
	}
	switch f.kind {
	case frameAcquire:
		f.time = math.Float64frombits(value)
		if f.signal > maxSignal {
			return frame{}, fmt.Errorf("signal %d: want 0 to %d", int(f.signal), maxSignal)
		}
	case frameRelease:
	case frameHeartbeat:
		f.step = int64(value)
		if f.step < -1 {
			return frame{}, fmt.Errorf("step %d: want one from 0, or -1 for none", f.step)
		}
	default:
		return frame{}, fmt.Errorf("kind %d: want 1 (acquire), 2 (release) or 3 (heartbeat)", f.kind)
	}
	if packet[3] != 0 {
		return frame{}, fmt.Errorf("byte 3 is %d: want 0", packet[3])
	}
	if f.pid > math.MaxInt32 {
		return frame{}, fmt.Errorf("pid %d: want a process number, or 0 for the sender", f.pid)
	}
	return f, nil
}

// An answer is a packet of 4 bytes and a text.
const (
	answerHead = 4
	maxText    = 512
	maxAnswer  = answerHead + maxText
)

type status byte

const (
	statusDone      status = 0
	statusMalformed status = 1 // and the server hangs up
	statusRefused   status = 2
	statusBusy      status = 3
)

func appendAnswer(to []byte, s status, text string) []byte {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "")
	}
	to = append(to, frameVersion, byte(s))
	to = binary.BigEndian.AppendUint16(to, uint16(len(text)))
	return append(to, text...)
}

// parseAnswer returns the error that an answer stands for, nil for done. One that
// wraps none of the reasons means that the connection is of no more use.
func parseAnswer(packet []byte) error {
	if len(packet) < answerHead || packet[0] != frameVersion || len(packet) > maxAnswer {
		return fmt.Errorf("timer socket: not an answer: % .32x", packet)
	}
	text := packet[answerHead:]
	if n := int(binary.BigEndian.Uint16(packet[2:])); n != len(text) {
		return fmt.Errorf("timer socket: answer with %d bytes of text says %d", len(text), n)
	}
	switch s := status(packet[1]); s {
	case statusDone:
		return nil
	case statusRefused:
		return &wordedError{"timer socket: " + string(text), ErrNotOwned}
	case statusBusy:
		return &wordedError{"timer socket: " + string(text), ErrTooMany}
	case statusMalformed:
		return &wordedError{"timer socket: " + string(text), ErrInvalid}
	default:
		return fmt.Errorf("timer socket: answer with status %d: %.64q", s, text)
	}
}
