package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/accounts"
	"github.com/muster-run/muster/internal/job/slow"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/timer"
)

// at is a moment, in milliseconds after the start.
func at(ms int64) time.Time { return time.UnixMilli(1_795_000_000_000 + ms) }

// A seen event came so many milliseconds after the start.
type seen struct {
	ms   int64
	what any
}

// record plays events to a recorder of two workers and returns what it sums up to.
func record(t *testing.T, end int64, restarts *int, workers func() []agent.Worker, last func() map[int]slow.Course, events ...seen) (string, string) {
	t.Helper()
	dir := t.TempDir()
	log := accounts.Create(dir, 2, slog.Default())
	k := &timekeeper{log: log, starts: map[int]int{}, workers: workers}
	if last != nil {
		k.courses = func(context.Context) (map[int]slow.Course, int) { return last(), 0 }
	}
	for _, e := range events {
		if _, counted := e.what.(agent.RestartCounted); counted && restarts != nil {
			*restarts++
		}
		if courses, asked := e.what.(map[int]slow.Course); asked {
			k.course(courses, 0, nil)
			continue
		}
		n := 0
		if restarts != nil {
			n = *restarts
		}
		k.observe(agent.Event{Time: at(e.ms), Restarts: n, What: e.what})
	}
	log.Close(true)
	r, err := accounts.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	sums, prices := r.Sum(at(0).UnixMilli(), at(end).UnixMilli())
	var spent, cost []string
	for i := range sums {
		if sum := sums[i].Sum(); sum != end {
			t.Errorf("worker %d: the sum is %d, want %d", i, sum, end)
		}
		spent = append(spent, words(sums[i]))
	}
	if spent[0] == spent[1] {
		spent = spent[:1]
	}
	for _, p := range prices {
		cost = append(cost, fmt.Sprintf("%s: %s; %s", p.Attempt, words(p.Spent), p.Cause))
	}
	return strings.Join(spent, " | "), strings.Join(cost, "\n")
}

func words(s accounts.Spent) string {
	var all []string
	for _, a := range accounts.All {
		if s[a] != 0 {
			all = append(all, fmt.Sprintf("%s %d", a, s[a]))
		}
	}
	return strings.Join(all, ", ")
}

// begins are the events of an attempt that begins: 10 ms of the agent, 20 of waiting, 5 of ranks, 15 of start.
func begins(ms int64) []seen {
	return []seen{
		{ms + 10, agent.Joining{}}, {ms + 30, agent.Joined{}}, {ms + 35, agent.RanksAssigned{}}, {ms + 50, agent.WorkersStarted{}},
		{ms + 50, agent.Decided{Seen: agent.Healthy}},
	}
}

func explained(cause string) *failure.Report { return &failure.Report{Cause: cause} }

