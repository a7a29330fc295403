package jobs

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/test/golden"
	"github.com/muster-run/muster/process/warm"
)

// topState is a job in the middle of its life: 8 workers, one of which has died.
func topState() *jobstate.State {
	now := time.Date(2026, time.March, 4, 12, 30, 0, 0, time.Local)
	at := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	s := &jobstate.State{
		Version: jobstate.Version, Time: now,
		Job: jobstate.Job{RunID: "llama-7b", Backend: "c10d", Endpoint: "n0:29400", Entrypoint: "train.py", Started: at(7500), State: "HEALTHY",
			Phase: "running", Round: 2, Restarts: 1, MaxRestarts: 3, WorldSize: 16},
		Host:       jobstate.Host{Name: "n0", GroupRank: 0, Workers: 8},
		Hosts:      []jobstate.Host{{Name: "n0", GroupRank: 0, Workers: 8, State: "HEALTHY"}, {Name: "n1", GroupRank: 1, Workers: 8, State: "UNHEALTHY"}},
		LiveTimers: 3,
		Timeline: []jobstate.Moment{
			{Time: at(7500), Kind: "phase", What: "waiting for the hosts of the next round"},
			{Time: at(7490), Kind: "round", What: "round 1: 2 hosts"},
			{Time: at(600), Kind: "failure", What: "rank 3 failed", Why: "killed by SIGKILL: out of memory"},
			{Time: at(599), Kind: "restart", What: "restart 1 of 3"},
			{Time: at(598), Kind: "round", What: "round 2: 2 hosts"},
		},
		Failures: []jobstate.Failure{{Time: at(600), ProcessFailure: failure.ProcessFailure{
			Observation: failure.Observation{Rank: 3, LocalRank: 3, Host: "n0"}, FailedAt: at(600), Root: true, Cause: "killed by SIGKILL: out of memory",
		}}},
	}
	for i := range 8 {
		w := jobstate.Worker{Rank: i, LocalRank: i, PID: 4000 + i, State: "HEALTHY", Started: at(598), LastOutput: at(i),
			Usage:     jobstate.Usage{CPUPercent: float64(95 + i), RSSBytes: int64(i+1) << 30, Processes: 1},
			Heartbeat: &jobstate.Heartbeat{Step: int64(12000 - i), Time: at(1)},
			Stdout:    fmt.Sprintf("/logs/llama-7b_x/attempt_1/%d/stdout.log", i), Stderr: "/logs/stderr.log",
			StdoutLines: []string{"epoch 3", fmt.Sprintf("step %d  loss 1.%d234  日本語 a long line that goes on and on beyond the edge of every screen", 12000-i, i)},
			StderrLines: []string{"UserWarning: lr_scheduler"},
		}
		s.Workers = append(s.Workers, w)
	}
	s.Workers[5].Exit = &jobstate.Exit{Time: at(2), Code: -9, Signal: "SIGKILL", Cause: "killed by SIGKILL"}
	return s
}

// shown draws a view as text.
func shown(v *topView, height int) string { return strings.Join(v.lines(height), "\n") + "\n" }

func TestTopScreens(t *testing.T) {
	waiting := topState()
	waiting.Job.Phase, waiting.Job.State, waiting.Job.WaitingFor = "rendezvous", "INIT", "1 of 2 hosts, 12 s left"
	waiting.Workers, waiting.LiveTimers, waiting.Hosts, waiting.Failures = nil, 0, nil, nil
	busy, withGPUs := 97, topState()
	for i := range withGPUs.Workers[:4] {
		withGPUs.Workers[i].GPU = &agent.GPU{Index: i, Percent: &busy, UsedBytes: 61 << 30, TotalBytes: 80 << 30}
	}
	withWarm := topState()
	withWarm.Host.Warm = &warm.Stats{Ready: true, PID: 77, Modules: 1800, BuildSeconds: 2.345, PSSBytes: 212 << 20, WarmStarts: 14, ColdStarts: 2}
	withoutTemplate := topState()
	withoutTemplate.Host.Warm = &warm.Stats{ColdStarts: 8}
	tests := []struct {
		name   string
		view   topView
		height int
	}{
		{"24", topView{state: topState()}, 24},
		{"40", topView{state: topState()}, 40},
		{"40_gpus", topView{state: withGPUs}, 40},
		{"24_warm", topView{state: withWarm}, 24},
		{"24_cold", topView{state: withoutTemplate}, 24},
		{"15", topView{state: topState()}, 15},
		{"24_waiting", topView{state: waiting}, 24},
		{"24_lost", topView{state: topState(), problems: []string{"ask the agent at :9000: connection refused"}}, 24},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := shown(&tt.view, tt.height)
			golden.Is(t, "testdata/top/"+tt.name+".txt", got)
			if lines := strings.Count(got, "\n"); lines > tt.height {
				t.Errorf("%d lines, want %d at most", lines, tt.height)
			}
		})
	}
}

