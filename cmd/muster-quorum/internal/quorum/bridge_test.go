package quorum

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// A bridgeLab has a bridge whose client reaches nobody: what etcd would answer the test tells it.
type bridgeLab struct {
	t    *testing.T
	b    *bridge
	in   *io.PipeWriter
	done chan error

	mu    sync.Mutex // guards the rest
	story []string   // what the agent is told, but for what the bridge waits for
	waits string     // for what it waits, as last told
}

// Write takes a report.
func (l *bridgeLab) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var r pipe.Report
	if err := json.Unmarshal(line, &r); err != nil {
		l.t.Error(err)
	}
	switch {
	case r.Leader != nil:
		l.story = append(l.story, fmt.Sprintf("leader %s term %d mine %t", r.Leader.ID, r.Leader.Term, r.Leader.Mine))
	case r.Lease != nil:
		l.story = append(l.story, fmt.Sprintf("lease %t", *r.Lease))
	case r.Gone != 0:
		l.story = append(l.story, fmt.Sprintf("gone %d", r.Gone))
	case r.Closed:
		l.story = append(l.story, "closed")
	case r.Waiting != nil:
		l.waits = *r.Waiting
	}
	return len(line), nil
}

// startBridge starts one, in a bubble.
func startBridge(t *testing.T, out io.Writer) *bridgeLab {
	t.Helper()
	reader, in := io.Pipe()
	l := &bridgeLab{t: t, in: in, done: make(chan error, 1)}
	if out == nil {
		out = l
	}
	settings, err := json.Marshal(&pipe.Elect{RunID: "job", ID: "a", Addr: "h0:1", Endpoints: []string{"h9"}, TTL: pipe.Millis(10 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = in.Write(append(settings, '\n')) }()
	r := pipe.NewReader(reader)
	if l.b, err = newBridge(r, pipe.NewWriter(out), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	l.b.client.Endpoints = nil
	go func() { l.done <- l.b.run(t.Context(), r) }()
	return l
}

// says has the agent say something.
func (l *bridgeLab) says(op string) {
	if _, err := fmt.Fprintf(l.in, "{\"op\": %q}\n", op); err != nil {
		l.t.Error(err)
	}
	synctest.Wait()
}

// told is what the agent was told since the last time.
func (l *bridgeLab) told() string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	story := strings.Join(l.story, ", ")
	l.story = nil
	return story
}

// hears gives the bridge an event, and compares what the agent is told then.
func (l *bridgeLab) hears(what string, e any, want string) {
	l.t.Helper()
	l.b.events <- e
	if got := l.told(); got != want {
		l.t.Errorf("%s: told %q, want %q", what, got, want)
	}
}

// passes lets time pass, and compares what the agent is told.
func (l *bridgeLab) passes(d time.Duration, want string) {
	l.t.Helper()
	time.Sleep(d)
	if got := l.told(); got != want {
		l.t.Errorf("%v later: told %q, want %q", d, got, want)
	}
}

func (l *bridgeLab) ends(want string) {
	l.t.Helper()
	if err := <-l.done; fmt.Sprint(err) != want {
		l.t.Errorf("it ends with %v, want %s", err, want)
	}
	l.in.Close()
}

// An agent that leads hears that its lease has run out before the servers can take it, and that it is good again.
func TestLeaseRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startBridge(t, nil)
		s, next := &session{1, 10 * time.Second}, &session{2, 10 * time.Second}
		lead := func(id string, term int64, lease int64) *view {
			v := &view{rev: term, leader: &pipe.Leader{Addr: "h", ID: id, Term: term}}
			v.lease = s.id + next.id // of neither
			if lease != 0 {
				v.lease = map[int64]*session{1: s, 2: next}[lease].id
			}
			return v
		}
		l.hears("a lease", granted{s, time.Now()}, "")
		l.hears("it leads", saw{s, lead("a", 5, 1)}, "leader a term 5 mine true")
		l.passes(8*time.Second, "")
		l.hears("it is prolonged", kept{s, time.Now()}, "")
		l.passes(9*time.Second-time.Millisecond, "")
		l.passes(time.Millisecond, "lease false")
		l.passes(time.Hour, "")
		l.hears("it is, late", kept{s, time.Now()}, "lease true")
		l.hears("the answer to a request that was sent long ago", kept{s, time.Now().Add(-8 * time.Second)}, "")
		l.passes(time.Second, "lease false")
		l.hears("it is lost", dropped{s}, "")
		l.hears("another lease", granted{next, time.Now()}, "")
		l.hears("of the lease before", kept{s, time.Now()}, "")
		l.hears("its key is gone", removed{}, "")
		l.hears("another leads", saw{next, lead("b", 7, 0)}, "gone 5, leader b term 7 mine false")
		l.passes(time.Hour, "") // its own lease is nothing to the agent now
		l.hears("closed", saw{next, &view{closed: true}}, "closed")
		l.hears("again", saw{next, &view{closed: true}}, "")
		l.hears("and the leader goes", removed{}, "gone 7")
		l.says("leave")
		l.ends("<nil>")
	})
}

