//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/pypeer"
)

// withPython is a setup whose `python3` is the one that has PyTorch.
func withPython(t testing.TB, env ...string) setup {
	t.Helper()
	dir := filepath.Dir(pypeer.Python(t))
	return setup{env: append([]string{"PATH=" + dir + string(os.PathListSeparator) + os.Getenv("PATH")}, env...)}
}

func example(name string) string { return filepath.Join("..", "..", "examples", name) }

// grep returns the lines of text that match.
func grep(text, pattern string) []string {
	re := regexp.MustCompile(pattern)
	var found []string
	for line := range strings.Lines(text) {
		if re.MatchString(line) {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found
}

// calm is what undisturbed returns, by the number of workers.
var calm [5]struct {
	mu     sync.Mutex // held while the training runs
	losses []string
}

// undisturbed returns the losses of a training with checkpoints on n workers of one
// host, with nothing in its way. It runs once; several tests compare theirs with it.
func undisturbed(t testing.TB, n int) []string {
	t.Helper()
	c := &calm[n]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.losses == nil {
		c.losses = trainOn(t, muster(t), n)
	}
	return c.losses
}

// trainOn has a launcher run the training, and returns the losses.
func trainOn(t testing.TB, l launcher, n int) []string {
	t.Helper()
	j := run(t, l, withForks(t), fmt.Sprintf("--standalone --nproc-per-node %d", n), example("train_checkpoint.py"), "--dir", t.TempDir()).want(0).noneLeft(0)
	losses := grep(j.out(), `^epoch \d+: loss`)
	if len(losses) != 6 {
		t.Fatalf("a training under %s shows %d losses, want 6\n%s", l.name, len(losses), j.console())
	}
	return losses
}

// A script under --run-path that leaves its process group to the interpreter's end does not
// abort, as torchrun's does not.
func TestJudgeRunPathKeepsGroup(t *testing.T) {
	judge(t)
	script := filepath.Join(t.TempDir(), "keep.py")
	text := "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1))\n"
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		run(t, muster(t), withPython(t), "--standalone --nproc-per-node 2 --run-path", script).want(0).saysNot("terminate called")
	}
}

// The same script, seed and data give the same losses, to the last digit shown.
func TestLossesEqualTorchrun(t *testing.T) {
	t.Parallel()
	sizes := []int{2}
	if os.Getenv("MUSTER_JUDGE") != "" {
		sizes = []int{1, 2, 4} // processor time is what `make test` has least of
	}
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if diff := cmp.Diff(trainOn(t, torchrun(t), n), undisturbed(t, n)); diff != "" {
				t.Errorf("losses (-torchrun +muster)\n%s", diff)
			}
		})
	}
}

// Started under torchrun's name, the program is torchrun.
func TestLink(t *testing.T) {
	t.Parallel()
	l := launcher{"torchrun link", []string{filepath.Join(bin, "torchrun")}}
	j := workers(t, l, setup{}, "--standalone --nproc_per_node=2", "report:rank $RANK of $WORLD_SIZE", "exit:0").want(0)
	got := j.rest()
	slices.Sort(got)
	if diff := cmp.Diff([]string{"rank 0 of 2", "rank 1 of 2"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	run(t, l, setup{}, "run").want(2).says("torchrun: error: ", "'run'")
	run(t, l, setup{}, "--nnode").want(2).says("usage: torchrun ")
}

// A worker is killed in the middle; the job ends as if nothing had happened.
func TestCheckpointResume(t *testing.T) {
	t.Parallel()
	flags := "--standalone --nproc-per-node 2 --max-restarts 2"
	j := run(t, muster(t), withForks(t), flags, example("train_checkpoint.py"), "--dir", t.TempDir(), "--die-at", "3").want(0).noneLeft(0)
	if diff := cmp.Diff([]string{"attempt 0: starting at epoch 0", "attempt 1: starting at epoch 3"}, grep(j.out(), `^attempt`)); diff != "" {
		t.Errorf("attempts (-want +got)\n%s\n%s", diff, j.console())
	}
	if diff := cmp.Diff(undisturbed(t, 2), grep(j.out(), `^epoch`)); diff != "" {
		t.Errorf("losses (-undisturbed +killed)\n%s", diff)
	}
}

// The workers of a new attempt find an empty store, however late one of them is.
func TestRestartMeetsAgain(t *testing.T) {
	t.Parallel()
	run(t, muster(t), withForks(t), "--standalone --nproc-per-node 2 --max-restarts 1", "testdata/again.py").want(0)
}

func TestJudgeRestartMeetsAgain(t *testing.T) {
	const tries = 5 // now and then it does meet
	for range tries {
		j := start(t, judge(t), withPython(t), "--standalone --nproc-per-node 2 --max-restarts 1", "testdata/again.py")
		if status := j.statusOrHang(); status != 0 {
			t.Logf("status %d\n%s", status, strings.Join(slices.Compact(grep(j.errs(), `connectFullMesh failed`)), "\n"))
			return
		}
	}
	t.Errorf("torchrun's second attempt met %d times; D1 is gone", tries)
}

// A worker may be a launcher: its workers are a world of their own.
func TestNested(t *testing.T) {
	t.Parallel()
	outer := muster(t)
	for _, inner := range []launcher{torchrun(t), muster(t)} {
		t.Run(inner.name, func(t *testing.T) {
			t.Parallel()
			j := run(t, outer, withPython(t), "--standalone --nproc-per-node 1", append([]string{"testdata/nested.py"}, inner.argv...)...)
			j.want(0).noneLeft(0)
			got := grep(j.out(), "^inner")
			slices.Sort(got)
			if diff := cmp.Diff([]string{"inner 0 2 2 True", "inner 1 2 2 True"}, got); diff != "" {
				t.Errorf("(-want +got)\n%s\n%s", diff, j.console())
			}
		})
	}
	t.Run("muster in torchrun", func(t *testing.T) {
		t.Parallel()
		j := run(t, torchrun(t), withPython(t), "--standalone --nproc-per-node 1", append([]string{"testdata/nested.py"}, outer.argv...)...)
		j.want(0).noneLeft(0)
		if got := grep(j.out(), "^inner"); len(got) != 2 {
			t.Errorf("inner workers said %q", got)
		}
	})
}
