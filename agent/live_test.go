package agent

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/agent/internal/link"
	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/internal/job/live"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// A liveGroup notes when its workers are killed.
type liveGroup struct {
	Group
	killed    chan struct{}
	signalled chan int
	failed    chan process.Exit
	closed    chan struct{}
}

func (g *liveGroup) Kill() { close(g.killed) }

func (g *liveGroup) PIDs() map[int]int {
	return map[int]int{0: 100, 1: 101, 2: 102, 3: 103, 4: 104}
}

func (g *liveGroup) Failed() <-chan process.Exit { return g.failed }

func (g *liveGroup) Close(syscall.Signal, time.Duration) { close(g.closed) }

func (g *liveGroup) Replace(int, []string, map[string]string) error { return nil }

// An endingStore ends when it is told to.
type endingStore struct {
	store.Store
	ends chan struct{}
}

func (s *endingStore) Get(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.ends:
			cancel()
		case <-ctx.Done():
		}
	}()
	value, err := s.Store.Get(ctx, key)
	select {
	case <-s.ends:
		return nil, store.ErrClosed
	default:
		return value, err
	}
}

// Signal ends a worker.
func (g *liveGroup) Signal(localRank int, _ syscall.Signal) bool {
	g.signalled <- localRank
	return true
}

// Where somebody joins, those that have the state may wait for that one: it is killed first, and
// they have the time to hear of it.
func TestLiveKillsWhoJoins(t *testing.T) {
	for _, tt := range []struct {
		name    string
		joined  []int
		heard   bool // the end of one that joins on another host
		killed  []int
		seconds int
	}{
		{"one joins here", []int{1}, false, []int{1, 0}, 12},
		{"one joins here, and its end is heard of", []int{1}, true, []int{1}, 11},
		{"one joins elsewhere", []int{2}, false, []int{0, 1}, 12},
		{"one joins elsewhere, and its end is heard of", []int{2}, true, nil, 11},
		{"nobody joins", nil, false, []int{0, 1}, 10},
		{"all do", []int{0, 1, 2}, false, []int{0, 1}, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				workers := map[int]*link.Worker{}
				for i := range 2 {
					workers[i] = &link.Worker{Worker: live.Worker{Heard: true, Member: true, Done: 1, Ready: &live.Said{Change: 2, Handle: "a"}}}
				}
				w := link.New(link.State{Workers: workers, Change: 2})
				a := &Agent{live: w, log: slog.New(slog.DiscardHandler), cfg: Config{PeerTimeout: 2 * time.Second, Options: Options{LiveTimeout: 10 * time.Second}}}
				at := bareAttempt(context.Background(), a)
				group := &liveGroup{signalled: make(chan int, 9)}
				at.team.group, at.round = group, &rendezvous.Info{WorldSize: 2, Store: store.NewMemory()}
				at.team.parts = &parts{of: map[int]roundPart{0: {Part: &logs.Part{}}}}
				plan := &live.Plan{Handles: []string{"a", "a", "b"}, Steps: []int64{1, 1, 0}, Joined: tt.joined, Locals: [][]int{{0, 1}, {0}}}
				began := time.Now()
				if tt.heard {
					time.AfterFunc(11*time.Second, at.run.end)
				}
				_ = at.live.reconfigure(at.run.life, plan, 2, began)
				if took := time.Since(began); took != time.Duration(tt.seconds)*time.Second {
					t.Errorf("after %v", took)
				}
				at.close()
				close(group.signalled)
				var killed []int
				for i := range group.signalled {
					killed = append(killed, i)
				}
				if tt.killed == nil || tt.killed[0] == 0 {
					slices.Sort(killed)
				}
				if !slices.Equal(killed, tt.killed) {
					t.Errorf("killed: %v, want %v", killed, tt.killed)
				}
			})
		})
	}
}

