package cli

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/health"
)

func TestParseChaos(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"--kill-rank", " [kill-rank] 1m0s 20s 0s 0s"},
		{"job7 --kill-rank 3 --every 60s --for 1h", "job7 [kill-rank 3] 1m0s 20s 1m0s 1h0m0s"},
		{"--kill-agent job7 --cut-host=host2 --cut-host 12 --limit 5s --cut-time 3s", "job7 [kill-agent cut-host host2 cut-host 12] 5s 3s 0s 0s"},
		{"--stop-rank --stop-agent 1 7", "7 [stop-rank stop-agent 1] 1m0s 20s 0s 0s"},
		{"job7", "no drill; name one, such as --kill-rank"},
		{"--kill-rank=host2", "--kill-rank cannot be 'host2'; want a rank"},
		{"--kill-rank --for 1h", "--for needs --every; add it, or leave --for out"},
		{"a b --kill-rank", "unexpected argument 'b'; leave it out"},
	} {
		c := &command{FlagSet: flag.NewFlagSet("", flag.ContinueOnError)}
		c.SetOutput(io.Discard)
		req := parseChaos(c, strings.Fields(tt.line))
		got := fmt.Sprint(req.job, " ", req.drills, " ", req.limit, " ", req.silent, " ", req.every, " ", req.lasts)
		if err := c.refused(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.line, got, tt.want)
		}
	}
}

