package server_test

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// A lab is a rendezvous with nodes named by letters, and a clock.
type lab struct {
	t   *testing.T
	r   *server.Rendezvous
	now time.Time
	ids map[string]server.ID

	min, max int // of the last hello
	lastCall time.Duration
	spare    bool // they were spares
	live     bool // their workers go on
}

func newLab(t *testing.T) *lab {
	return &lab{t: t, r: server.NewRendezvous("job", slog.New(slog.DiscardHandler)), now: time.Unix(1e9, 0), ids: map[string]server.ID{}, lastCall: lastCall}
}

const (
	lastCall = 30 * time.Second
	limit    = 15 * time.Second
)

func (l *lab) hello(name string, min, max int) { l.back(name, min, max, nil) }

// back is hello of a node that was in a round of another rendezvous.
func (l *lab) back(name string, min, max int, last *server.Place) {
	l.greet(name, name, name, min, max, last)
}

// greet is hello of a process, named by a letter, and by a ' if its PID is another, on a session called name.
func (l *lab) greet(name, addr, process string, min, max int, last *server.Place) {
	id := server.ID(len(l.ids) + 1)
	l.ids[name] = id
	l.r.Receive(l.now, id, &server.Message{
		Type: server.Hello, Host: name,
		Greeting: server.Greeting{
			Version: server.Version, RunID: "job", Node: &state.Node{Addr: "addr-" + addr, PID: 1 + strings.Count(process, "'")}, Instance: uint64(process[0]),
			MinNodes: min, MaxNodes: max, LastCall: l.lastCall, KeepAlive: 5 * time.Second,
			KeepAliveLimit: limit, Role: "trainer", LocalWorldSize: 2, Last: last, Spare: l.spare, Live: l.live,
		},
	})
}

func (l *lab) send(name string, m server.Message) { l.r.Receive(l.now, l.ids[name], &m) }
func (l *lab) join(names ...string) {
	for _, n := range names {
		l.send(n, server.Message{Type: server.Join})
	}
}

// run performs a script, one command a line, and returns what the rendezvous said to
// whom, one message a line. Lines of one command are sorted by the rendezvous.
func (l *lab) run(script string) string {
	var out strings.Builder
	for line := range strings.Lines(script) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		switch f[0] {
		case "hello": // min max names
			fmt.Sscan(f[1], &l.min)
			fmt.Sscan(f[2], &l.max)
			for _, n := range f[3:] {
				l.hello(n, l.min, l.max)
			}
		case "back": // min max round size name=rank…, or name=rank,node with rank 0
			var min, max, round, size int
			fmt.Sscan(strings.Join(f[1:], " "), &min, &max, &round, &size)
			for _, n := range f[5:] {
				name, rank, _ := strings.Cut(n, "=")
				rank, first, _ := strings.Cut(rank, ",")
				last := &server.Place{Round: round, WorldSize: size, First: first}
				fmt.Sscan(rank, &last.Rank)
				l.back(name, min, max, last)
			}
		case "again": // address, process, and what to call it
			l.greet(f[3], f[1], f[2], l.min, l.max, nil)
		case "join":
			l.join(f[1:]...)
		case "leave", "close", "ping":
			for _, n := range f[1:] {
				l.send(n, server.Message{Type: server.Type(f[0])})
			}
		case "gone":
			for _, n := range f[1:] {
				l.r.Gone(l.now, l.ids[n])
			}
		case "was":
			l.spare = f[1] == "spare"
		case "live":
			l.live = true
		case "wait":
			d, err := time.ParseDuration(f[1])
			if err != nil {
				l.t.Fatal(err)
			}
			l.wait(d)
		case "torch": // nodes of PyTorch's look at the state once
			for _, n := range f[1:] {
				l.torch(n)
			}
		case "beat": // nodes of PyTorch's send heartbeats
			for _, n := range f[1:] {
				st := l.text()
				st.Do(state.KeepAlive, state.Node{Addr: "addr-" + n, PID: 1}, state.Rules{}, l.now)
				l.r.Adopt(l.now, pickle.EncodeText(st))
			}
		case "state":
			l.state(&out)
		case "lastcall":
			d, err := time.ParseDuration(f[1])
			if err != nil {
				l.t.Fatal(err)
			}
			l.lastCall = d
		case "suspend":
			l.r.Suspend(l.now, f[1] == "on")
		case "sleep": // and wake late
			d, err := time.ParseDuration(f[1])
			if err != nil {
				l.t.Fatal(err)
			}
			l.now = l.now.Add(d)
			l.r.Advance(l.now)
		default:
			l.t.Fatalf("command %q", f[0])
		}
		l.said(&out)
	}
	return out.String()
}

