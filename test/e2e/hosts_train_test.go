//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// lossyTraining runs a training script whose checkpoints are files that it renames.
// Once the third is there rank 0 says so and stops, unless that has been taken note
// of in a file; the others wait for it.
const lossyTraining = `
import os, runpy, signal, sys, time
script, noted = sys.argv[1:3]
del sys.argv[1:3]
replace, saved = os.replace, 0
def counting(a, b):
    global saved
    replace(a, b)
    saved += 1
    if saved == 3 and not os.path.exists(noted):
        with open(os.environ["TESTPROC_BOARD"], "w") as board:
            print(os.path.expandvars("saved $HOST $RANK $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $MASTER_ADDR:$MASTER_PORT"), time.time_ns(), file=board)
        if os.environ.get("LOSSY_END"):
            open(noted, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            signal.pause()
os.replace = counting
runpy.run_path(script, run_name="__main__")
`

// newTraining is a site whose workers train with checkpoints on three hosts. A
// fourth is there to take the place of one that is lost.
func newTraining(t *testing.T, c *hostsBackend) (s *site, noted string) {
	t.Helper()
	s = newSite(t, 4+c.hosts)
	s.env = withForks(t).env
	path, err := filepath.Abs("testdata/train.py")
	if err != nil {
		t.Fatal(err)
	}
	noted = filepath.Join(t.TempDir(), "noted")
	s.program = []string{script(t, "lossy.py", lossyTraining), path, noted, "--dir", t.TempDir()}
	c.prepare(s)
	return s, noted
}

// losses are what a training's workers have printed, on whichever host: where they
// started and the loss after each epoch, sorted.
func (s *site) losses() []string {
	s.t.Helper()
	var all []string
	for _, j := range s.agents {
		all = append(all, grep(j.out(), `epoch \d+: loss|attempt \d+: starting`)...)
	}
	slices.Sort(all)
	return all
}

// rank0Ends makes the worker of rank 0 end after the third checkpoint.
const rank0Ends = "LOSSY_END=1"

// The host of rank 0 is lost in the middle of a training; another takes its place,
// the training continues from its checkpoint, and the losses are those of one that
// nothing happened to.
func TestHostsTraining(t *testing.T) {
	t.Parallel()
	var calm, etcd, quorum, local, localKilled []string
	var all sync.WaitGroup
	all.Go(func() { t.Run("undisturbed", func(t *testing.T) { calm = train(t, "c10d") }) })
	all.Go(func() { t.Run("etcd", func(t *testing.T) { etcd = trainAndLose(t, "etcd") }) })
	if os.Getenv("MUSTER_JUDGE") != "" { // the next is quorum, too
		all.Go(func() { t.Run("quorum", func(t *testing.T) { quorum = trainAndLose(t, "quorum") }) })
	}
	all.Go(func() {
		t.Run("quorum, local store", func(t *testing.T) { local = trainAndLose(t, "quorum", "--live") })
	})
	all.Go(func() {
		t.Run("c10d, local store, a worker killed", func(t *testing.T) { localKilled = trainAndKill(t, "c10d", "--live") })
	})
	all.Wait()
	if t.Failed() || calm == nil {
		return
	}
	if len(calm) != 7 {
		t.Fatalf("an undisturbed training printed %q, want where it starts and six losses", calm)
	}
	// The lost one had not yet printed the loss of epoch 2.
	want := slices.DeleteFunc(slices.Clone(calm), func(line string) bool { return strings.Contains(line, "epoch 2") })
	want = slices.Insert(want, 1, strings.Replace(want[0], "epoch 0", "epoch 3", 1))
	trainings := map[string][]string{"etcd": etcd, "quorum, local store": local, "c10d, local store": localKilled}
	if quorum != nil {
		trainings["quorum"] = quorum
	}
	for name, got := range trainings {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: losses (-undisturbed +with a host or a worker lost)\n%s", name, diff)
		}
	}
}

// train trains on three hosts.
func train(t *testing.T, name string) []string {
	s, noted := newTraining(t, backend(t, name))
	if err := os.WriteFile(noted, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	s.want(0, s.startAll(3, "--nnodes 3")...)
	return s.losses()
}

// trainAndLose does so and loses the host of rank 0 after the third checkpoint.
func trainAndLose(t *testing.T, name string, flags ...string) []string {
	c := backend(t, name)
	s, noted := newTraining(t, c)
	all := strings.Join(append(flags, "--nnodes 3"), " ")
	agents := s.startAll(3, all)
	saved := s.await(time.Time{}, 1, "saved", 3)[0]
	saved.meetsAtHome(t, len(flags) > 0)
	if err := os.WriteFile(noted, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	lost := slices.IndexFunc(agents, func(j *job) bool { return s.lab.Host(s.hostOf(j)).Name == saved.host })
	began := time.Now()
	s.lab.Host(lost).PowerOff()
	agents[lost] = s.start(3+c.hosts, all)
	ended := s.want(0, agents...)
	t.Logf("the host of rank 0 was lost after three epochs; the training had ended %s later", ms(ended.Sub(began)))
	return s.losses()
}

// trainAndKill trains on three hosts, where rank 0's worker is killed after the third
// checkpoint and all start again.
func trainAndKill(t *testing.T, name string, flags string) []string {
	s, _ := newTraining(t, backend(t, name))
	s.env = append(s.env, rank0Ends)
	agents := s.startAll(3, "--nnodes 3 --max-restarts 1 "+flags)
	s.await(time.Time{}, 1, "saved", 3)[0].meetsAtHome(t, true)
	s.want(0, agents...)
	losses := s.losses()
	for i, line := range losses {
		losses[i] = strings.Replace(line, "attempt 1:", "attempt 0:", 1) // a lost host does not count as a restart
	}
	slices.Sort(losses)
	return losses
}

// meetsAtHome checks that the workers' store is at the loopback address, or is not.
func (r hostReport) meetsAtHome(t *testing.T, want bool) {
	t.Helper()
	if got := strings.HasPrefix(r.master, "127.0.0.1:"); got != want {
		t.Errorf("the workers meet at %s", r.master)
	}
}
