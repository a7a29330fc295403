package timer

import "syscall"

// Frame is what a request packet says.
type Frame struct {
	Kind, Signal, PID int
	Time              float64
	Step              int64
	Scope             string
}

// ParseFrame reads a request packet.
func ParseFrame(packet []byte) (Frame, error) {
	f, err := parseFrame(packet)
	return Frame{int(f.kind), int(f.signal), f.pid, f.time, f.step, string(f.scope)}, err
}

// Append writes f as a packet.
func (f Frame) Append(to []byte) []byte {
	return appendFrame(to, &frame{
		kind: frameKind(f.Kind), signal: syscall.Signal(f.Signal), pid: f.PID, time: f.Time, step: f.Step, scope: []byte(f.Scope),
	})
}

var (
	AppendAnswer = func(to []byte, s int, text string) []byte {
		return appendAnswer(to, status(s), text)
	}
	ParseAnswer = parseAnswer
)

// Conns makes socket servers of cfg take so many connections at most.
func Conns(cfg Config, n int) Config {
	cfg.conns = n
	return cfg
}
