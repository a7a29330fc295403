package evidence

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// bomb is a Report of 300,000 workers in 900 KB.
var bomb = `{"workers":[{}` + strings.Repeat(",{}", 300_000) + `]}`

// A peer is another agent that answers with what it has.
type peer struct {
	rendezvous.Caller
	body string
}

func (p peer) Ask(_ context.Context, _ int, kind string, _ []byte, limit int) ([]byte, error) {
	if kind != Kind || len(p.body) > limit {
		return nil, fmt.Errorf("asked for %s, of at most %d bytes", kind, limit)
	}
	return []byte(p.body), nil
}

// workers are those of a test, on a host with some round.
type workers struct {
	round *rendezvous.Info
	pids  map[int]int
}

func (w *workers) World() int              { return 0 }
func (w *workers) RunDir() string          { return "" }
func (w *workers) Round() *rendezvous.Info { return w.round }
func (w *workers) Rank(localRank int) int  { return localRank }
func (w *workers) Processes() map[int]int  { return w.pids }
func (w *workers) Working() map[int]int    { return w.pids }
func (w *workers) Written(int) int64       { return 0 }
func (w *workers) LogDir() string          { return "" }
func (w *workers) Kill()                   {}

func collector(caller rendezvous.Caller, w *workers) *Collector {
	return New(&Config{Host: "host0", Timeout: time.Minute, Caller: caller, Log: slog.New(slog.DiscardHandler),
		Requests: func() int64 { return 0 }, Suspected: func(string, string, time.Time) {}, Taken: func(string, time.Time, bool) {}}, w)
}

// A crowd are the agents of other hosts, each with two workers, the last one's the odd ones. It
// answers when all have been called.
type crowd struct {
	rendezvous.Caller
	hosts int
	depth int // of the stacks
	name  int // how long the functions' names are
	calls atomic.Int32
	all   chan struct{}
}

// host is the evidence of a host's workers.
func (c *crowd) host(groupRank int) *autopsy.Report {
	r := &autopsy.Report{Host: fmt.Sprint("host", groupRank)}
	function, file := "all_reduce", "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
	if groupRank == c.hosts-1 {
		function, file = "load", "/home/user/data.py"
	}
	stack := []autopsy.Frame{{Function: function, File: file, Line: 7}}
	for i := range c.depth {
		stack = append(stack, autopsy.Frame{Function: fmt.Sprint("step", i, strings.Repeat("_", c.name)), File: "/home/user/train.py", Line: i})
	}
	for i := range 2 {
		r.Workers = append(r.Workers, autopsy.Worker{
			Rank: 2*groupRank + i, LocalRank: i, PID: 100 + i, State: "sleeping",
			Python: autopsy.Python{Threads: []autopsy.Thread{{Main: true, Frames: stack}, {Name: "pin memory", Frames: stack[1:]}}},
		})
	}
	return r
}

func (c *crowd) Ask(ctx context.Context, rank int, kind string, request []byte, limit int) ([]byte, error) {
	if int(c.calls.Add(1)) == c.hosts-1 {
		close(c.all)
	}
	select {
	case <-c.all:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	body, err := c.host(rank).Brief().Pack(evidenceOfHost(c.hosts))
	if err != nil {
		return nil, err
	}
	return peer{body: string(body)}.Ask(ctx, rank, kind, request, limit)
}

// An agent that is asked because workers of another host hang tells since when those of its own made no progress.
func TestHangFoundElsewhere(t *testing.T) {
	still := time.Now().Add(-20 * time.Second)
	for reason, want := range map[string]time.Time{"host1: hang: no output": still, "host1: process 7 has missed a deadline": {}} {
		round := &rendezvous.Info{Store: store.NewMemory(), WorldSize: 2}
		found, err := (&autopsy.Report{Blame: true}).Pack(1000, 1000)
		if err == nil {
			err = round.Store.Set(t.Context(), keyPrefix+"3/all", found)
		}
		if err != nil {
			t.Fatal(err)
		}
		c, told := collector(nil, &workers{round: round}), 0
		c.still = still
		c.cfg.Taken = func(_ string, since time.Time, blame bool) {
			if told++; !since.Equal(want) || !blame {
				t.Errorf("%s: since %v, blame %t; want %v", reason, since, blame, want)
			}
		}
		request := fmt.Appendf(nil, `{"number": 3, "reason": %q}`, reason)
		if _, err := c.Answer(t.Context(), request, func(wait func(context.Context)) bool { wait(t.Context()); return true }); err != nil || told != 1 {
			t.Errorf("%s: %v, told %d times", reason, err, told)
		}
	}
}

// Workers of one host that miss their deadlines together share what was found when the first one did, and the report
// of it is written once.
func TestDeadlinesTogether(t *testing.T) {
	c, told := collector(nil, &workers{round: &rendezvous.Info{WorldSize: 1}}), atomic.Int32{}
	c.cfg.Taken = func(string, time.Time, bool) { told.Add(1) }
	broken := autopsy.Worker{Dumps: [][]byte{{'?'}}}
	c.taken = &autopsy.Report{Time: time.Now(), Workers: []autopsy.Worker{broken, broken}}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { c.CollectOfJob(t.Context(), c.JustNow(), "process 7 has missed a deadline", nil, true) })
		all.Go(func() { c.Collect(t.Context(), "workers do not end", nil, true) })
	}
	all.Wait()
	if n := told.Load(); n != 1 {
		t.Errorf("told %d times", n)
	}
	if n := len(c.taken.Workers[0].Problems); n != 0 {
		t.Errorf("what was taken has changed: %d problems", n)
	}
}