// Whatever the terminal's height, what is drawn fits, and workers are there.
func TestTopFits(t *testing.T) {
	for height := range 45 {
		lines := (&topView{state: topState()}).lines(height)
		if len(lines) > height {
			t.Fatalf("height %d: %d lines", height, len(lines))
		}
		workers := 0
		for _, line := range lines {
			if strings.Contains(line, "HEALTHY ") && strings.HasPrefix(line, "  ") {
				workers++
			}
		}
		if height >= 12 && workers < 3 {
			t.Fatalf("height %d: %d workers are shown:\n%s", height, workers, strings.Join(lines, "\n"))
		}
	}
}

// The pace is beside the step, where heartbeats tell one.
func TestTopPace(t *testing.T) {
	s := topState()
	s.Workers[1].Heartbeat.StepsPerSecond, s.Workers[2].Heartbeat.StepsPerSecond = 3.42, 0.0123
	got := shown(&topView{state: s}, 30)
	for _, want := range []string{" STEP   PACE     BEAT ", " 12000  -        1s ", " 11999  3.4/s    1s ", " 11998  0.012/s  1s "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

// What a hostile agent says does not reach the terminal's ears.
func TestTopHostile(t *testing.T) {
	const evil = "\x1b]0;owned\a\x1b[2J\r\n\x00\u202egnp.\x9b31m"
	s := topState()
	s.Job = jobstate.Job{RunID: evil, Backend: evil, Endpoint: evil, Entrypoint: evil, State: evil, Phase: evil, WaitingFor: evil, Started: time.Unix(1<<60, 0), Restarts: math.MinInt}
	s.Hosts[0] = jobstate.Host{Name: evil, State: evil, Workers: math.MaxInt}
	s.Failures[0].Cause, s.Failures[0].Host, s.Failures[0].Message = evil, evil, evil
	s.Timeline[0].What, s.Timeline[0].Why = evil, evil
	for i := range s.Workers {
		w := &s.Workers[i]
		w.State, w.Stdout, w.StdoutLines, w.Rank, w.PID = evil, evil, []string{evil}, math.MinInt+i, math.MaxInt
		w.Usage = jobstate.Usage{CPUPercent: math.MaxFloat64, RSSBytes: math.MaxInt64, Processes: 1}
		w.LastOutput, w.Heartbeat.Step, w.Heartbeat.StepsPerSecond = time.Time{}.Add(1), math.MinInt64, math.MaxFloat64
	}
	s.Workers[1].Exit = &jobstate.Exit{Signal: evil, Cause: evil, Code: 1}
	v := &topView{state: s, problems: []string{evil}}
	for _, line := range v.lines(50) {
		for _, r := range line {
			if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' {
				t.Errorf("%q has %q", line, r)
			}
		}
	}
}

// A job that is preempted has not failed.
func TestTopPreempted(t *testing.T) {
	state := topState()
	state.Job.Phase, state.Job.State = "ended", "FAILED"
	state.Job.Preempted = &failure.Preemption{Host: "n\x1b[31m1", Signal: 15, Time: state.Time}
	says := "preempted: host n1 received SIGTERM at " + state.Time.Local().Format("15:04:05") + "\n"
	if got := strings.Join((&topView{state: state}).lines(100), "\n"); !strings.Contains(got, "ended PREEMPTED") || strings.Contains(got, "FAILED") || !strings.Contains(got, says) {
		t.Errorf("it shows\n%s", got)
	}
}