// What the agent says waits for the one who wants it: the last of it counts, and none holds the bridge up.
func TestAgentIsHeardLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startBridge(t, nil)
		for _, op := range []string{"beat", "yield", "beat", "beat", "yield"} {
			l.says(op)
		}
		if n, op := len(l.b.beats), <-l.b.beats; n != 1 || op != "yield" {
			t.Errorf("%d wait, the first is %s", n, op)
		}
		l.says("close")
		l.ends("close the run: etcdclient: no available endpoints")
	})
}

// broken is an agent that is gone.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A bridge ends with its agent, and with what no other try mends.
func TestBridgeEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		out  io.Writer
		ends func(l *bridgeLab)
		want string
	}{
		{"stdin ends", nil, func(l *bridgeLab) { l.in.Close() }, "<nil>"},
		{"stdin breaks", nil, func(l *bridgeLab) { l.in.CloseWithError(errors.New("no pipe")) }, "<nil>"},
		// Often what it first tells is that etcd does not answer, and then it takes no event any more.
		{"nobody reads", broken{}, func(l *bridgeLab) {
			select {
			case l.b.events <- saw{nil, &view{closed: true}}:
			case err := <-l.done:
				l.done <- err
			}
		}, "<nil>"},
		{"a password is wrong", nil, func(l *bridgeLab) { l.b.events <- troubled{rpctypes.ErrAuthFailed} }, `etcd refuses user "": user or password is wrong`},
		{"a password is wanted", nil, func(l *bridgeLab) { l.b.events <- troubled{rpctypes.ErrUserEmpty} },
			"etcd wants a user and a password: its authentication is enabled, and without them this agent may not read and write /muster/job/"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := startBridge(t, tt.out)
				tt.ends(l)
				l.ends(tt.want)
			})
		})
	}
}

// Why requests fail is found out once at a time, and told where the bridge still waits.
func TestTroubleIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startBridge(t, nil)
		waits := func(what, want string) {
			t.Helper()
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.waits != want {
				t.Errorf("%s: it waits for %q, want %q", what, l.waits, want)
			}
		}
		waits("nobody answers", "no member of etcd answers: ")
		s := &session{1, 10 * time.Second}
		l.b.events <- granted{s, time.Now()}
		waits("one does", "")
		l.b.events <- troubled{status.Error(codes.Unavailable, "a member goes down")}
		waits("with a lease, one failed request is no trouble", "")
		l.b.events <- troubled{status.Error(codes.Unavailable, "and another")}
		waits("two are", "no member of etcd answers: ")
		l.b.events <- kept{s, time.Now()}
		l.b.events <- probed{"found out too late"}
		waits("it is over before it is known", "")
		l.says("leave")
		l.ends("<nil>")
	})
}