func TestAccountsOfEvents(t *testing.T) {
	const began = "agent 10, waiting_for_hosts 20, rendezvous 5, start_and_imports 15"
	exits := map[int]process.Exit{0: {Time: at(850)}, 1: {Time: at(900)}}
	for _, tt := range []struct {
		name         string
		events       []seen
		spent, costs string
	}{
		{"it still waits", []seen{{10, agent.Joining{}}}, "agent 10, waiting_for_hosts 990", ": agent 20, waiting_for_hosts 1980; "},
		{"no round", []seen{{10, agent.Joining{}}, {500, agent.Joined{Step: agent.Step{Err: errors.New("late")}}}, {510, agent.Finished{}}},
			"agent 500, waiting_for_hosts 500", ": agent 1000, waiting_for_hosts 1000; "},
		{"success, one after the other", []seen{{900, agent.Decided{Seen: agent.Succeeded}}, {905, agent.BarrierEntered{}}, {990, agent.AttemptEnded{}},
			{991, agent.Finished{Exits: exits, Result: &agent.Result{State: agent.Succeeded}}}},
			"agent 19, waiting_for_hosts 20, rendezvous 5, start_and_imports 15, running 800, ended_before_others 141 | " +
				"agent 19, waiting_for_hosts 20, rendezvous 5, start_and_imports 15, running 850, ended_before_others 91", ""},
		{"a worker fails", []seen{{505, agent.Decided{Seen: agent.Failed, Again: true, Since: at(500)}}, {505, agent.WorkersStopped{}},
			{510, agent.FailureExplained{Report: explained("rank 1: exit code 3")}}, {511, agent.RestartCounted{}}, {520, agent.AttemptEnded{}},
			{560, agent.Joining{Again: true}}, {570, agent.Joined{}}, {571, agent.RanksAssigned{}}, {600, agent.WorkersStarted{}}},
			"agent 10, waiting_for_hosts 30, rendezvous 6, start_and_imports 44, running 850, stop 20, restart 40",
			"attempt_0: waiting_for_hosts 20, rendezvous 2, start_and_imports 58, stop 40, restart 80; rank 1: exit code 3"},
		{"a hang, and the workers are killed", []seen{{600, agent.Suspected{Since: at(300), Kills: true}}, {700, agent.EvidenceTaken{}},
			{720, agent.Decided{Seen: agent.Failed, Since: at(710)}}, {730, agent.FailureExplained{Report: explained("hang")}}, {740, agent.AttemptEnded{}},
			{750, agent.Finished{Exits: exits}}},
			"agent 260, waiting_for_hosts 20, rendezvous 5, start_and_imports 15, running 250, hang_until_noticed 300, autopsy 100, stop 40, restart 10",
			"attempt_0: hang_until_noticed 600, autopsy 200, stop 80, restart 20; hang"},
		{"a hang that is only noted", []seen{{600, agent.Suspected{Since: at(300)}}, {700, agent.EvidenceTaken{}}},
			began + ", running 550, hang_until_noticed 300, autopsy 100", "attempt_0: hang_until_noticed 600, autopsy 200; "},
		{"a missed deadline", []seen{{600, agent.Suspected{Kills: true}}, {700, agent.EvidenceTaken{}}},
			began + ", running 550, autopsy 100, stop 300", "attempt_0: autopsy 200, stop 600; "},
		{"a hang from before the attempt", []seen{{90, agent.Suspected{Since: at(-700), Kills: true}}},
			began + ", hang_until_noticed 40, autopsy 910", "attempt_0: hang_until_noticed 80, autopsy 1820; "},
		{"hosts come", []seen{{400, agent.Decided{Again: true, Rejoining: true, Since: at(400)}}, {400, agent.Stopping{}}, {450, agent.WorkersStopped{}},
			{455, agent.AttemptEnded{}}, {455, agent.Joining{Again: true}}, {460, agent.Joined{}}, {460, agent.RanksAssigned{}}, {470, agent.WorkersStarted{}},
			{800, agent.Decided{Again: true, Since: at(800)}}},
			"agent 10, waiting_for_hosts 25, rendezvous 5, start_and_imports 25, running 680, stop 255",
			"attempt_0: waiting_for_hosts 10, start_and_imports 20, stop 110; \nattempt_0.1: stop 400; "},
		{"preempted", []seen{{400, agent.JobPreempted{}}, {400, agent.Stopping{}}, {450, agent.WorkersStopped{}}, {460, agent.AttemptEnded{}}, {470, agent.Finished{}}},
			"agent 540, waiting_for_hosts 20, rendezvous 5, start_and_imports 15, running 350, stop 60, restart 10", "attempt_0: stop 120, restart 20; "},
		{"a live group pauses", []seen{{400, agent.Resting{}}, {450, agent.AttemptEnded{}}, {450, agent.Joining{Again: true}}, {460, agent.Joined{}},
			{465, agent.RanksAssigned{}}, {470, agent.WorkersStarted{Live: true}}, {480, agent.Reconfigured{World: 1}}},
			"agent 10, waiting_for_hosts 30, rendezvous 10, start_and_imports 30, running 870, stop 50",
			"attempt_0: waiting_for_hosts 20, rendezvous 10, start_and_imports 30, stop 100; "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			events, costs, restarts := tt.events, tt.costs, 0
			if _, joins := events[0].what.(agent.Joining); !joins {
				events, costs = append(begins(0), events...), ": agent 20, waiting_for_hosts 40, rendezvous 10, start_and_imports 30; \n"+costs
			}
			spent, cost := record(t, 1000, &restarts, nil, nil, events...)
			if diff := cmp.Diff(tt.spent, spent); diff != "" {
				t.Errorf("spent (-want +got):\n%s", diff)
			}
			if strings.TrimSpace(cost) != strings.TrimSpace(costs) {
				t.Errorf("it has cost\n%s\nwant\n%s", cost, costs)
			}
		})
	}
}

// What a worker has done since its last heartbeat with a step is lost with a failure, and with a hang until it hung; but
// not if the job is preempted, as workers may keep it then.
func TestLost(t *testing.T) {
	beat := func(ms int64) *timer.Heartbeat { return &timer.Heartbeat{Step: 7, Time: at(ms)} }
	workers := func() []agent.Worker {
		return []agent.Worker{{LocalRank: 0, Heartbeat: beat(300)}, {LocalRank: 1, Heartbeat: &timer.Heartbeat{Step: -1, Time: at(310)}}}
	}
	const began = "agent 10, waiting_for_hosts 20, rendezvous 5, start_and_imports 15, "
	for _, tt := range []struct {
		name   string
		events []seen
		want   string
	}{
		{"a failure", []seen{{520, agent.Decided{Seen: agent.Failed, Since: at(500)}}},
			began + "running 250, work_lost 200, stop 500 | " + began + "running 450, stop 500"},
		{"a hang", []seen{{700, agent.Suspected{Since: at(400), Kills: true}}, {800, agent.EvidenceTaken{}}},
			began + "running 250, work_lost 100, hang_until_noticed 300, autopsy 100, stop 200 | " + began +
				"running 350, hang_until_noticed 300, autopsy 100, stop 200"},
		{"a failure before it", []seen{{200, agent.Decided{Seen: agent.Failed, Since: at(200)}}}, began + "running 150, stop 800"},
		{"preempted", []seen{{500, agent.JobPreempted{}}, {500, agent.Stopping{}}}, began + "running 450, stop 500"},
	} {
		if spent, _ := record(t, 1000, new(int), workers, nil, append(begins(0), tt.events...)...); spent != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, spent, tt.want)
		}
	}
}

