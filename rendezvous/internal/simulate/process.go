package simulate

import (
	"time"

	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// A process is an agent, muster's or PyTorch's, as the rest of the simulation sees it.
type process interface {
	common() *base
	// place is where it is, or was last, and whether it waits as a spare.
	place() (round int, spare bool)
	// receive is called with a message of the connection, in order.
	receive(c *conn, m *server.Message)
	// eof is called when the other side has ended the connection.
	eof(c *conn)
	// restart stops the workers and proceeds to the next round.
	restart()
	// succeed closes the rendezvous, as the workers are done.
	succeed()
	// end ends it without a word to the holder.
	end(why string)
}

// base is what all processes have.
type base struct {
	s     *sim
	host  *host
	node  state.Node
	phase phase
}

func (b *base) common() *base { return b }

// A phase says what an agent does. One of PyTorch's has not all of them.
type phase uint8

const (
	dialing  phase = iota
	greeting       // it has said who it is
	joining        // it waits for a round
	placed         // it has a rank in one and waits to hear where the workers meet
	opening        // it has rank 0 and makes the workers' store, or asks the agents' for it
	running        // its workers run
	stopping       // its workers stop, for a new round
	leaving        // it has said so and waits for the answer
	closing
	ended
)

var phaseNames = [...]string{"dialing", "greeting", "joining", "placed", "opening", "running", "stopping", "leaving", "closing", "ended"}

func (p phase) String() string { return phaseNames[p] }

// newBase is that of a new process on a host.
func (s *sim) newBase(h *host) base {
	s.living++
	s.pids++
	return base{s: s, host: h, node: state.Node{Addr: h.name, PID: s.pids}}
}

// is reports whether the host's agent is p, in a phase.
func (h *host) is(phase phase) bool { return h.agent != nil && h.agent.common().phase == phase }

func (b *base) setPhase(p phase) {
	if b.phase != p {
		b.s.trace("%s: %v", b.host.name, p)
	}
	b.phase = p
}

// current reports whether the host still has this process.
func (b *base) current() bool { return b.host.agent != nil && b.host.agent.common() == b }

// over ends the process and reports whether the host's kernel has to clean up after it.
func (b *base) over(why string) bool {
	b.phase = ended
	b.s.trace("%s: agent %d ends: %s", b.host.name, b.node.PID, why)
	if !b.current() {
		return false
	}
	b.host.agent = nil
	return true
}

// time is what the host's clock shows.
func (h *host) time(s *sim) time.Time { return s.clock().Add(h.skew) }

// stopAll stops timers.
func stopAll(timers ...*timer) {
	for _, t := range timers {
		t.stop()
	}
}
