package quorum

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// A child is Elect with pipes at both ends, as an agent has it.
type child struct {
	t       *testing.T
	in      *io.PipeWriter
	reports chan pipe.Report // closed at its end
	done    chan error
}

func start(t *testing.T, settings pipe.Elect) *child {
	t.Helper()
	in, toChild := io.Pipe()
	fromChild, out := io.Pipe()
	c := &child{t, toChild, make(chan pipe.Report, 100), make(chan error, 1)}
	go func() {
		c.done <- Elect(context.Background(), in, out, slog.New(slog.DiscardHandler))
		in.Close()
		out.Close()
	}()
	go func() {
		defer close(c.reports)
		for r := pipe.NewReader(fromChild); ; {
			var report pipe.Report
			if r.Read(&report) != nil {
				return
			}
			c.reports <- report
		}
	}()
	t.Cleanup(func() {
		c.in.Close()
		for range c.reports {
		}
	})
	if err := pipe.NewWriter(toChild).Write(settings); err != nil {
		t.Fatal(err)
	}
	return c
}

// hears waits for the next report that is not of waiting.
func (c *child) hears() pipe.Report {
	c.t.Helper()
	for r := range c.reports {
		if r.Waiting == nil {
			return r
		}
	}
	c.t.Fatal("it has ended")
	return pipe.Report{}
}

// hearsOfLeader waits for a leader, after the end of the last one and news of leases.
func (c *child) hearsOfLeader() *pipe.Leader {
	c.t.Helper()
	for {
		switch r := c.hears(); {
		case r.Leader != nil:
			return r.Leader
		case r.Gone == 0 && r.Lease == nil:
			c.t.Fatalf("got %+v, want a leader", r)
		}
	}
}

// waits reads on until the child waits for something with a text in it.
func (c *child) waits(text string) {
	c.t.Helper()
	for r := range c.reports {
		if r.Waiting != nil && strings.Contains(*r.Waiting, text) {
			return
		}
		if r.Error != "" {
			c.t.Fatalf("got %+v, want to wait for %q", r, text)
		}
	}
	c.t.Fatalf("it has ended, want to wait for %q", text)
}

func (c *child) says(op string) {
	c.t.Helper()
	if err := pipe.NewWriter(c.in).Write(pipe.Command{Op: op}); err != nil {
		c.t.Fatal(err)
	}
}

// ends closes its stdin and waits for its end.
func (c *child) ends() {
	c.t.Helper()
	c.in.Close()
	if err := <-c.done; err != nil {
		c.t.Errorf("it ends with %v", err)
	}
}

// loopback is an address of this host that no other test uses.
func loopback() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(250), 1+rand.IntN(250), 1+rand.IntN(250))
}

// cluster starts a member for all tests, which ends with the test's process as with the agent's,
// and returns its name.
var cluster = sync.OnceValues(func() (string, error) {
	ip := loopback()
	name := ip + ":29400"
	in, settings := io.Pipe()
	reports, out := io.Pipe()
	go func() { _ = Serve(context.Background(), in, out, slog.New(slog.DiscardHandler)) }()
	if err := pipe.NewWriter(settings).Write(pipe.Serve{RunID: "all", Name: name, Members: []string{name}, Bind: ip,
		DataDir: dataDir}); err != nil {
		return "", err
	}
	r := pipe.NewReader(reports)
	for {
		var report pipe.Report
		if err := r.Read(&report); err != nil || report.Error != "" {
			return "", fmt.Errorf("%v, %s", err, report.Error)
		}
		if report.Ready {
			return name, nil
		}
	}
})

// dataDir has the data of cluster, and all temporary files. It must be there until the process ends: etcd ends a process whose files are gone.
var dataDir string

