//go:build linux

package slurmlab_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/job/scheduler"
	"github.com/muster-run/muster/internal/test/slurmlab"
	"github.com/muster-run/muster/internal/test/testproc"
)

// detect is what package scheduler makes of an environment, one NAME=value a line.
func detect(t *testing.T, env string) (*scheduler.Job, error) {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(env) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(name, "SLURM") {
			all[name] = value
		}
	}
	return scheduler.Detect(scheduler.Input{
		Lookup:   func(name string) (string, bool) { v, ok := all[name]; return v, ok },
		ReadFile: os.ReadFile,
		Hostname: os.Hostname,
	})
}

// What package scheduler reads is what a real Slurm says.
func TestScheduler(t *testing.T) {
	t.Parallel()
	l := slurmlab.New(t, slurmlab.Config{GPUs: 2})
	out, err := l.Run(nil, "srun", "-N2", "--ntasks-per-node=1", "--gpus-per-node=2", "--label", "env")
	if err != nil {
		t.Fatalf("srun: %v\n%s", err, out)
	}
	var got []*scheduler.Job
	for _, label := range []string{"0: ", "1: "} {
		var env strings.Builder
		for line := range strings.Lines(out) {
			if rest, ok := strings.CutPrefix(line, label); ok {
				env.WriteString(rest)
			}
		}
		job, err := detect(t, env.String())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, job)
	}
	type text = scheduler.Fact[string]
	type number = scheduler.Fact[int]
	_, id, _ := strings.Cut(out, "0: SLURM_JOB_ID=")
	id, _, _ = strings.Cut(id, "\n") // 1, unless the nodes were not up for the first one
	want := scheduler.Job{
		Scheduler: "Slurm", RunID: text{Value: id + ".0", From: "SLURM_JOB_ID, SLURM_STEP_ID"},
		Nodes: number{Value: 2, From: "SLURM_STEP_NUM_NODES"}, NodeRank: number{Value: 0, From: "SLURM_NODEID"},
		Host: text{Value: "host0", From: "SLURM_STEP_NODELIST"}, Port: got[0].Port,
		GPUs: number{Value: 2, From: "SLURM_GPUS_ON_NODE"},
	}
	other := want
	other.NodeRank.Value = 1
	if diff := cmp.Diff([]*scheduler.Job{&want, &other}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	// A batch script is not a srun.
	log := filepath.Join(t.TempDir(), "log")
	script := filepath.Join(t.TempDir(), "env.sbatch")
	if err := testproc.WriteProgram(script, "#!/bin/sh\nenv\nexit 3\n"); err != nil {
		t.Fatal(err)
	}
	job := l.Submit(nil, "-N2", "-o", log, script)
	if diff := cmp.Diff(slurmlab.End{Job: job, State: "FAILED", Code: 3}, l.AwaitEnd(job)); diff != "" {
		t.Errorf("the end of the job (-want +got)\n%s", diff)
	}
	env, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if job, err := detect(t, string(env)); err == nil || !strings.Contains(err.Error(), "use: srun --nodes=2 --ntasks=2 --ntasks-per-node=1") {
		t.Errorf("in a batch script on two hosts: %+v, %v", job, err)
	}
}
