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
	live     bool // their workers continue
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

// run performs a script, one command a line, and returns what the rendezvous sent to which node, one message a
// line, in its order. testdata/scenarios/README lists the commands.
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
	want := "node rank 1 has joined already, from host host1; give each host its own Spec.NodeRank"
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