func TestMain(m *testing.M) {
	var err error
	if dataDir, err = os.MkdirTemp("", "quorum-test-*"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("TMPDIR", dataDir)
	status := m.Run()
	_ = os.RemoveAll(dataDir)
	os.Exit(status)
}

// agent starts the bridge of an agent in the run that is named after the test. Its TTL is longer than any test, so
// that it has not to say that it is well.
func agent(t *testing.T, id string, change func(*pipe.Elect)) *child {
	t.Helper()
	endpoint, err := cluster()
	if err != nil {
		t.Fatal(err)
	}
	settings := pipe.Elect{RunID: t.Name(), ID: id, Addr: id + ":1", Endpoints: []string{endpoint}, TTL: pipe.Millis(10 * time.Minute)}
	if change != nil {
		change(&settings)
	}
	return start(t, settings)
}

// client is another program at the cluster.
func client(t *testing.T) *clientv3.Client {
	t.Helper()
	endpoint, err := cluster()
	if err != nil {
		t.Fatal(err)
	}
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

// Agents of a run agree on who leads, by ever greater terms, and all hear that the run was closed.
func TestAgentsElect(t *testing.T) {
	t.Parallel()
	a := agent(t, "a", nil)
	first := a.hearsOfLeader()
	if d := cmp.Diff(&pipe.Leader{Addr: "a:1", ID: "a", Mine: true, Term: first.Term}, first); d != "" {
		t.Errorf("a hears (-want +got):\n%s", d)
	}
	b := agent(t, "b", nil)
	if d := cmp.Diff(&pipe.Leader{Addr: "a:1", ID: "a", Term: first.Term}, b.hearsOfLeader()); d != "" {
		t.Errorf("b hears (-want +got):\n%s", d)
	}
	a.ends() // which is what the end of an agent is
	if r := b.hears(); r.Gone != first.Term {
		t.Errorf("b hears %+v, want that term %d is over", r, first.Term)
	}
	second := b.hearsOfLeader()
	if !second.Mine || second.Term <= first.Term {
		t.Errorf("b hears %+v, want that it leads after term %d", second, first.Term)
	}
	c := agent(t, "c", nil)
	c.hearsOfLeader()
	b.says("close")
	for name, x := range map[string]*child{"b": b, "c": c} {
		if r := x.hears(); !r.Closed {
			t.Errorf("%s hears %+v, want that the run was closed", name, r)
		}
	}
	if err := <-b.done; err != nil {
		t.Errorf("b ends with %v", err)
	}
	if r := c.hears(); r.Gone != second.Term {
		t.Errorf("c hears %+v, want that term %d is over", r, second.Term)
	}
	c.ends()
}

// A run with the name of one that was closed is another job.
func TestNameOfAClosedRun(t *testing.T) {
	t.Parallel()
	a := agent(t, "a", nil)
	a.hearsOfLeader()
	a.says("close")
	if err := <-a.done; err != nil {
		t.Fatal(err)
	}
	if leader := agent(t, "b", nil).hearsOfLeader(); !leader.Mine {
		t.Errorf("got %+v, want that it leads", leader)
	}
}

// A leader that yields lets another lead.
func TestLeaderYields(t *testing.T) {
	t.Parallel()
	a := agent(t, "a", func(s *pipe.Elect) { s.TTL = pipe.Millis(5 * time.Second) })
	first := a.hearsOfLeader()
	b := agent(t, "b", nil)
	b.hearsOfLeader()
	a.says("yield")
	if r := a.hears(); r.Lease == nil || *r.Lease {
		t.Errorf("a hears %+v, want that its lease has ended", r)
	}
	for _, x := range []*child{a, b} {
		if leader := x.hearsOfLeader(); leader.ID != "b" || leader.Term <= first.Term {
			t.Errorf("got %+v, want that b leads after term %d", leader, first.Term)
		}
	}
}

// An agent that has not been heard for its TTL does not lead any more.
func TestAgentIsNotHeard(t *testing.T) {
	t.Parallel()
	a := agent(t, "a", func(s *pipe.Elect) { s.TTL = pipe.Millis(2 * time.Second) })
	first := a.hearsOfLeader()
	b := agent(t, "b", nil)
	if r := a.hears(); r.Lease == nil || *r.Lease {
		t.Errorf("a hears %+v, want that its lease has run out", r)
	}
	leader := b.hearsOfLeader()
	if leader.ID == "a" {
		leader = b.hearsOfLeader()
	}
	if !leader.Mine || leader.Term <= first.Term {
		t.Errorf("b hears %+v, want that it leads after term %d", leader, first.Term)
	}
	a.says("beat")
	if leader := a.hearsOfLeader(); leader.ID != "b" {
		t.Errorf("a hears %+v, want that b leads", leader)
	}
}

// A bridge takes the place of the one before it of the same agent, which was killed.
func TestNextBridgeOfAnAgent(t *testing.T) {
	t.Parallel()
	left, err := client(t).Put(t.Context(), newKeys(t.Name()).leader, `{"addr":"a:1","id":"a","bridge":"killed"}`)
	if err != nil {
		t.Fatal(err)
	}
	if next := agent(t, "a", nil).hearsOfLeader(); !next.Mine || next.Term <= left.Header.Revision {
		t.Errorf("got %+v, want that it leads after term %d", next, left.Header.Revision)
	}
}

// What another program has written to the run's keys is named with its key and what to do.
func TestKeyOfAnotherProgram(t *testing.T) {
	t.Parallel()
	cli, key := client(t), newKeys(t.Name()).leader
	if _, err := cli.Put(t.Context(), key, "here I am"); err != nil {
		t.Fatal(err)
	}
	a := agent(t, "a", nil)
	a.waits(`etcd's key /muster/TestKeyOfAnotherProgram/leader has the value "here I am", which no agent of muster wrote: delete it`)
	if _, err := cli.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if leader := a.hearsOfLeader(); !leader.Mine {
		t.Errorf("got %+v, want that it leads once the key is gone", leader)
	}
}

// A line that is no command ends the agent's part as its end would: another leads at once.
func TestAgentTalksNonsense(t *testing.T) {
	t.Parallel()
	a := agent(t, "a", nil)
	a.hearsOfLeader()
	if _, err := io.WriteString(a.in, "lead on\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-a.done; err != nil {
		t.Errorf("it ends with %v", err)
	}
	if leader := agent(t, "b", nil).hearsOfLeader(); !leader.Mine {
		t.Errorf("got %+v, want that b leads", leader)
	}
}

// While no member answers, the agent hears why of each, and can still leave.
func TestNoMemberAnswers(t *testing.T) {
	t.Parallel()
	closed := loopback() + ":29400"
	a := agent(t, "a", func(s *pipe.Elect) { s.Endpoints, s.Call = []string{closed}, pipe.Millis(200*time.Millisecond) })
	a.waits("no member of etcd answers: " + closed + ": connect: connection refused")
	a.ends()

	// It cannot close a run then, which it reports.
	b := agent(t, "b", func(s *pipe.Elect) {
		s.Endpoints = []string{closed}

		s.Call, s.End = pipe.Millis(50*time.Millisecond), pipe.Millis(200*time.Millisecond)
	})
	b.waits("no member of etcd answers")
	b.says("close")
	if r := b.hears(); !strings.HasPrefix(r.Error, "tell the others that the run is closed: ") {
		t.Errorf("got %+v, want an error", r)
	}
	if err := <-b.done; err == nil {
		t.Error("it ends without an error")
	}
}

// A member whose data is lost says so where it will be, and what the others make of that.
func TestNotice(t *testing.T) {
	t.Parallel()
	ip := loopback()
	me := &host{peer: ip + ":29401"}
	m := &member{cfg: pipe.Serve{Bind: ip}, me: me, logger: slog.New(slog.DiscardHandler)}
	up := m.post(nil, "1f")
	if up == nil {
		t.Fatal("no notice")
	}
	if n := askHost(t.Context(), me, nil); n.fresh != "1f" || n.roster != nil || n.fault != "" {
		t.Errorf("another hears %+v", n)
	}
	if m.post(up, "1f") != up {
		t.Error("the same notice is put up again")
	}
	next := m.post(up, "2a")
	if n := askHost(t.Context(), me, nil); n.fresh != "2a" {
		t.Errorf("after the next cluster was lost another hears %+v", n)
	}
	next.close()
	if n := askHost(t.Context(), me, nil); n.fault != "connect: connection refused" {
		t.Errorf("without a notice another hears %+v", n)
	}
}

// Whether an agent has led without another in between is known from the history of the key, as long as etcd has it.
func TestAlone(t *testing.T) {
	t.Parallel()
	cli := client(t)
	b := &bridge{cfg: pipe.Elect{RunID: t.Name(), TTL: pipe.Millis(time.Minute)}, keys: newKeys(t.Name())}
	leads := func(id, bridge string) int64 {
		if _, err := cli.Delete(t.Context(), b.keys.leader); err != nil {
			t.Fatal(err)
		}
		r, err := cli.Put(t.Context(), b.keys.leader, fmt.Sprintf(`{"addr":"h:1","id":%q,"bridge":%q}`, id, bridge))
		if err != nil {
			t.Fatal(err)
		}
		return r.Header.Revision
	}
	a1, a2 := leads("a", "x"), leads("a", "x")
	leads("b", "y")
	a3 := leads("a", "x")
	next := leads("a", "z")
	for _, tt := range []struct {
		name string
		from reign
		to   int64
		want bool
	}{
		{"its key went and came back", reign{id: "a", bridge: "x", created: a1}, a2, true},
		{"another led in between", reign{id: "a", bridge: "x", created: a2}, a3, false},
		{"its next bridge leads", reign{id: "a", bridge: "x", created: a3}, next, false},
		{"the same key", reign{id: "a", bridge: "x", created: a1}, a1, false},
		{"a cluster that began again", reign{id: "a", bridge: "x", created: next + 100}, next, false},
	} {
		if got, err := b.alone(t.Context(), cli, tt.from, tt.to); got != tt.want || err != nil {
			t.Errorf("%s: got %t, %v, want %t", tt.name, got, err, tt.want)
		}
	}

	// Its term is that in which it began to lead.
	for _, tt := range []struct {
		name, id, bridge string
		created, want    int64
		goesOn           bool
	}{
		{"the first", "a", "x", a1, a1, false},
		{"again", "a", "x", a2, a1, true},
		{"the same once more", "a", "x", a2, a1, false},
		{"after another", "a", "x", a3, a3, false},
		{"by its next bridge", "a", "z", next, next, false},
	} {
		v := &view{leader: &pipe.Leader{ID: tt.id, Term: tt.created}, bridge: tt.bridge}
		if err := b.compare(t.Context(), cli, v); err != nil || v.leader.Term != tt.want || v.goesOn != tt.goesOn {
			t.Errorf("%s: term %d, goes on %t, %v, want %d, %t", tt.name, v.leader.Term, v.goesOn, err, tt.want, tt.goesOn)
		}
	}
}

// Any one member tells that a run was closed, if that was after the bridge first looked.
func TestAskOne(t *testing.T) {
	t.Parallel()
	cli := client(t)
	b := &bridge{cfg: pipe.Elect{RunID: t.Name(), TTL: pipe.Millis(time.Minute)}, keys: newKeys(t.Name())}
	put := func(key string) int64 {
		r, err := cli.Put(t.Context(), key, "x")
		if err != nil {
			t.Fatal(err)
		}
		return r.Header.Revision
	}
	is := func(what string, closed, gone bool) {
		t.Helper()
		if c, g := b.askOne(t.Context(), cli); c != closed || g != gone {
			t.Errorf("%s: closed %t, the leader gone %t, want %t, %t", what, c, g, closed, gone)
		}
	}
	before := put(b.keys.closed)
	is("it has not looked yet", false, false)
	b.born = before
	b.last.created = put(b.keys.leader)
	is("another job was closed, and the leader is there", false, false)
	put(b.keys.closed)
	is("closed", true, false)
	if _, err := cli.Delete(t.Context(), b.keys.leader); err != nil {
		t.Fatal(err)
	}
	is("closed, and the leader has gone", true, true)
	put(b.keys.leader)
	is("closed, and another leads", true, true)
}

// others are two other hosts of a quorum that answer at their peers' addresses; this one's member comes with them.
func others(t *testing.T, answer http.HandlerFunc) (*member, func() []string) {
	t.Helper()
	a, b := 1+rand.IntN(250), 1+rand.IntN(250)
	var names []string
	for i := range 3 {
		names = append(names, fmt.Sprintf("127.%d.%d.%d:29400", a, b, i+1))
	}
	reports, out := io.Pipe()
	m := &member{cfg: pipe.Serve{RunID: "job", Name: names[0], Members: names, Bind: strings.TrimSuffix(names[0], ":29400")},
		tokens: []string{"muster/job"}, out: pipe.NewWriter(out), logger: slog.New(slog.DiscardHandler)}
	var err error
	if m.me, m.others, err = parseHosts(&m.cfg); err != nil {
		t.Fatal(err)
	}
	for _, h := range m.others {
		l, err := net.Listen("tcp", h.peer)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: answer}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { s.Close() })
	}
	r := pipe.NewReader(reports)
	return m, func() []string { // the next reason to wait
		var report pipe.Report
		if err := r.Read(&report); err != nil || report.Waiting == nil {
			t.Fatalf("got %+v, %v, want what it waits for", report, err)
		}
		return strings.Split(*report.Waiting, "; ")
	}
}