// Workers hear which lineage the state that they continue from has, and the log of steps that are lost.
func TestLiveLineage(t *testing.T) {
	for _, tt := range []struct {
		steps   []int64
		lineage int64
		want    string
		logged  bool
	}{
		{[]int64{9, 3}, 5, `"lineage":5`, true},
		{[]int64{4, 3}, 5, `"lineage":5`, false}, // it has completed the step that the others repeat
		{[]int64{3, 9}, 5, `"lineage":5`, false},
		{[]int64{0, 0}, 0, `"lineage":6`, false}, // which begins
	} {
		workers, lines := map[int]*link.Worker{}, make(chan []byte, 2)
		for i := range 2 {
			workers[i] = &link.Worker{Worker: live.Worker{Heard: true, Member: true, Done: 2, Ready: &live.Said{Change: 2, Handle: "a"}}, Lines: lines}
		}
		w := link.New(link.State{Workers: workers, Change: 2})
		var said bytes.Buffer
		a := &Agent{live: w, log: slog.New(slog.NewTextHandler(&said, nil)), cfg: Config{PeerTimeout: time.Second}}
		at := bareAttempt(context.Background(), a)
		at.round, at.team.parts = &rendezvous.Info{WorldSize: 1}, &parts{of: map[int]roundPart{0: {Part: &logs.Part{}}}}
		plan := &live.Plan{UUID: 6, Lineage: tt.lineage, Source: 1, Handles: []string{"a", "a"}, Steps: tt.steps, Joined: []int{0}, Locals: [][]int{{0, 1}}}
		if err := at.live.reconfigure(at.run.life, plan, 2, time.Now()); err != nil {
			t.Fatal(err)
		}
		at.close()
		if line := string(<-lines); !strings.Contains(line, tt.want) {
			t.Errorf("%+v: the worker gets %s", tt, line)
		}
		if logged := strings.Contains(said.String(), "step=3 lost=6"); logged != tt.logged {
			t.Errorf("%+v: the agent says %s", tt, &said)
		}
	}
}

// Nobody resumes on a host whose workers have all ended before they took part.
func TestLiveNoneIsLeft(t *testing.T) {
	for _, ended := range []bool{false, true} {
		workers := map[int]*link.Worker{0: {Lines: make(chan []byte, 1),
			Worker: live.Worker{Heard: true, Member: true, Gone: ended, Ready: &live.Said{Change: 2, Handle: "a"}}}}
		if !ended {
			workers[0].Done = 2
		}
		var said bytes.Buffer
		a := &Agent{live: link.New(link.State{Workers: workers, Change: 2}), log: slog.New(slog.NewTextHandler(&said, nil)),
			cfg: Config{PeerTimeout: time.Second}}
		at := bareAttempt(context.Background(), a)
		at.round, at.team.parts = &rendezvous.Info{WorldSize: 1}, &parts{of: map[int]roundPart{0: {Part: &logs.Part{}}}}
		plan := &live.Plan{Source: 0, Handles: []string{"a"}, Steps: []int64{1}, Locals: [][]int{{0}}}
		if err := at.live.reconfigure(at.run.life, plan, 2, time.Now()); err != nil {
			t.Fatal(err)
		}
		at.close()
		if resumed := strings.Contains(said.String(), "the workers resume"); resumed == ended {
			t.Errorf("ended: %v; the agent says %s", ended, &said)
		}
	}
}

// The store of a round may end with its host a moment before the news of that come: the workers
// are not stopped before these are overdue.
func TestLiveStoreLost(t *testing.T) {
	for _, lost := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			x := &link.Worker{Worker: live.Worker{Heard: true, Member: true, Done: 1, Ready: &live.Said{Change: 2, Handle: "a"}}}
			w := link.New(link.State{Workers: map[int]*link.Worker{0: x}, Change: 2})
			a := &Agent{live: w, log: slog.New(slog.DiscardHandler), cfg: Config{PeerTimeout: 2 * time.Second}}
			at := bareAttempt(context.Background(), a)
			group, s := &liveGroup{killed: make(chan struct{})}, &endingStore{store.NewMemory(), make(chan struct{})}
			at.team.group, at.round = group, &rendezvous.Info{Rank: 1, WorldSize: 2, Store: s, MasterAddr: "192.0.2.1"}
			at.live.formed.Store(&membership{pending: true})
			at.run.wg.Go(func() { at.live.form(2, true) })
			synctest.Wait()
			close(s.ends)
			time.Sleep(time.Second)
			if lost {
				at.close()
			}
			select {
			case <-group.killed:
				if lost {
					t.Error("they are stopped")
				}
			case <-time.After(time.Minute):
				if !lost {
					t.Error("the store is lost and nothing else, and they are not stopped")
				}
			}
			at.close()
		})
	}
}

