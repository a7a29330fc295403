package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
)

// A remote worker is not a process of this host: its result comes from elsewhere.
type remote chan *process.Result

func (r remote) Wait(ctx context.Context) (*process.Result, error) {
	select {
	case result := <-r:
		return result, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (remote) Failed() <-chan process.Exit { return nil } // one worker has no peers
func (remote) PIDs() map[int]int           { return nil }
func (r remote) Kill()                     { r.Close(syscall.SIGKILL, 0) }

func (remote) Signal(int, syscall.Signal) bool { return false }
func (remote) Replace(int, []string, map[string]string) error {
	return process.ErrNoReplacement
}

func (r remote) Close(sig syscall.Signal, _ time.Duration) {
	select {
	case r <- &process.Result{Exits: map[int]process.Exit{0: {Code: -int(sig), StoppedBy: sig}}}:
	default: // it has ended
	}
}

// A Group whose worker runs elsewhere.
func ExampleGroup() {
	quiet := slog.New(slog.DiscardHandler)
	meet, err := c10d.New(rendezvous.Spec{RunID: "job7", Logger: quiet, Endpoint: "localhost:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	run, err := logs.New(logs.Config{Dir: os.DevNull, Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer run.Close(false)
	a, err := agent.New(agent.Config{
		Spec:       agent.Spec{LocalWorldSize: 1, Entrypoint: "a program over there"},
		Rendezvous: meet, Logs: run, Host: "host1", Logger: quiet,
		Options: agent.Options{MaxRestarts: 1},
		Start: func(cfg process.Config) (agent.Group, error) {
			worker := make(remote, 1)
			code := 3
			if cfg.Envs[0]["TORCHELASTIC_RESTART_COUNT"] == "1" {
				code = 0
			}
			worker <- &process.Result{Exits: map[int]process.Exit{0: {Code: code, Time: time.Now()}}}
			return worker, cfg.Logs.Started()
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := a.Run(context.Background())
	fmt.Println(result.State == agent.Succeeded, result.Restarts, err)
	fmt.Println(workers(a), meet.Shutdown(context.Background())) // none any more
	// Output:
	// true 1 <nil>
	// [] <nil>
}

// workers has the ranks of an agent's workers, as a status page would show them.
func workers(a *agent.Agent) (ranks []int) {
	var all []agent.Worker = a.Workers()
	for _, w := range all {
		ranks = append(ranks, w.Rank)
	}
	return ranks
}

// An observer of the program's own, for Config.Observers.
func ExampleEvent() {
	observe := func(e agent.Event) {
		switch what := e.What.(type) {
		case agent.Joining:
			fmt.Println(e.Job.RunID, "looks for a round")
		case agent.Finished:
			fmt.Println(e.Job.RunID, "has ended:", what.Result.State)
		}
	}
	job := &agent.Job{RunID: "job7"}
	observe(agent.Event{Job: job, What: agent.Joining{}})
	observe(agent.Event{Job: job, What: agent.Finished{Result: &agent.Result{State: agent.Succeeded}}})
	// Output:
	// job7 looks for a round
	// job7 has ended: SUCCEEDED
}

// The states have TorchElastic's names.
func ExampleState() {
	for _, s := range []agent.State{agent.Healthy, agent.Failed} {
		fmt.Println(s)
	}
	// Output:
	// HEALTHY
	// FAILED
}