// What a drill finds in the time line of the agent that it asks.
func TestDrillSees(t *testing.T) {
	began := time.Date(2026, time.March, 4, 12, 30, 0, 0, time.UTC)
	at := func(ms int, m health.Moment) health.Moment {
		m.Time = began.Add(time.Duration(ms) * time.Millisecond)
		return m
	}
	rest := health.Moment{Kind: "live", What: "the workers come to rest", Why: "rank 1 on b"}
	join := health.Moment{Kind: "phase", Phase: "rendezvous"}
	start := func(ranks int) health.Moment { return health.Moment{Kind: "phase", Phase: "running", Ranks: ranks} }
	live := func(ranks, stayed int) health.Moment {
		return health.Moment{Kind: "live", Ranks: ranks, Stayed: stayed}
	}
	for _, tt := range []struct {
		name     string
		moments  []health.Moment
		restarts int
		state    string
		want     drill
	}{
		{name: "nothing", want: drill{Outcome: drillUnnoticed}},
		{name: "stopped", moments: []health.Moment{at(3, health.Moment{Kind: "phase", Phase: "restarting", What: "stopping"}), at(4, join)}, state: "STOPPED",
			want: drill{Outcome: drillDown, Noticed: 0.003, Why: "stopping"}},
		{name: "restart", moments: []health.Moment{at(3, health.Moment{Kind: "phase", Phase: "restarting"}), at(4, join), at(14, start(6))}, restarts: 1,
			want: drill{Outcome: drillRecovered, Noticed: 0.003, How: "restart", Running: 0.014, Ranks: 6, Whole: 0.014, Restarts: 1}},
		{name: "a host is lost and comes back", moments: []health.Moment{at(3000, join), at(3020, start(4)), at(6000, join), at(6030, start(6))},
			want: drill{Outcome: drillRecovered, Noticed: 3, How: "new round", Running: 3.02, Ranks: 4, Whole: 6.03}},
		{name: "live", moments: []health.Moment{at(5, rest), at(6, join), at(7, start(0)), at(80, live(5, 5))}, restarts: 1,
			want: drill{Outcome: drillSmaller, Noticed: 0.005, Why: "the workers come to rest: rank 1 on b", How: "live change", Running: 0.08, Ranks: 5, Restarts: 1}},
		{name: "live, during the change", moments: []health.Moment{at(5, rest), at(6, join), at(7, start(0))},
			want: drill{Outcome: drillDown, Noticed: 0.005, Why: "the workers come to rest: rank 1 on b"}},
		{name: "live, whole", moments: []health.Moment{at(5, rest), at(80, live(5, 5)), at(600, rest), at(650, live(6, 5))},
			want: drill{Outcome: drillRecovered, Noticed: 0.005, Why: "the workers come to rest: rank 1 on b", How: "live change", Running: 0.08, Ranks: 5, Whole: 0.65}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := &health.State{Timeline: []health.Moment{at(-500, join), at(-400, start(6))}, Job: health.Job{Phase: "running", State: "HEALTHY", Restarts: 2, Round: 3}}
			now := *before
			now.Timeline, now.Job.Restarts, now.Job.Round = append(before.Timeline, tt.moments...), 2+tt.restarts, 4
			if tt.state != "" {
				now.Job.State = tt.state
			}
			d := drill{Time: began, RanksBefore: ranksOf(before)}
			d.see(before, before)
			d.see(&now, before)
			tt.want.Time, tt.want.RanksBefore, tt.want.Rounds = began, 6, 1
			if diff := cmp.Diff(tt.want, d); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}

func TestPick(t *testing.T) {
	s := &health.State{Hosts: []health.Host{{GroupRank: 0, Name: "a"}, {GroupRank: 1, Name: "b"}, {GroupRank: 2, Name: "c", Problem: "torchrun's"}}}
	for i := range 3 {
		s.Workers = append(s.Workers, health.Worker{Rank: i, PID: 40 + i, Host: "a", GroupRank: i})
	}
	s.Workers[2].Exit = &health.Exit{}
	one, two := map[int]*job{0: {}}, map[int]*job{0: {}, 1: {}}
	for _, tt := range []struct {
		kind  drillKind
		local map[int]*job
		want  string // of all seeds
	}{
		{drillKind{"kill-rank", ""}, one, "rank 0 (a) rank 1 (a)"},
		{drillKind{"stop-rank", "1"}, one, "rank 1 (a)"},
		{drillKind{"kill-rank", "2"}, one, "no worker that can be reached has rank 2; `muster top` shows the ranks"},
		{drillKind{"kill-agent", ""}, one, "group rank 1 (b)"},
		{drillKind{"kill-agent", ""}, two, "group rank 0 (a) group rank 1 (b)"},
		{drillKind{"cut-host", "a"}, two, "group rank 0 (a)"},
		{drillKind{"cut-host", "0"}, one, "no agent that can be reached, but for the one that this command asks, is of host '0'; `muster top` shows the hosts"},
		{drillKind{"stop-agent", "c"}, two, "the agent of host 'c' cannot be reached: torchrun's; `muster top` shows the hosts"},
		{drillKind{"stop-agent", "d"}, two, "no agent that can be reached, but for the one that this command asks, is of host 'd'; `muster top` shows the hosts"},
	} {
		seen := map[string]bool{}
		for seed := range uint64(20) {
			v, err := pick(s, tt.local, tt.kind, rand.New(rand.NewPCG(seed, 0)))
			again, _ := pick(s, tt.local, tt.kind, rand.New(rand.NewPCG(seed, 0)))
			if v.String() != again.String() {
				t.Errorf("%v: seed %d picks %v, then %v", tt.kind, seed, v, again)
			}
			said := v.String()
			if err != nil {
				said = err.Error()
			}
			seen[said] = true
		}
		if len(seen) != strings.Count(tt.want, ") ")+1 {
			t.Errorf("%v: %v, want %s", tt.kind, seen, tt.want)
		}
		for said := range seen {
			if !strings.Contains(tt.want, said) {
				t.Errorf("%v: %q, want %q", tt.kind, said, tt.want)
			}
		}
	}
}

// The summary has the median and the worst of what has happened.
func TestSumUp(t *testing.T) {
	all := []*drill{{Outcome: drillRecovered, Noticed: 0.004, Running: 0.08, Whole: 2}, {Outcome: drillSmaller, Noticed: 0.006, Running: 0.1}, {Outcome: drillRecovered, Noticed: 3, Running: 3.1, Whole: 1}, {Outcome: drillNotDone}}
	var out strings.Builder
	c := &command{stdout: &out}
	if err := c.sumUp(all, false); err != nil {
		t.Fatal(err)
	}
	if err := c.sumUp(all, true); err != nil {
		t.Fatal(err)
	}
	want := `4 drills, 1 not done, 2 recovered, 1 smaller
noticed  median 6 ms, worst 3.0 s, of 3
running  median 100 ms, worst 3.1 s, of 3
whole    median 1.5 s, worst 2.0 s, of 2
{"summary":{"drills":4,"outcomes":{"not done":1,"recovered":2,"smaller":1},"times":{"noticed_seconds":{"median":0.006,"worst":3,"of":3},"running_seconds":{"median":0.1,"worst":3.1,"of":3},"whole_seconds":{"median":1.5,"worst":2,"of":2}}}}
`
	if out.String() != want {
		t.Errorf("got %s, want %s", out.String(), want)
	}
}