// Without heartbeats, what a worker has done since its last step that has ended is lost, if it has said in time when that
// was, or another one of its host has.
func TestLostSinceStep(t *testing.T) {
	type courses = map[int]slow.Course
	course := func(stepping, stepped int64) slow.Course {
		return slow.Course{Entered: at(60).UnixNano(), Stepping: at(stepping).UnixNano(), Stepped: at(stepped).UnixNano()}
	}
	begun, both := seen{200, courses{0: course(80, 190), 1: course(80, 190)}}, courses{0: course(80, 400), 1: course(80, 410)}
	fails := []seen{{500, agent.Decided{Seen: agent.Failed, Again: true, Since: at(500)}}, {510, agent.FailureExplained{Report: explained("NaN")}},
		{520, agent.AttemptEnded{}}}
	const before = "agent 10, waiting_for_hosts 20, rendezvous 5, start_and_imports 25, first_step 20, "
	const after = "stop 20, restart 480"
	for _, tt := range []struct {
		name       string
		workers    []agent.Worker
		last       courses
		events     []seen
		want, cost string
	}{
		{"both have said when", nil, both, append([]seen{begun}, fails...),
			before + "steps 320, work_lost 100, " + after + " | " + before + "steps 330, work_lost 90, " + after,
			"work_lost 190, stop 40, restart 960; NaN"},
		{"one was killed", nil, courses{1: both[1]}, append([]seen{begun}, fails...),
			before + "steps 330, work_lost 90, " + after, "work_lost 180, stop 40, restart 960; NaN"},
		{"all were killed", nil, courses{0: {}, 1: {}}, append([]seen{begun}, fails...), before + "steps 420, " + after, "stop 40, restart 960; NaN"},
		{"it fails before it has been asked", nil, courses{0: course(80, 400), 1: {}}, fails,
			before + "steps 320, work_lost 100, " + after +
				" | agent 10, waiting_for_hosts 20, rendezvous 5, start_and_imports 15, running 350, work_lost 100, " + after,
			"work_lost 200, stop 40, restart 960; NaN"},
		{"another host's fails", nil, both, []seen{begun, {505, agent.Decided{Again: true, Since: at(500)}}, {505, agent.Stopping{}},
			{506, agent.FailureExplained{Report: explained("NaN")}}, {515, agent.WorkersStopped{}}, {520, agent.AttemptEnded{}}},
			before + "steps 320, work_lost 100, " + after + " | " + before + "steps 330, work_lost 90, " + after,
			"work_lost 190, stop 40, restart 960; NaN"},
		{"a step of before the attempt, and one of after the failure", nil, courses{0: course(80, -5), 1: course(80, 505)},
			append([]seen{begun}, fails...), before + "steps 420, " + after, "stop 40, restart 960; NaN"},
		{"one has heartbeats", []agent.Worker{{LocalRank: 0, Heartbeat: &timer.Heartbeat{Step: 7, Time: at(300)}}, {LocalRank: 1}}, both,
			append([]seen{begun}, fails...),
			before + "steps 220, work_lost 200, " + after + " | " + before + "steps 330, work_lost 90, " + after,
			"work_lost 290, stop 40, restart 960; NaN"},
		{"success before they have been asked", nil, both, []seen{{500, agent.Decided{Seen: agent.Succeeded}}},
			before + "steps 420, ended_before_others 500", ""},
		{"preempted", nil, both, []seen{begun, {500, agent.JobPreempted{}}, {500, agent.Stopping{}}, {520, agent.AttemptEnded{}}},
			before + "steps 420, " + after, "stop 40, restart 960; "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			workers := func() []agent.Worker {
				if tt.workers != nil {
					return tt.workers
				}
				return []agent.Worker{{LocalRank: 0}, {LocalRank: 1}}
			}
			spent, cost := record(t, 1000, new(int), workers, func() courses { return tt.last }, append(begins(0), tt.events...)...)
			if diff := cmp.Diff(tt.want, spent); diff != "" {
				t.Errorf("spent (-want +got):\n%s", diff)
			}
			if _, cost, _ = strings.Cut(cost, "\n"); strings.TrimPrefix(cost, "attempt_0: ") != tt.cost {
				t.Errorf("it has cost %q, want %q", cost, tt.cost)
			}
		})
	}
}

