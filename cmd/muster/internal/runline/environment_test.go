package runline

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/format/text"
)

func TestEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.env")
	text := "# of the site\n\nA=1\r\nB= x # y\n  # more\nC=$A\"q\"\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, errs := parseLine([]string{"--env", "A=2", "--env-file", file, "--env=D=a=b,c", "--env", "HERE", "--env", "E=", "s.py"})
	lookup := func(name string) (string, bool) { return "of " + name, name == "HERE" }
	v, bad := weigh(l, lookup)
	got, more := v.environment(lookup)
	if errs = append(append(errs, bad...), more...); errs != nil {
		t.Fatal(errs)
	}
	if diff := cmp.Diff([]string{"A=1", "B= x # y", `C=$A"q"`, "A=2", "D=a=b,c", "HERE=of HERE", "E="}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestEnvironmentErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.env")
	if err := os.WriteFile(file, []byte("A=1\nhunter2\nexport B=hunter2\n=hunter2\nMASTER_PORT=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := values{"env-file": []string{file, file + "x"}, "env": []string{"UNSET", "RANK=3", "PET_NNODES=2", "MUSTER_TOKEN=hunter2", "A B=1", "N=\x00"}}
	_, errs := v.environment(func(string) (string, bool) { return "", false })
	want := []string{
		file + ":2: a line without '='; want KEY=VALUE",
		file + ":3: 'export B' is not a variable name; leave export out",
		file + ":4: '' is not a variable name; want KEY=VALUE",
		file + ":5: muster sets MASTER_PORT for each worker, so it cannot be given; leave it out",
		"--env-file: open " + file + "x: no such file or directory",
		"--env: UNSET is not set here; set it, or give a value: --env UNSET=VALUE",
		"--env: muster sets RANK for each worker, so it cannot be given; leave it out",
		"--env: muster reads PET_NNODES itself, workers do not; use --nnodes",
		"--env: workers do not get MUSTER_TOKEN; set it in muster's own environment",
		"--env: 'A B' is not a variable name; want KEY=VALUE",
		"--env: the value of N has a NUL byte, which no variable can have; remove it",
	}
	if diff := cmp.Diff(want, texts(errs)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Whatever muster gives a worker cannot be given with --env, but what the environment
// may override.
func TestVariablesOfWorkersAreRefused(t *testing.T) {
	cmd := exec.Command(os.Args[0], "run", "--log-dir", os.DevNull, "--nproc-per-node=2", "--no-python", "env")
	cmd.Args[0] = "muster"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found := 0
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(line, "=")
		refused := checkVariable(name+"=x") != nil
		if free := slices.Contains([]string{"PATH", "GORACE", "OMP_NUM_THREADS", "PYTHONPATH", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}, name); free == refused {
			t.Errorf("%s: refused is %t", name, refused)
		}
		found++
	}
	if found < 20 {
		t.Errorf("only %d variables: %s", found, out)
	}
}

// A worker has each variable once, with the value that --env gives it.
func TestEnvironmentOfWorkers(t *testing.T) {
	cmd := exec.Command(os.Args[0], "run", "-q", "--log-dir", os.DevNull, "--no-python", "--env", "QA=1", "--env", "QA=5", "env")
	cmd.Args[0] = "muster"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "QA=0"}
	out, err := cmd.Output()
	got := slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool { return !strings.HasPrefix(line, "QA=") })
	if err != nil || !slices.Equal(got, []string{"QA=5"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// What sets options of this agent, and what names its interpreter, are not for the jobs that its workers start.
func TestOwnVariablesStayHere(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "job.yaml")
	if err := os.WriteFile(config, []byte("max_restarts: 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "run", "--log-dir", os.DevNull, "--no-python", "env")
	cmd.Args[0] = "muster"
	kept := []string{"MUSTER_BINARY=/b", "PET_MONITOR_INTERVAL=2", "PYTHON_EXEC=/py"}
	cmd.Env = slices.Concat(kept, []string{"PATH=" + os.Getenv("PATH"), "MUSTER_CONFIG=" + config, "MUSTER_QUIET=1",
		"MUSTER_HANG_TIMEOUT=600", "MUSTER_INTERPRETER=/nosuch/python"})
	out, err := cmd.CombinedOutput()
	got := slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		return !strings.HasPrefix(name, "MUSTER_") && !strings.HasPrefix(name, "PET_") && name != "PYTHON_EXEC" || agent.SetsVariable(name)
	})
	slices.Sort(got)
	if diff := cmp.Diff(kept, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s%s", err, diff, out)
	}
}

func TestSecretNames(t *testing.T) {
	got := text.CommandLine([]string{"HF_TOKEN=s", "WANDB_API_KEY=s", "db_password=s", "AWS_SECRET_ACCESS_KEY=s", "HF_TOKEN", "TOKENIZERS_PARALLELISM=false", "MAX_TOKENS=3"})
	want := "HF_TOKEN=*** WANDB_API_KEY=*** db_password=*** AWS_SECRET_ACCESS_KEY=*** HF_TOKEN TOKENIZERS_PARALLELISM=false MAX_TOKENS=3"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func texts(errs []error) []string {
	var list []string
	for _, err := range errs {
		list = append(list, err.Error())
	}
	return list
}