// A majority that has lost its data begins the cluster that follows from the one that is lost.
func TestMajorityHasLostItsData(t *testing.T) {
	t.Parallel()
	m, waits := others(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(freshHeader, "1f")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	m.cfg.TTL = pipe.Millis(time.Millisecond)
	reason := make(chan []string, 1)
	go func() { reason <- waits() }()
	w, err := m.findWay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if w.state != "new" || w.token != "muster/job/1f" || w.cluster != m.initialCluster() {
		t.Errorf("got %+v, want a new cluster that follows 1f", w)
	}
	want := []string{"this host's member of the quorum has lost its data, and takes its place again once a majority is up",
		"3 of 3 members of the quorum are up", "no member with data answers"}
	if d := cmp.Diff(want, <-reason); d != "" {
		t.Errorf("meanwhile it waits (-want +got):\n%s", d)
	}
}

// A member that has lost its data alone says so where it was, until the others let it take its place.
func TestMemberHasLostItsData(t *testing.T) {
	t.Parallel()
	var m *member
	m, waits := others(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(clusterHeader, "1f")
		list := []rosterMember{{ID: 1, Name: m.me.name, PeerURLs: []string{m.me.peerURL()}, ClientURLs: []string{m.me.clientURL()}}}
		for i, h := range m.others {
			list = append(list, rosterMember{ID: uint64(i) + 2, Name: h.name, PeerURLs: []string{h.peerURL()}, ClientURLs: []string{h.clientURL()}})
		}
		_ = json.NewEncoder(w).Encode(list)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := m.findWay(ctx)
		done <- err
	}()
	// Nobody answers at their clients' ports: the place cannot be taken.
	if got := waits(); len(got) != 3 || got[1] != "3 of 3 members of the quorum are up" || !strings.HasPrefix(got[2], "remove the member that was lost: ") &&
		!strings.Contains(got[2], "connection refused") && !strings.Contains(got[2], "deadline") {
		t.Errorf("it waits: %q", got)
	}
	if n := askHost(t.Context(), m.me, nil); n.fresh != "1f" {
		t.Errorf("another hears %+v, want that data of 1f is lost", n)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
}