// What follows a hang that is only noted is what was before. Evidence that was taken for another host, or of workers that do
// not end, says nothing of what they do.
func TestAccountsAfterEvidence(t *testing.T) {
	const before = "agent 10, waiting_for_hosts 20, rendezvous 5, start_and_imports 25, first_step 20, "
	begun := seen{200, map[int]slow.Course{0: {Entered: at(60).UnixNano(), Stepping: at(80).UnixNano()}, 1: {Entered: at(60).UnixNano()}}}
	for _, tt := range []struct {
		name   string
		events []seen
		want   string
	}{
		{"a hang that is only noted", []seen{{600, agent.Suspected{Since: at(300)}}, {700, agent.EvidenceTaken{}}},
			before + "steps 520, hang_until_noticed 300, autopsy 100 | agent 10, waiting_for_hosts 20, rendezvous 5, start_and_imports 25, " +
				"first_step 540, hang_until_noticed 300, autopsy 100"},
		{"another host asks", []seen{{700, agent.EvidenceTaken{}}},
			before + "steps 920 | agent 10, waiting_for_hosts 20, rendezvous 5, start_and_imports 25, first_step 940"},
		{"another host has found a hang, and the workers are killed", []seen{{700, agent.EvidenceTaken{Since: at(300), Kills: true}},
			{720, agent.Decided{Again: true, Since: at(710)}}, {730, agent.AttemptEnded{}}},
			before + "steps 220, hang_until_noticed 400, stop 30, restart 270 | agent 10, waiting_for_hosts 20, rendezvous 5, start_and_imports 25, " +
				"first_step 240, hang_until_noticed 400, stop 30, restart 270"},
		{"another host has found a hang that is only noted", []seen{{700, agent.EvidenceTaken{Since: at(300)}}},
			before + "steps 520, hang_until_noticed 400 | agent 10, waiting_for_hosts 20, rendezvous 5, start_and_imports 25, " +
				"first_step 540, hang_until_noticed 400"},
		{"workers do not end", []seen{{500, agent.Decided{Again: true, Since: at(500)}}, {500, agent.Stopping{}}, {700, agent.EvidenceTaken{}}},
			before + "steps 420, stop 500 | agent 10, waiting_for_hosts 20, rendezvous 5, start_and_imports 25, first_step 440, stop 500"},
	} {
		if spent, _ := record(t, 1000, new(int), nil, nil, append(append(begins(0), begun), tt.events...)...); spent != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, spent, tt.want)
		}
	}
}

// Workers may answer before the agent says that they have started, and while an attempt after that begins.
func TestCourseBeforeWorkersStarted(t *testing.T) {
	k := &timekeeper{log: accounts.Create("", 1, slog.Default()), starts: map[int]int{}}
	early := map[int]slow.Course{0: {Entered: at(60).UnixNano()}}
	for _, restarts := range []int{0, 1} {
		k.observe(agent.Event{Time: at(35), Restarts: restarts, What: agent.RanksAssigned{}})
		k.course(early, 0, nil)
		if now := k.log.Now(); now != accounts.Start {
			t.Errorf("restart %d: workers that have not started are in %s, want %s", restarts, now, accounts.Start)
		}
		k.observe(agent.Event{Time: at(50), Restarts: restarts, What: agent.WorkersStarted{}})
		k.course(early, 0, nil)
		if now := k.log.Now(); now != accounts.FirstStep {
			t.Errorf("restart %d: a worker that has entered is in %s, want %s", restarts, now, accounts.FirstStep)
		}
	}
}

// What another agent says of a slow rank moves no mark out of the time that it speaks of.
func TestWaitedForHostileFinding(t *testing.T) {
	for _, f := range []slow.Finding{{Rank: 9, Wait: 1 << 62, Step: 1}, {Rank: 9, Wait: -1 << 62, Step: 1}, {Rank: 9, Wait: 5}} {
		dir := t.TempDir()
		k := &timekeeper{log: accounts.Create(dir, 1, slog.Default()), starts: map[int]int{}}
		k.work(at(0))
		k.known[0], k.slow, k.waiting = accounts.Steps, &f, at(100)
		k.waited(at(200))
		k.log.Close(true)
		r, err := accounts.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range r.Marks {
			if m.At < at(0).UnixMilli() || m.At > at(200).UnixMilli() {
				t.Errorf("%v: a mark at %d, want %d to %d", f, m.At, at(0).UnixMilli(), at(200).UnixMilli())
			}
		}
	}
}