// wait lets time pass; the rendezvous wakes when it wants to.
func (l *lab) wait(d time.Duration) {
	end := l.now.Add(d)
	for {
		next := l.r.Next()
		if next.IsZero() || next.After(end) {
			break
		}
		if next.Before(l.now) {
			l.t.Fatalf("the rendezvous wants to wake in the past, at %v", next)
		}
		l.now = next
		l.r.Advance(l.now)
	}
	l.now = end
}

// torch has one of PyTorch's nodes do what it can to join.
func (l *lab) torch(name string) {
	me := state.Node{Addr: "addr-" + name, PID: 1}
	rules := state.Rules{MinNodes: l.min, MaxNodes: l.max, LastCall: l.lastCall, KeepAliveInterval: 5 * time.Second}
	for {
		st := l.text()
		a := st.Join(me, rules, l.now, l.now.Add(time.Minute))
		if a == state.Sync || a == state.Finish {
			return
		}
		st.Do(a, me, rules, l.now)
		l.r.Adopt(l.now, pickle.EncodeText(st))
	}
}

// text is the state as torch nodes read it.
func (l *lab) text() *state.State {
	text, _ := l.r.Text(l.now)
	st, err := pickle.DecodeText(text)
	if err != nil {
		l.t.Fatal(err)
	}
	return st
}

// state writes who is where.
func (l *lab) state(out *strings.Builder) {
	st := l.text()
	fmt.Fprintf(out, "round %d complete %v:", st.Round, st.Complete)
	for _, n := range st.Nodes() {
		fmt.Fprintf(out, " %s", n.Addr)
	}
	for _, set := range []struct {
		name  string
		nodes state.Set
	}{{"waiting", st.WaitList}, {"spare", st.RedundancyList}} {
		if len(set.nodes) > 0 {
			fmt.Fprintf(out, ", %s", set.name)
		}
		for _, n := range slices.SortedFunc(maps.Keys(set.nodes), state.Node.Compare) {
			fmt.Fprintf(out, " %s", n.Addr)
		}
	}
	out.WriteString("\n")
}

func (l *lab) said(out *strings.Builder) {
	for _, e := range l.r.Out() {
		name := ""
		for n, id := range l.ids {
			if id == e.To {
				name = n
			}
		}
		m := e.Msg
		switch m.Type {
		case server.Welcome, server.Pong:
			continue
		case server.Round:
			fmt.Fprintf(out, "%s: round %d rank %d/%d", name, m.Round, m.Rank, m.WorldSize)
			if m.Ranks != nil {
				fmt.Fprintf(out, " workers %d/%d", m.Ranks.Base, m.Ranks.WorldSize)
			}
		case server.Change:
			fmt.Fprintf(out, "%s: %s %s %d", name, m.Kind, m.Host, m.Rank)
		case server.Refused:
			fmt.Fprintf(out, "%s: refused%s: %s", name, map[bool]string{true: " for now"}[m.Taken], m.Error)
		case server.Closed, server.Spare:
			fmt.Fprintf(out, "%s: %s", name, m.Type)
			if m.Redundant {
				out.WriteString(" redundant")
			}
		default:
			fmt.Fprintf(out, "%s: %s", name, m.Type)
		}
		if e.End {
			out.WriteString(", end")
		}
		out.WriteString("\n")
	}
}