// A change that nobody needs at once begins at a step. It begins without one where a worker does not say where it is, for as
// long as a worker may take to pause: it may be stopped.
func TestLivePlansAChange(t *testing.T) {
	for _, tt := range []struct {
		name   string
		silent map[int]bool
		at     int64
		cause  string
		from   time.Duration
	}{
		{"all say where they are", nil, 9, "a host joins", 0},
		{"one is silent", map[int]bool{1: true}, -1, "a host joins; no word from local ranks [1] on h", 10 * time.Second},
		{"all are silent", map[int]bool{0: true, 1: true}, -1, "a host joins; no word from local ranks [0 1] on h", 10 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				workers := map[int]*link.Worker{}
				for i := range 2 {
					workers[i] = &link.Worker{Worker: live.Worker{Heard: true, Member: true, Done: 2}, Lines: make(chan []byte, 128)}
				}
				w := link.New(link.State{Workers: workers, Change: 2})
				a := &Agent{live: w, log: slog.New(slog.DiscardHandler), cfg: Config{Host: "h", Options: Options{LiveTimeout: 10 * time.Second}}}
				at := bareAttempt(t.Context(), a)
				at.round = &rendezvous.Info{WorldSize: 1}
				began := time.Now()
				at.run.wg.Go(func() { _ = at.live.planChange(at.run.life, 2, hostJoins) })
				for i, x := range workers {
					if tt.silent[i] {
						continue
					}
					at.run.wg.Go(func() {
						for {
							select {
							case <-x.Lines: // it is asked
								w.Update(func(*link.State) { x.At = &live.Said{Change: 2, Step: int64(6 + i)} })
							case <-at.run.life.Done():
								return
							}
						}
					})
				}
				select {
				case n := <-at.run.news:
					if took := time.Since(began); n.record.At != tt.at || n.record.Cause != tt.cause || took < tt.from || took > tt.from+2*time.Second {
						t.Errorf("after %v: %+v", took, n.record)
					}
				case <-time.After(time.Minute):
					t.Error("it does not begin")
				}
				at.close()
			})
		})
	}
}

// A job has no more than a run ID.
type job struct{ rendezvous.Handler }

func (job) RunID() string { return "job1" }

func (job) UseAgentStore() bool { return false }

// A worker that is started in place of another while the training ends is stopped.
func TestLiveReplacesAtTheEnd(t *testing.T) {
	w, err := link.Listen(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.Update(func(s *link.State) { s.Over = true })
	a := &Agent{live: w, log: slog.New(slog.DiscardHandler), cfg: Config{Rendezvous: job{}}}
	a.watchdog.Store(&watchdog{})
	a.cfg.Spec.Args = func(int, int) []string { return nil }
	at := bareAttempt(t.Context(), a)
	defer at.close()
	group := &liveGroup{signalled: make(chan int, 1)}
	at.team.group, at.round, at.team.logs = group, &rendezvous.Info{WorldSize: 1}, &logs.Attempt{}
	if !at.live.replace(1) || <-group.signalled != 1 {
		t.Error("it is not stopped")
	}
	if _, excluded := at.live.excluded[1]; !excluded {
		t.Error("its end is a failure")
	}
}

// When no restart is left, two workers that are lost at once are not replaced.
func TestLiveLosesAllAtOnce(t *testing.T) {
	w := link.New(link.State{Workers: map[int]*link.Worker{0: {}, 1: {}}})
	a := &Agent{live: w, log: slog.New(slog.DiscardHandler), cfg: Config{Rendezvous: job{}}}
	at := bareAttempt(t.Context(), a)
	group := &liveGroup{failed: make(chan process.Exit, 1), closed: make(chan struct{})}
	group.failed <- process.Exit{LocalRank: 1, Code: -9}
	at.status.phase, at.team.group, at.round, at.team.logs = decide.Running, group, &rendezvous.Info{WorldSize: 1, JobStore: store.NewMemory()}, &logs.Attempt{}
	at.live.formed.Store(&membership{})
	n := news{ev: decide.EvFailing, exit: process.Exit{Code: -9}}
	_, act := decide.Next(n.ev, at.status.phase, a.facts(at, &n))
	if _, ends := a.act(t.Context(), at, &n, act); ends {
		t.Fatalf("%s: the job goes on, with nobody", act)
	}
	at.close()
	<-group.closed
}

// What another agent says is as long, and has as many elements, as it may have; else it is not decoded.
func TestBounded(t *testing.T) {
	for said, want := range map[string]string{
		`{"members":[{},{}]}`:                 "",
		`{"members":[{},{},{}]}`:              "part holds lists of 3 elements, more than 2",
		`{"members":[],"more":[[],[]]}`:       "part holds lists of 5 elements, more than 2",
		`{"members":[{}], "kept":         1}`: "part holds 35 bytes, more than 30",
	} {
		var p live.Part
		got := ""
		if err := peers.Decode("part", []byte(said), 30, 2, &p); err != nil {
			got = err.Error()
		}
		if got != want || got == "" && len(p.Members) != 2 {
			t.Errorf("%s: %q, want %q; %+v", said, got, want, p)
		}
	}
}