// The evidence of many hosts, which are all asked at once, reaches the others, who come to the
// same groups as the one that asks: also where the stacks of all are too large to be handed out.
func TestEvidenceOfMany(t *testing.T) {
	for _, tt := range []struct{ hosts, depth, name int }{{3, 4, 0}, {3, 1200, 1000}, {300, 20, 300}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			c := &crowd{hosts: tt.hosts, depth: tt.depth, name: tt.name, all: make(chan struct{})}
			s := store.NewMemory()
			of := collector(c, &workers{round: &rendezvous.Info{Store: s, WorldSize: tt.hosts}})
			own := make(chan *autopsy.Report, 1)
			own <- c.host(0)
			all := of.ofJob(t.Context(), "hang: a test", own, true)
			want := fmt.Sprintf("%d ranks in all_reduce (distributed_c10d.py:7), ranks %d-%d on host%d in load (data.py:7)", 2*tt.hosts-2, 2*tt.hosts-2, 2*tt.hosts-1, tt.hosts-1)
			if got := all.Summary(); got != want {
				t.Errorf("who asks finds\n%s, want\n%s", got, want)
			}
			if there, err := s.Check(t.Context(), keyPrefix+"0/all"); err != nil || !there {
				t.Fatal("the others are told nothing", err)
			}
			for _, rank := range []int{1, tt.hosts - 1} {
				theirs, blame := of.outcome(t.Context(), keyPrefix+"0", c.host(rank))
				odd := (&Evidence{Report: theirs}).culprits()
				if got := theirs.Summary(); got != want || !blame || !slices.Equal(odd, []int{2*tt.hosts - 2, 2*tt.hosts - 1}) {
					t.Errorf("host %d finds\n%s, blames %v: %v, want\n%s", rank, got, odd, blame, want)
				}
			}
		})
	}
}

// The evidence of 700 hosts with eight workers each fits into what whoever asks may have.
func TestEvidenceOfHundreds(t *testing.T) {
	r := &autopsy.Report{Host: "host0"}
	for i := range 8 {
		w := autopsy.Worker{Rank: i, PID: 100 + i, State: "sleeping"}
		for thread := range 4 {
			th := autopsy.Thread{Main: thread == 0, TID: thread}
			for frame := range 60 {
				th.Frames = append(th.Frames, autopsy.Frame{Function: fmt.Sprint("function", i, frame), File: "/usr/lib/python3/site-packages/torch/a_module.py", Line: frame})
			}
			w.Python.Threads = append(w.Python.Threads, th)
		}
		r.Workers = append(r.Workers, w)
	}
	body, err := r.Brief().Pack(evidenceOfHost(700))
	if err != nil {
		t.Fatal(err)
	}
	var peers autopsy.Peers
	for i := range 699 {
		if err := peers.Admit(body); err != nil {
			t.Fatalf("of host %d, with %d bytes: %v", i, len(body), err)
		}
	}
}

// Where even that is too large, the others hear so, and do not wait for more.
func TestEvidenceNobodyCanHave(t *testing.T) {
	own := &autopsy.Report{Host: "host0"}
	for i := range 50 {
		own.Workers = append(own.Workers, autopsy.Worker{Rank: i, Python: autopsy.Python{Threads: []autopsy.Thread{{
			Main: true, Frames: []autopsy.Frame{{Function: fmt.Sprint(i, strings.Repeat("f", 100_000)), File: "/home/user/train.py"}},
		}}}})
	}
	of := collector(peer{body: "{}"}, &workers{round: &rendezvous.Info{Store: store.NewMemory(), WorldSize: 2}})
	taken := make(chan *autopsy.Report, 1)
	taken <- own
	of.ofJob(t.Context(), "hang: a test", taken, true)
	theirs, blame := of.outcome(t.Context(), keyPrefix+"0", &autopsy.Report{Host: "host1", Workers: []autopsy.Worker{{Rank: 50}}})
	if blame || len(theirs.Missing) != 1 || !strings.Contains(theirs.Missing[0], "the other hosts (their evidence has ") {
		t.Errorf("missing %q, blame %v", theirs.Missing, blame)
	}
}

// Evidence of another host that would take much memory is not decoded, whether that host is asked
// or has set it in the store, and it counts as missing.
func TestEvidenceTooLarge(t *testing.T) {
	s := store.NewMemory()
	of := collector(peer{body: bomb}, &workers{round: &rendezvous.Info{Store: s, WorldSize: 2}})
	if others, missing := of.askOthers(t.Context(), "a test", 1); others != nil || len(missing) != 1 || !strings.Contains(missing[0], "too large") {
		t.Errorf("asked: %q", missing)
	}
	if err := s.Set(t.Context(), "key/all", []byte(bomb)); err != nil {
		t.Fatal(err)
	}
	all, blame := of.outcome(t.Context(), "key", &autopsy.Report{Workers: []autopsy.Worker{{Rank: 1}}})
	if blame || len(all.Workers) != 1 || len(all.Missing) != 1 || !strings.Contains(all.Missing[0], "too large") {
		t.Errorf("from the store: %d workers, missing %q, blame %v", len(all.Workers), all.Missing, blame)
	}
}
