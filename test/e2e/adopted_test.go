//go:build linux

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/pypeer"
)

const (
	accelerate = "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no "
	// As in Megatron-LM's scripts.
	megatron = "python -m torch.distributed.run --nproc_per_node 2 --nnodes 1 --node_rank 0 --master_addr localhost " +
		"--master_port PORT --log-dir logs --tee 0:3,1:3 --redirects 3 adopted.py"
)

// firstAdopted begins what an adopted job says.
const firstAdopted = "muster (adopted): starts this job"

// Three of the programs below, as far as seconds go: one that has PyTorch's launcher in its own process,
// one that runs it by -m, and torchrun by its path.
func TestAdopted(t *testing.T) {
	venv := adoptedEnvironment(t, "accelerate")
	for name, line := range map[string]string{
		"accelerate": accelerate + "adopted.py",
		"Megatron":   megatron,
		"torchrun":   "torchrun --nproc-per-node 2 adopted.py",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended, said := runAdopted(t, venv, line+" fail")
			if !strings.Contains(ended, "exit status 1") || strings.Count(said, firstAdopted) != 1 || !strings.Contains(said, ": ValueError: boom\n") {
				t.Errorf("%s\n%s", ended, said)
			}
		})
	}
}

// Programs from PyPI that start PyTorch's launcher in their own process, or by -m, do the same in an
// adopted environment as with MUSTER_ADOPT=0, where they start PyTorch's.
func TestJudgeAdopted(t *testing.T) {
	judge(t)
	for name, tt := range map[string]struct {
		packages []string
		programs map[string]string // what follows the interpreter's directory, without the last word
	}{
		"trainers": {[]string{"accelerate", "lightning", "nbclient", "ipykernel", "torchtune", "torchao<0.11"}, map[string]string{
			"accelerate":    accelerate + "adopted.py",
			"accelerate -m": accelerate + "--tee 3 --log_dir logs -m adopted",
			"fabric":        "fabric run --accelerator=cpu --devices=2 --strategy=ddp adopted.py",
			"tune":          "tune run --nproc_per_node 2 adopted.py --config adopted.yaml",
			"notebook":      "python adopted_notebook.py",
			"torchrun":      "torchrun --nproc-per-node 2 adopted.py",
			"Megatron":      megatron,
		}},
		"torchsnapshot": {[]string{"torchsnapshot"}, map[string]string{"run_with_pet": "python adopted_torchsnapshot.py"}},
		"TRL":           {[]string{"trl"}, map[string]string{"sft": "python adopted_trl.py"}},
		"ultralytics":   {[]string{"ultralytics", "cloudpickle"}, map[string]string{"train": "python adopted_ultralytics.py"}},
		// Together, pip searches for a quarter of an hour.
		"Metaflow": {[]string{"metaflow", "metaflow-torchrun"}, map[string]string{"flow": "python adopted_metaflow.py --no-pylint run --mode"}},
		"flytekit": {[]string{"flytekit", "flytekitplugins-kfpytorch"}, map[string]string{"task": "python adopted_flytekit.py"}},
	} {
		t.Run(name, func(t *testing.T) {
			venv := adoptedEnvironment(t, tt.packages...)
			for name, line := range tt.programs {
				t.Run(name, func(t *testing.T) {
					for _, mode := range []string{"good", "fail"} {
						theirs, said := runAdopted(t, venv, line+" "+mode, "MUSTER_ADOPT=0")
						ours, saidOurs := runAdopted(t, venv, line+" "+mode)
						if ours != theirs {
							t.Errorf("%s: adopted %s, PyTorch's launcher %s\n%s", mode, ours, theirs, saidOurs)
						}
						if strings.Contains(said, firstAdopted) || strings.Count(saidOurs, firstAdopted) != 1 {
							t.Errorf("%s: which launcher ran?\n%s\n%s", mode, said, saidOurs)
						}
						if failed := strings.Contains(saidOurs, "cause     : ValueError: boom") || strings.Contains(saidOurs, ": ValueError: boom\n"); failed != (mode == "fail") ||
							strings.Contains(ours, "exit status 0") == failed {
							t.Errorf("%s: %s\n%s", mode, ours, saidOurs)
						}
					}
				})
			}
		})
	}
}

// adoptedEnvironment makes an environment with packages beside PyTorch, and adopts it.
func adoptedEnvironment(t *testing.T, packages ...string) string {
	t.Helper()
	venv := filepath.Join(t.TempDir(), "venv")
	if out, err := exec.Command("../../internal/tools/beside.sh", append([]string{pypeer.Python(t), venv}, packages...)...).CombinedOutput(); err != nil {
		t.Skipf("cannot install %v: %v\n%s", packages, err, out)
	}
	torchrun := contents(t, pypeer.Torchrun(t))
	_, torchrun, _ = strings.Cut(torchrun, "\n")
	python := filepath.Join(venv, "bin", "python3")
	if err := os.WriteFile(filepath.Join(venv, "bin", "torchrun"), []byte("#!"+python+"\n"+torchrun), 0o755); err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs("../../python")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-m", "muster", "adopt")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+source, "MUSTER_BINARY="+filepath.Join(bin, "muster"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("adopt: %v\n%s", err, out)
	}
	return venv
}

// runAdopted runs a program of an environment, and returns its status with what its workers say, and all that it says.
func runAdopted(t *testing.T, venv, line string, env ...string) (outcome, all string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range glob(t, "testdata", "adopted*.py") {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(contents(t, filepath.Join("testdata", name))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "adopted.yaml"), []byte("lr: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(strings.Replace(line, "PORT", strconv.Itoa(freePort(t)), 1))
	cmd := exec.CommandContext(t.Context(), filepath.Join(venv, "bin", words[0]), words[1:]...)
	var said bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &said, &said
	cmd.Env = append(append(os.Environ(), "MUSTER_BINARY="+filepath.Join(bin, "muster"), "HOME="+dir, "USER=tester",
		"METAFLOW_USER=tester", "OMP_NUM_THREADS=1", "PATH="+filepath.Join(venv, "bin")+":"+os.Getenv("PATH")), env...)
	err := cmd.Run()
	if _, failed := err.(*exec.ExitError); err != nil && !failed {
		t.Fatal(err)
	}
	worked := regexp.MustCompile(`worked .*`).FindAllString(said.String(), -1)
	return cmd.ProcessState.String() + " " + strings.Join(worked, ", "), said.String()
}
