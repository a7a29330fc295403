package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/golden"
)

// What muster says to wrong command lines: testdata/wrong.txt has them, and the answers.
func TestWrongUsage(t *testing.T) {
	path, err := filepath.Abs("testdata/wrong.txt")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		for _, prefix := range []string{"PET_", "MUSTER_", "TORCH", "SLURM_", "PYTHON", "LOGLEVEL", "VIRTUAL_ENV", "CONDA_"} {
			if strings.HasPrefix(name, prefix) {
				t.Setenv(name, "")
				os.Unsetenv(name)
			}
		}
	}
	programs := t.TempDir()
	for _, name := range []string{"python3", "tool"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", programs)
	t.Setenv("MUSTER_DEVICES", "0")
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{"ok.py": "", "file": "", "p.yaml": "rules:\n  - {name: a, match: {cause: ooms}, action: retry}\n",
		"job.yaml": "max_restarts: x\nnproc-per-nod: 2\nhang_action: kil\nstandalone: 1\nlive_timeout: [1]\ntee: 9\nenv: {RANK: 1}\ntraining_script_args: [a]\n", "arg.yaml": "nnodes: 2"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir("empty", 0o755); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(want)) {
		line, isCommand := strings.CutPrefix(strings.TrimSpace(line), "$ ")
		if !isCommand {
			continue
		}
		args := strings.Fields(line)
		said, errs := answer(t, args)
		said = strings.NewReplacer(dir, "$WORK", os.Getenv("PATH"), "$BIN").Replace(said)
		got.WriteString("$ " + line + "\n" + said)
		if !strings.HasPrefix(said, "error: ") || !strings.Contains(said, "\nhint: ") || errs != "" {
			t.Errorf("%s: want an error and a hint, got:\n%s%s", line, errs, said)
		}
		for _, jargon := range []string{"strconv", "invalid syntax", "deadline exceeded", "flag provided", "argument --", "invalid literal"} {
			if strings.Contains(said, jargon) {
				t.Errorf("%s: %q is in\n%s", line, jargon, said)
			}
		}
	}
	if *golden.Update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// answer is what a command line that begins with variables has on stderr, and what else is
// wrong with the answer: something on stdout, or status 0.
func answer(t *testing.T, args []string) (said, wrong string) {
	for len(args) > 0 && strings.Contains(args[0], "=") {
		name, value, _ := strings.Cut(args[0], "=")
		before, set := os.LookupEnv(name)
		os.Setenv(name, value)
		defer func() {
			if os.Unsetenv(name); set {
				os.Setenv(name, before)
			}
		}()
		args = args[1:]
	}
	var files [2]*os.File
	for i := range files {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	if status := Run(t.Context(), args, files[0], files[1]); status == 0 {
		wrong = "status 0\n"
	}
	var texts [2]string
	for i, f := range files {
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	return texts[1], wrong + texts[0]
}
