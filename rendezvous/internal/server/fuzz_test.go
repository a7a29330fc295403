package server_test

import (
	"bytes"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// FuzzRead has strangers talk to the server.
func FuzzRead(f *testing.F) {
	node := &state.Node{Addr: "10.0.0.1", PID: 70000, LocalID: 1}
	for _, m := range []server.Message{
		{
			Type: server.Hello, Host: "a",
			Greeting: server.Greeting{
				Version: server.Version, RunID: "job", Node: node, MinNodes: 1,
				MaxNodes: 2, LastCall: lastCall, KeepAlive: time.Second, KeepAliveLimit: limit,
				Role: "trainer", LocalWorldSize: 8, Last: &server.Place{Round: 1, WorldSize: 2},
			},
		},
		{Type: server.Ping, Sent: math.MaxInt64},
		{Type: server.Round, Round: 1, Rank: 1, Assignment: server.Assignment{WorldSize: 2, Ranks: &rendezvous.Ranks{Base: 8, WorldSize: 16}}},
		{Type: server.Status, Waiting: &rendezvous.Waiting{Joined: 1, Known: []string{"a"}}},
		{Type: server.Refused, Refusal: server.Refusal{Error: "\x00ü"}},
	} {
		f.Add(m.Append(nil))
	}
	f.Add([]byte("\x00\x01\x00\x01"))
	f.Add([]byte("\x00\x00\x00\x02{"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			m, err := server.Read(r)
			if err != nil {
				return
			}
			text := m.Append(nil)
			again, err := server.Read(bytes.NewReader(text))
			if err != nil {
				t.Fatalf("%q cannot be read back: %v", text, err)
			}
			if got := again.Append(nil); !bytes.Equal(got, text) {
				t.Fatalf("%q is read as %q", text, got)
			}
		}
	})
}

// FuzzReceive has nodes, and what they write, do anything at all.
func FuzzReceive(f *testing.F) {
	// Each byte is a choice, see stranger.
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1})
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 1, 1, 1, 2, 5, 0, 3, 1, 200, 6, 5, 1, 0, 7, 9, 9, 9})
	// A node with an odd PID joins and a torch node looks; one has an odd limit; one
	// comes back after an odd round.
	f.Add([]byte{0, 0, 0, 0, 0, 2, 0, 7, 0, 0, 1, 0, 6, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 3, 6, 0, 6, 0, 1, 0, 6, 1, 0, 0, 0, 8, 0, 8})
	f.Add([]byte{0, 0, 0, 0, 0, 4, 6, 0, 1, 0, 1, 0, 4, 0, 6, 1, 3, 6, 0})
	f.Add(bytes.Repeat([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 20))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		s := &stranger{
			t: t, data: data, r: server.NewRendezvous("job", slog.New(slog.DiscardHandler)), now: time.Unix(1e9, 0),
			open: map[server.ID]bool{}, rounds: map[server.ID]int{},
		}
		for len(s.data) > 0 {
			s.do()
			s.check()
		}
		s.end()
	})
}

// A stranger does what the data says, and checks what the rendezvous says.
type stranger struct {
	t      *testing.T
	data   []byte
	r      *server.Rendezvous
	now    time.Time
	open   map[server.ID]bool // sessions whose connection is there
	rounds map[server.ID]int  // the last that each was told of
	closed bool
}

// pick makes the next choice, of n.
func (s *stranger) pick(n int) int {
	if len(s.data) == 0 {
		return 0
	}
	b := int(s.data[0])
	s.data = s.data[1:]
	return b % n
}

var oddNumbers = []int{1, 2, 3, 0, -1, 4, math.MaxInt32, math.MaxInt64, math.MinInt64}

var oddTimes = []time.Duration{5 * time.Second, 15 * time.Second, time.Second, 0, -1, 1, math.MaxInt64, math.MinInt64}

func (s *stranger) do() {
	id := server.ID(s.pick(6) + 1)
	s.now = s.now.Add(1)
	switch s.pick(9) {
	case 0:
		s.receive(id, s.hello())
	case 1:
		s.receive(id, &server.Message{Type: server.Join})
	case 2:
		kinds := []server.Type{server.Leave, server.Ping, server.Status, server.Close, "", server.Round, server.Hello, "more"}
		m := &server.Message{Type: kinds[s.pick(len(kinds))], Sent: int64(oddNumbers[s.pick(len(oddNumbers))])}
		s.closed = s.closed || m.Type == server.Close
		s.receive(id, m)
	case 3:
		s.receive(id, &server.Message{Type: server.Master, Round: s.pick(4), Addr: "a", Port: oddNumbers[s.pick(len(oddNumbers))]})
	case 4:
		delete(s.open, id)
		s.r.Gone(s.now, id)
	case 5:
		s.now = s.now.Add([]time.Duration{time.Second, 1, 14 * time.Second, time.Minute, time.Hour}[s.pick(5)])
		s.advance()
	case 6, 7:
		s.write()
	case 8:
		next := s.r.Next()
		if !next.IsZero() && next.After(s.now) && next.Sub(s.now) < 1e6*time.Hour {
			s.now = next
			s.advance()
		}
	}
}

