package simulate

import (
	"fmt"

	"github.com/muster-run/muster/rendezvous/internal/server"
)

// trace writes a line about what happens now.
func (s *sim) trace(format string, a ...any) {
	if s.out == nil {
		return
	}
	fmt.Fprintf(s.out, "%.9f ", s.now.Seconds())
	fmt.Fprintf(s.out, format, a...)
	s.out.WriteByte('\n')
}

// traceMessage writes a line about a message from the rendezvous.
func (s *sim) traceMessage(c *conn, m *server.Message) {
	if s.out == nil {
		return
	}
	text := string(m.Type)
	switch m.Type {
	case server.Round:
		text = fmt.Sprintf("round %d rank %d/%d", m.Round, m.Rank, m.WorldSize)
		if r := m.Ranks; r != nil {
			text += fmt.Sprintf(" workers %d/%d role %d/%d", r.Base, r.WorldSize, r.RoleBase, r.RoleWorldSize)
		}
	case server.Change:
		text = fmt.Sprintf("round %d: %v %s %d", m.Round, m.Kind, m.Host, m.Rank)
	case server.Master:
		text = fmt.Sprintf("master of round %d: %s:%d", m.Round, m.Addr, m.Port)
	case server.Refused:
		text = "refused: " + m.Error
	case server.Closed, server.Spare:
		if m.Redundant {
			text += " redundant"
		}
	case server.Status:
		if m.Waiting == nil {
			break
		}
		w := *m.Waiting
		w.Known, w.Missing = nil, nil // any of them, as it happens
		text = "status: " + w.String()
	}
	s.trace("holder -> %s: %s", c.host.name, text)
}