func TestScenarios(t *testing.T) {
	tests := []struct{ name, script, want string }{
		{"all at once", `
			hello 3 3 c a b
			join c a
			join b`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6`},
		{"last call", `
			hello 2 4 a b c
			join a
			join b
			wait 14s
			ping a b c
			wait 14s
			ping a b c
			join c
			wait 3s`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6`},
		{"a failure: everybody comes back at once, with the same ranks", `
			hello 2 4 b c
			join b c
			wait 14s
			ping b c
			wait 14s
			ping b c
			wait 3s
			hello 2 4 a
			join b
			join c`, `
			b: round 0 rank 0/2 workers 0/4
			c: round 0 rank 1/2 workers 2/4
			c: nodes waiting b -1
			b: round 1 rank 0/2 workers 0/4
			c: round 1 rank 1/2 workers 2/4`},
		{"a new host up to max; ranks are sticky", `
			hello 2 3 b c
			join b c
			wait 14s
			ping b c
			wait 14s
			ping b c
			wait 3s
			hello 2 3 a
			join a
			join c
			join b`, `
			b: round 0 rank 0/2 workers 0/4
			c: round 0 rank 1/2 workers 2/4
			b: nodes waiting a -1
			c: nodes waiting a -1
			b: round 1 rank 0/3 workers 0/6
			c: round 1 rank 1/3 workers 2/6
			a: round 1 rank 2/3 workers 4/6`},
		{"a new host below max: a last call", `
			hello 1 3 a
			join a
			wait 14s
			ping a
			wait 14s
			ping a
			wait 3s
			hello 1 3 b
			join b
			join a
			wait 14s
			ping a b`, `
			a: round 0 rank 0/1 workers 0/2
			a: nodes waiting b -1`},
		{"a new host below max, in a live job: none", `
			live
			hello 1 3 a
			join a
			wait 14s
			ping a
			wait 14s
			ping a
			wait 3s
			hello 1 3 b
			join b
			join a`, `
			a: round 0 rank 0/1 workers 0/2
			a: nodes waiting b -1
			a: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4`},
		{"a host is lost: the others go on without a last call", `
			hello 2 3 a b c
			join a b c
			gone b
			join c
			join a`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6
			a: node lost b 1
			c: node lost b 1
			a: nodes waiting c -1
			a: round 1 rank 0/2 workers 0/4
			c: round 1 rank 1/2 workers 2/4`},
		{"too few are left, and one comes", `
			hello 2 2 a b
			join a b
			gone a
			join b
			wait 1s
			hello 2 2 d
			join d`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			b: node lost a 0
			d: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4`},
		{"while it is not known whether the rendezvous is the only one, a round leaves too few for another", `
			hello 2 5 a b c d e
			join a b c d e
			suspend on
			gone e
			join a b c d
			gone d
			join a b c
			wait 14s
			ping a b c
			wait 14s
			ping a b c
			wait 3s
			suspend off
			suspend on`, `
			a: round 0 rank 0/5 workers 0/10
			b: round 0 rank 1/5 workers 2/10
			c: round 0 rank 2/5 workers 4/10
			d: round 0 rank 3/5 workers 6/10
			e: round 0 rank 4/5 workers 8/10
			a: node lost e 4
			b: node lost e 4
			c: node lost e 4
			d: node lost e 4
			b: nodes waiting a -1
			c: nodes waiting a -1
			d: nodes waiting a -1
			a: round 1 rank 0/4 workers 0/8
			b: round 1 rank 1/4 workers 2/8
			c: round 1 rank 2/4 workers 4/8
			d: round 1 rank 3/4 workers 6/8
			a: node lost d 3
			b: node lost d 3
			c: node lost d 3
			b: nodes waiting a -1
			c: nodes waiting a -1
			a: round 2 rank 0/3 workers 0/6
			b: round 2 rank 1/3 workers 2/6
			c: round 2 rank 2/3 workers 4/6
			a: suspended  -1
			b: suspended  -1
			c: suspended  -1`},
		{"one host may be a round: all must be here", `
			hello 1 3 a b c
			join a b c
			suspend on
			gone c
			join a b
			state
			suspend off`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6
			a: node lost c 2
			b: node lost c 2
			b: nodes waiting a -1
			round 1 complete false: addr-a addr-b
			a: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4`},
		{"a lost spare may have a round of its own", `
			hello 1 2 a b s
			join a b s
			gone s
			suspend on
			join a b
			state
			suspend off
			suspend on`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			s: spare redundant
			a: suspended  -1
			b: suspended  -1
			b: nodes waiting a -1
			round 1 complete false: addr-a addr-b
			a: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4`},
		{"a spare may not", `
			hello 2 2 a b s
			join a b s
			suspend on
			gone b`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			s: spare redundant
			a: node lost b 1
			s: spare
			a: nodes waiting s -1`},
		{"a spare waits until there is room", `
			hello 2 2 a b s
			join a b
			join s
			join a
			join b
			gone b
			join a`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			s: spare redundant
			b: nodes waiting a -1
			a: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4
			a: node lost b 1
			s: spare
			a: nodes waiting s -1
			a: round 2 rank 0/2 workers 0/4
			s: round 2 rank 1/2 workers 2/4`},
		{"the end", `
			hello 1 1 a s
			join a
			join s
			close a
			join a`, `
			a: round 0 rank 0/1 workers 0/2
			s: spare redundant
			a: closed
			s: closed redundant
			a: closed`},
		{"a host falls silent", `
			hello 2 3 a b c
			join a b c
			wait 10s
			ping a b
			wait 6s`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6
			a: node lost c 2
			b: node lost c 2
			c: evicted  -1, end`},
		{"a host leaves", `
			hello 1 3 a b c
			join a b c
			leave c`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6
			a: node left c 2
			b: node left c 2
			c: left`},
		{"one leaves while the round forms, and the last call ends", `
			hello 2 3 a b
			join a b
			wait 10s
			ping a b
			leave b
			wait 14s
			ping a b
			wait 14s
			ping a b
			join b
			wait 10s
			ping a b
			wait 10s
			ping a b
			wait 11s`, `
			b: left
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4`},
		{"a new rendezvous after the old one's host was lost", `
			back 2 4 7 3 a=2 b=0
			join b
			join a`, `
			b: round 8 rank 0/2 workers 0/4
			a: round 8 rank 1/2 workers 2/4`},
		{"a new rendezvous waits for those who may come back", `
			back 2 4 7 4 a=2 b=0
			join b a
			wait 10s
			ping a b
			back 2 4 7 4 c=1
			join c`, `
			b: round 8 rank 0/3 workers 0/6
			c: round 8 rank 1/3 workers 2/6
			a: round 8 rank 2/3 workers 4/6`},
		{"two lost holders gave a round the same number: the larger one goes on", `
			back 2 5 7 2 a=0,a b=1,a
			back 2 5 7 3 c=0,c d=1,c e=2,c
			join a b c d e`, `
			c: round 8 rank 0/5 workers 0/10
			d: round 8 rank 1/5 workers 2/10
			e: round 8 rank 2/5 workers 4/10
			a: round 8 rank 3/5 workers 6/10
			b: round 8 rank 4/5 workers 8/10`},
		{"a node is lost while the others come back: a spare takes its place at once", `
			hello 2 3 a b c s
			join a b c
			join s
			join b
			join a
			gone c
			hello 2 3 d
			join d
			gone a`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6
			s: spare redundant
			a: nodes waiting b -1
			c: nodes waiting b -1
			s: spare
			a: round 1 rank 0/3 workers 0/6
			b: round 1 rank 1/3 workers 2/6
			s: round 1 rank 2/3 workers 4/6
			d: spare redundant
			b: node lost a 0
			s: node lost a 0
			d: spare
			b: nodes waiting d -1
			s: nodes waiting d -1`},
		{"the server's host was stopped for a while: what nodes said meanwhile counts", `
			hello 2 2 a b
			join a b
			wait 14s
			sleep 2s
			ping a b
			wait 14s
			ping b
			wait 2s`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			b: node lost a 0
			a: evicted  -1, end`},
		{"a full round makes spares of torch nodes that wait", `
			hello 2 2 a b
			join a b
			join b
			torch f
			state
			join a
			torch f
			state`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			a: nodes waiting b -1
			round 0 complete true: addr-a, waiting addr-b addr-f
			a: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4
			round 1 complete true: addr-a addr-b, spare addr-f`},
		{"torch nodes see a round before it breaks up for others", `
			hello 2 3 a b
			join a b
			torch f
			wait 1s
			join a
			wait 400ms
			state
			wait 200ms`, `
			a: round 0 rank 0/3
			b: round 0 rank 1/3
			round 0 complete true: addr-b addr-f, waiting addr-a
			b: nodes waiting a -1`},
		{"a torch node is too slow for the last call", `
			hello 2 3 a b c
			join a b c
			gone c
			torch f
			join a
			join b
			wait 10s
			ping a b
			beat f
			wait 10s
			ping a b
			beat f
			wait 11s
			state
			wait 1s`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6
			a: node lost c 2
			b: node lost c 2
			a: nodes waiting addr-f -1
			b: nodes waiting addr-f -1
			a: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4
			round 1 complete true: addr-a addr-b, waiting addr-f
			a: nodes waiting addr-f -1
			b: nodes waiting addr-f -1`},
		{"a short last call leaves a torch node that waits the time to look", `
			lastcall 1s
			hello 2 3 a b
			join a b
			wait 2s
			torch f
			join a b
			wait 2s
			torch f
			state`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			a: nodes waiting addr-f -1
			b: nodes waiting addr-f -1
			a: round 1 rank 0/3
			b: round 1 rank 1/3
			round 1 complete true: addr-a addr-b addr-f`},
		{"and a torch node that comes no more does not hold the others up", `
			lastcall 1s
			hello 2 3 a b
			join a b
			wait 2s
			torch f
			join a b
			wait 4s`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			a: nodes waiting addr-f -1
			b: nodes waiting addr-f -1
			a: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4`},
		{"a node comes back on another connection before it is missed", `
			hello 2 2 a b
			join a b
			again b b b2
			join b2
			join a
			again b b b3`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			a: node lost b 1
			b: evicted  -1, end
			a: nodes waiting b2 -1
			a: round 1 rank 0/2 workers 0/4
			b2: round 1 rank 1/2 workers 2/4
			a: node lost b2 1
			b2: evicted  -1, end`},
		{"two nodes of one name", `
			hello 2 2 a b
			wait 1s
			again a c a2
			wait 1s
			again a c a3
			again a d a4
			ping a
			again a c a5
			again a d a6
			wait 1s
			ping a
			again a d a7`, `
			a: status
			a2: refused for now: node addr-a_1_0 has joined already, from host a; if two hosts have the same address, give each another --local-addr, end
			a3: refused for now: node addr-a_1_0 has joined already, from host a; if two hosts have the same address, give each another --local-addr, end
			a4: refused for now: node addr-a_1_0 has joined already, from host a; if two hosts have the same address, give each another --local-addr, end
			a5: refused: node addr-a_1_0 has joined already, from host a; if two hosts have the same address, give each another --local-addr, end
			a: status
			a6: refused for now: node addr-a_1_0 has joined already, from host a; if two hosts have the same address, give each another --local-addr, end
			a7: refused: node addr-a_1_0 has joined already, from host a; if two hosts have the same address, give each another --local-addr, end`},
		{"a host that was started anew comes back under its old name, once the connection from before is found dead", `
			hello 2 2 a b
			join a b
			wait 1s
			again b c b2
			gone b
			again b c b3
			join a b3`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			b: status
			b2: refused for now: node addr-b_1_0 has joined already, from host b; if two hosts have the same address, give each another --local-addr, end
			a: node lost b 1
			a: round 1 rank 0/2 workers 0/4
			b3: round 1 rank 1/2 workers 2/4`},
		{"or with another PID: the connection from before is found dead as well", `
			hello 2 2 a b
			join a b
			wait 1s
			again b c' b2
			join b2
			gone b
			join a`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			b: status
			b2: spare redundant
			a: node lost b 1
			b2: spare
			a: nodes waiting b2 -1
			a: round 1 rank 0/2 workers 0/4
			b2: round 1 rank 1/2 workers 2/4`},
		{"or is missed", `
			hello 2 2 a b
			wait 1s
			again b c b2
			wait 13s
			again b c b3
			ping a
			wait 2s
			again b c b4
			join a b4`, `
			b: status
			b2: refused for now: node addr-b_1_0 has joined already, from host b; if two hosts have the same address, give each another --local-addr, end
			b3: refused for now: node addr-b_1_0 has joined already, from host b; if two hosts have the same address, give each another --local-addr, end
			b: evicted  -1, end
			a: round 0 rank 0/2 workers 0/4
			b4: round 0 rank 1/2 workers 2/4`},
		{"another --nnodes", `
			hello 2 2 a
			hello 2 3 b`, `
			b: refused: --nnodes is 2:3 on b and 2:2 on the hosts that came before; give all hosts of run "job" the same, end`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(trim(tt.want), newLab(t).run(tt.script)); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func trim(s string) string {
	var out strings.Builder
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// Where a host has two agents in a round of several hosts, as with two tasks of srun on each, the log says so, and
// which hosts are left out; the end of the job repeats it.
func TestTwoAgentsOfOneHost(t *testing.T) {
	for _, tt := range []struct {
		name, agents string // host and machine of each, in the order in which they join
		nodes        int    // of the job
		want         []string
		spares       string // what they hear
	}{
		{"two tasks on each of two hosts", "a1 a1 b2 b2", 2, []string{"hosts=[a] left_out=[b]", "hosts=[a] left_out=[b]"}, "[a a]"},
		{"the agent of before waits yet", "a1 a1 b2", 2, []string{"hosts=[a] left_out=[b]", "hosts=[a] left_out=[b]"}, "[a]"},
		{"nobody is left out", "a1 b2 a1", 3, []string{"hosts=[a] left_out=[]", "hosts=[a] left_out=[]"}, "[]"},
		{"a job of one machine", "a1 a1 a1", 2, nil, "[]"},
		{"containers of one machine", "a1 b1 c1", 2, nil, "[]"},
		{"one on each", "a1 b2 c3", 2, nil, "[]"},
		{"machines that are not known", "a a b", 2, nil, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log strings.Builder
			l := newLab(t)
			l.r = server.NewRendezvous("job", slog.New(slog.NewTextHandler(&log, nil)))
			for i, agent := range strings.Fields(tt.agents) {
				l.r.Receive(l.now, server.ID(i), &server.Message{Type: server.Hello, Host: agent[:1], Greeting: server.Greeting{
					Version: server.Version, Node: &state.Node{Addr: agent, PID: i + 1}, MinNodes: tt.nodes, MaxNodes: tt.nodes, LocalWorldSize: 1,
					KeepAlive: time.Second, KeepAliveLimit: limit, Boot: agent[1:]}})
				l.r.Receive(l.now, server.ID(i), &server.Message{Type: server.Join})
			}
			var heard []string
			for _, e := range l.r.Out() {
				if e.Msg.Type == server.Spare && e.Msg.Host != "" {
					heard = append(heard, e.Msg.Host)
				}
			}
			if fmt.Sprint(heard) != tt.spares {
				t.Errorf("spares hear %q, want %s", heard, tt.spares)
			}
			l.r.Receive(l.now, 0, &server.Message{Type: server.Close})
			var got []string
			for line := range strings.Lines(log.String()) {
				if _, says, ok := strings.Cut(line, "have several agents in the round"); ok {
					_, names, _ := strings.Cut(strings.TrimSpace(says), "run_id=job ")
					got = append(got, names)
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got)\n%s%s", d, log.String())
			}
		})
	}
}

// Two hosts of a static job with one node rank are told what to do about that.
func TestNodeRankIsTaken(t *testing.T) {
	l := newLab(t)
	hello := server.Message{Type: server.Hello, Host: "host1", Greeting: server.Greeting{
		Version: server.Version, Node: &state.Node{Addr: "00000001"}, Instance: 1, MinNodes: 3, MaxNodes: 3,
		KeepAlive: time.Second, KeepAliveLimit: limit, LocalWorldSize: 1}}
	other := hello
	other.Host, other.Instance = "host2", 2
	l.r.Receive(l.now, 1, &hello)
	l.r.Receive(l.now, 2, &other)
	out := l.r.Out()
	want := "node rank 1 has joined already, from host host1; give each host its own --node-rank"
	if m := out[len(out)-1].Msg; m.Type != server.Refused || m.Error != want {
		t.Errorf("%+v, want %s", m, want)
	}
}

// TestSenseless has nodes greet with numbers that no node has.
func TestSenseless(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*server.Message)
	}{
		{"no node", func(m *server.Message) { m.Node = nil }},
		{"PID", func(m *server.Message) { m.Node.PID = 1 << 40 }},
		{"negative PID", func(m *server.Message) { m.Node.PID = -1 }},
		{"nodes", func(m *server.Message) { m.MaxNodes = 1 << 40 }},
		{"workers", func(m *server.Message) { m.LocalWorldSize = math.MaxInt }},
		{"round", func(m *server.Message) { m.Last = &server.Place{Round: math.MaxInt32, WorldSize: 1} }},
		{"limit", func(m *server.Message) { m.KeepAliveLimit = m.KeepAlive - 1 }},
	} {
		r := server.NewRendezvous("job", slog.New(slog.DiscardHandler))
		m := &server.Message{
			Type: server.Hello,
			Greeting: server.Greeting{
				Version: server.Version, Node: &state.Node{Addr: "a", PID: 1}, MinNodes: 1, MaxNodes: 1,
				KeepAlive: time.Second, KeepAliveLimit: limit, LocalWorldSize: 1,
			},
		}
		tt.change(m)
		r.Receive(time.Unix(1e9, 0), 1, m)
		if out := r.Out(); len(out) != 1 || out[0].Msg.Type != server.Refused || !out[0].End || !r.Empty() {
			t.Errorf("%s: %+v", tt.name, out)
		}
	}
}

// Nodes that a stranger writes into the state do not flood the log.
func TestInventedNodes(t *testing.T) {
	var log strings.Builder
	l := newLab(t)
	l.r = server.NewRendezvous("job", slog.New(slog.NewTextHandler(&log, nil)))
	l.hello("A", 2, 5000)
	st := l.text()
	for i := range 1000 {
		st.LastHeartbeats[state.Node{Addr: "invented", PID: i}] = l.now
		st.WaitList.Add(state.Node{Addr: "invented", PID: i})
	}
	l.r.Adopt(l.now, pickle.EncodeText(st))
	l.wait(time.Minute)
	if left := len(l.text().LastHeartbeats); left > 1 {
		t.Errorf("%d nodes are left", left)
	}
	if lines := strings.Count(log.String(), "has not been heard from"); lines < 3 || lines > 110 {
		t.Errorf("%d lines", lines)
	}
}

// What one node says of itself fits into what the others are told, however many they are and
// whatever JSON makes of it.
func TestLongNames(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		host, role, addr, id int
		want                 server.Type
	}{
		{"as long as may be", 255, 255, 1024, 4096, server.Welcome},
		{"host", 256, 1, 1, 1, server.Refused},
		{"role", 1, 256, 1, 1, server.Refused},
		{"address", 1, 1, 1025, 1, server.Refused},
		{"run ID", 1, 1, 1, 4097, server.Refused},
	} {
		l := newLab(t)
		for i := range 40 {
			addr := fmt.Sprintf("%0*d", tt.addr, i%10)
			hello := &server.Message{
				Type: server.Hello, Host: strings.Repeat("<", tt.host),
				Greeting: server.Greeting{
					Version: server.Version, RunID: strings.Repeat("<", tt.id), Node: &state.Node{Addr: addr, PID: i}, Role: strings.Repeat("<", tt.role),
					LocalWorldSize: 1, MinNodes: 41, MaxNodes: 41, KeepAlive: time.Second,
					KeepAliveLimit: limit,
				},
			}
			l.r.Receive(l.now, server.ID(i), hello)
			l.r.Receive(l.now, server.ID(i), &server.Message{Type: server.Join})
			l.r.Receive(l.now, server.ID(i), &server.Message{Type: server.Status})
		}
		for i, e := range l.r.Out() {
			if i == 0 && e.Msg.Type != tt.want {
				t.Errorf("%s: got %s, want %s", tt.name, e.Msg.Type, tt.want)
			}
			if n := len(e.Msg.Append(nil)); n > server.MaxMessage {
				t.Errorf("%s: a %s of %d bytes", tt.name, e.Msg.Type, n)
			}
		}
	}
}