func (s *stranger) receive(id server.ID, m *server.Message) {
	s.open[id] = true
	s.r.Receive(s.now, id, m)
}

func (s *stranger) hello() *server.Message {
	m := &server.Message{
		Type: server.Hello, Host: "h",
		Greeting: server.Greeting{
			Version: server.Version, Role: "r", MinNodes: 1 + s.pick(2), MaxNodes: 2,
			LocalWorldSize: 1, Node: &state.Node{Addr: string(rune('a' + s.pick(8))), PID: s.pick(2)}, LastCall: lastCall, KeepAlive: 5 * time.Second,
			KeepAliveLimit: limit,
		},
	}
	switch s.pick(8) {
	case 1:
		m.MinNodes, m.MaxNodes = oddNumbers[s.pick(len(oddNumbers))], oddNumbers[s.pick(len(oddNumbers))]
	case 2:
		m.LocalWorldSize, m.Node.PID, m.Node.LocalID = oddNumbers[s.pick(len(oddNumbers))], oddNumbers[s.pick(len(oddNumbers))], oddNumbers[s.pick(len(oddNumbers))]
	case 3:
		m.LastCall, m.KeepAlive, m.KeepAliveLimit = oddTimes[s.pick(len(oddTimes))], oddTimes[s.pick(len(oddTimes))], oddTimes[s.pick(len(oddTimes))]
	case 4, 5:
		m.Last = &server.Place{Round: oddNumbers[s.pick(len(oddNumbers))], Rank: s.pick(3), WorldSize: oddNumbers[s.pick(len(oddNumbers))]}
	case 6:
		m.Node = nil
	}
	return m
}

// write has a torch node, or somebody who is none, write the state.
func (s *stranger) write() {
	text, _ := s.r.Text(s.now)
	st, err := pickle.DecodeText(text)
	if err != nil {
		s.t.Fatalf("the rendezvous' text: %v", err)
	}
	me := state.Node{Addr: string(rune('a' + s.pick(8))), PID: 2}
	rules := state.Rules{MinNodes: 1, MaxNodes: 2, LastCall: lastCall, KeepAliveInterval: 5 * time.Second}
	clock := s.now.Add([]time.Duration{0, time.Second, -time.Minute, 24 * time.Hour}[s.pick(4)])
	switch s.pick(7) {
	case 0, 1:
		st.Do(st.Join(me, rules, clock, clock), me, rules, clock)
	case 2:
		st.Do(state.Action(s.pick(14)), me, rules, clock)
	case 3:
		st.Round, st.Complete = oddNumbers[s.pick(7)], s.pick(2) == 0
	case 4:
		st.Participants[me], st.WaitList = oddNumbers[s.pick(7)], state.Set{me: {}}
	case 5:
		st.Closed, st.Deadline = s.pick(2) == 0, clock
	case 6:
		st.Drop(rules, me)
	}
	s.closed = s.closed || st.Closed
	s.r.Adopt(s.now, pickle.EncodeText(st))
}

func (s *stranger) advance() {
	s.r.Advance(s.now)
	if next := s.r.Next(); !next.IsZero() && !next.After(s.now) {
		s.t.Fatalf("at %v the rendezvous wants to wake at %v", s.now, next)
	}
}

// check looks at what the rendezvous says.
func (s *stranger) check() {
	ranks := map[int]bool{}
	out := s.r.Out()
	if most := 64; len(out) > most {
		s.t.Fatalf("%d messages at once", len(out))
	}
	for _, e := range out {
		if !s.open[e.To] {
			s.t.Fatalf("message %q to session %d, which is not there", e.Msg.Type, e.To)
		}
		if m := e.Msg; m.Type == server.Round {
			if m.Rank < 0 || ranks[m.Rank] || !m.Torch && m.Rank >= m.WorldSize {
				s.t.Fatalf("rank %d of %d", m.Rank, m.WorldSize)
			}
			ranks[m.Rank] = true
		}
		if text := e.Msg.Append(nil); len(text) > server.MaxMessage {
			s.t.Fatalf("a message of %d bytes", len(text))
		}
		if e.End {
			delete(s.open, e.To)
			s.r.Gone(s.now, e.To)
		}
	}
}

// end has everybody go, after which nothing may be left.
func (s *stranger) end() {
	for id := range s.open {
		s.r.Gone(s.now, id)
	}
	for range 100 {
		next := s.r.Next()
		if next.IsZero() {
			break
		}
		if next.After(s.now) {
			s.now = next
		}
		s.r.Advance(s.now)
	}
	if next := s.r.Next(); !next.IsZero() {
		s.t.Errorf("the rendezvous still wants to wake at %v", next)
	}
}
