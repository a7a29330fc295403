package agent_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// A rounder is a rendezvous of a caller's own.
type rounder struct {
	rendezvous.Handler
	info *rendezvous.Info
}

func (r *rounder) Next(context.Context) (*rendezvous.Info, error) { return r.info, nil }
func (r *rounder) Changes() <-chan rendezvous.Change              { return nil }

// What a Handler returns that cannot be meant is an error.
func TestHandlersNonsense(t *testing.T) {
	for name, tt := range map[string]struct {
		info *rendezvous.Info
		want string
	}{
		"nothing":        {nil, "neither an Info nor an error"},
		"empty":          {&rendezvous.Info{}, "Rank 0 and WorldSize 0"},
		"no store":       {&rendezvous.Info{WorldSize: 2}, "no Store"},
		"too high":       {&rendezvous.Info{Rank: 5, WorldSize: 2}, "Rank 5 and WorldSize 2"},
		"negative":       {&rendezvous.Info{Rank: -1, WorldSize: 1}, "Rank -1 and WorldSize 1"},
		"negative round": {&rendezvous.Info{Round: -1, WorldSize: 1}, "Round -1"},
		"no room":        {&rendezvous.Info{WorldSize: 1, Ranks: &rendezvous.Ranks{}}, "1 workers have no place"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, "rank", "", 1)
			j.Rendezvous = &rounder{j.Rendezvous, tt.info}
			r, err := j.run(t, t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "*agent_test.rounder") {
				t.Errorf("%+v, error %v, want %q of the handler", r, err, tt.want)
			}
		})
	}
}

// A single node needs no store.
func TestHandlerWithoutStore(t *testing.T) {
	j := newJob(t, "rank", "", 1)
	j.Rendezvous = &rounder{j.Rendezvous, &rendezvous.Info{WorldSize: 1}}
	if r := j.mustRun(t); r.IsFailed() {
		t.Errorf("%+v", r)
	}
}

// A machine is a Group of a caller's own, whose workers are not processes.
type machine struct {
	result *process.Result
	err    error
}

func (r machine) Wait(context.Context) (*process.Result, error) { return r.result, r.err }
func (machine) Failed() <-chan process.Exit                     { return nil }
func (machine) PIDs() map[int]int                               { return nil }
func (machine) Close(syscall.Signal, time.Duration)             {}
func (machine) Kill()                                           {}
func (machine) Signal(int, syscall.Signal) bool                 { return false }
func (machine) Replace(int, []string, map[string]string) error {
	return process.ErrNoReplacement
}

func TestGroupsNonsense(t *testing.T) {
	ok := &process.Result{Exits: map[int]process.Exit{0: {}}}
	failed := &process.Result{Exits: map[int]process.Exit{0: {Code: 3}}}
	for name, tt := range map[string]struct {
		group machine
		want  string
	}{
		"lost":                {machine{nil, errors.New("lost contact with the runtime")}, "lost contact with the runtime"},
		"nothing":             {machine{nil, nil}, "Group.Wait returned neither a result nor an error"},
		"success":             {machine{ok, nil}, ""},
		"without Failures":    {machine{failed, nil}, "exit code 3"},
		"a result, and error": {machine{ok, errors.New("lost contact")}, "lost contact"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, "", "", 1)
			j.Spec.Entrypoint = "/a/container"
			j.Start = func(process.Config) (agent.Group, error) { return tt.group, nil }
			r := j.mustRun(t)
			if r.IsFailed() != (tt.want != "") {
				t.Fatalf("%+v", r)
			}
			if r.IsFailed() && !strings.Contains(r.Err().Error(), tt.want) {
				t.Errorf("error %v, want %q", r.Err(), tt.want)
			}
		})
	}
	for _, none := range []agent.Group{nil, (*process.Group)(nil)} {
		j := newJob(t, "", "", 1)
		j.Spec.Entrypoint = "/a/container"
		j.Start = func(process.Config) (agent.Group, error) { return none, nil }
		r, err := j.run(t, t.Context())
		if err = errors.Join(err, r.Err()); err == nil || !strings.Contains(err.Error(), "Config.Start, or launch's Workers.Start, returned neither") {
			t.Errorf("Group %#v: %+v, %v", none, r, err)
		}
	}
}

func TestRunTwice(t *testing.T) {
	j := newJob(t, "rank", "", 1)
	a, err := agent.New(j.Config)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := a.Run(t.Context()); err != nil || r.IsFailed() {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Run was called before") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestNegativeTimes(t *testing.T) {
	j := newJob(t, "rank", "", 1)
	j.HangTimeout, j.ExitBarrierTimeout, j.LiveTimeout, j.PeerTimeout, j.UninterruptibleTimeout = -2, -2, -2, -2, -2
	_, err := agent.New(j.Config)
	for _, want := range []string{"hang timeout is -2ns", "exit barrier timeout is", "live timeout is", "peer timeout is",
		"uninterruptible timeout is"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	j = newJob(t, "rank", "", 1)
	j.HangTimeout = agent.HangAuto
	if _, err := agent.New(j.Config); err != nil {
		t.Errorf("HangAuto: %v", err)
	}
}
