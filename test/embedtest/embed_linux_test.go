package embedtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/test/doctest"
)

const root = "../.."

// built makes a module with all programs and builds them, once; each is a
// directory's name.
var built = sync.OnceValues(func() (bin string, err error) {
	dir, err := os.MkdirTemp("", "embedtest-")
	if err != nil {
		return "", err
	}
	source, err := filepath.Abs(root)
	if err != nil {
		return dir, err
	}
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		return dir, err
	}
	for _, page := range []string{"README.md", "docs/library.md"} {
		for i, program := range programsOf(page) {
			name := filepath.Join(dir, programName(page, i))
			if err := os.Mkdir(name, 0o700); err != nil {
				return dir, err
			}
			if err := os.WriteFile(filepath.Join(name, "main.go"), []byte(program.text), 0o600); err != nil {
				return dir, err
			}
		}
	}
	if err := writeExamples(filepath.Join(dir, "examples")); err != nil {
		return dir, err
	}
	// What muster needs, it needs too; without a network nothing can look that up.
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return dir, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return dir, err
		}
	}
	bin = filepath.Join(dir, "bin")
	for _, args := range [][]string{
		{"mod", "edit", "-module=example.test/embed", "-require=github.com/muster-run/muster@v0.0.0", "-replace=github.com/muster-run/muster@v0.0.0=" + source},
		{"build", "-trimpath", "-ldflags=-s -w", "-o", bin + "/", "./..."},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("go %s: %w\n%s", args[0], err, out)
		}
	}
	return bin, nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	if dir, _ := built(); dir != "" {
		os.RemoveAll(strings.TrimSuffix(dir, "/bin"))
	}
	os.Exit(status)
}

// A program is one that a page shows as a whole, with what it prints, if that is shown.
type program struct{ text, output string }

func programsOf(page string) []program {
	p, err := doctest.Read(root, page)
	if err != nil {
		panic(err)
	}
	var found []program
	for i, b := range p.Blocks {
		if b.Kind != "go" || !strings.HasPrefix(b.Text, "package main\n") {
			continue
		}
		found = append(found, program{text: b.Text})
		if i+1 < len(p.Blocks) && p.Blocks[i+1].Kind == "output" {
			found[len(found)-1].output = p.Blocks[i+1].Text
		}
	}
	return found
}

func programName(page string, i int) string {
	return fmt.Sprintf("%s%d", strings.TrimSuffix(filepath.Base(page), ".md"), i)
}

// alone is a command that runs another as the first of a PID namespace, or why there is
// none.
var alone = sync.OnceValues(func() ([]string, error) {
	args := []string{"--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	out, err := exec.Command("unshare", append(slices.Clone(args), "true")...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return args, nil
})

// command returns the program, to be run in a directory of its own and, since a mistake
// would make it start itself without end, in a PID namespace.
func command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	wrap, err := alone()
	if err != nil {
		t.Skip("needs the right to make a PID namespace:", err)
	}
	cmd := exec.Command("unshare", slices.Concat(wrap, []string{filepath.Join(bin, name)}, args)...)
	cmd.Dir = t.TempDir()
	return cmd
}

// The programs on the pages run a job once, and end.
func TestPages(t *testing.T) {
	const script = "import os\nopen('ranks', 'a').write(os.environ['RANK'] + '\\n')\n"
	for _, page := range []string{"README.md", "docs/library.md"} {
		programs := programsOf(page)
		if len(programs) == 0 {
			t.Errorf("%s shows no program", page)
		}
		for i, program := range programs {
			name := programName(page, i)
			t.Run(name, func(t *testing.T) {
				cmd := command(t, name)
				if err := os.WriteFile(filepath.Join(cmd.Dir, "train.py"), []byte(script), 0o600); err != nil {
					t.Fatal(err)
				}
				var stdout, stderr strings.Builder
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				if err := cmd.Run(); err != nil {
					t.Fatalf("%v\n%s", err, stderr.String())
				}
				if strings.Contains(stderr.String(), "guard") {
					t.Errorf("the program has no guard:\n%s", stderr.String())
				}
				if program.output != "" {
					if d := cmp.Diff(program.output, stdout.String()); d != "" {
						t.Error(d)
					}
					return
				}
				if d := cmp.Diff([]string{"0", "1"}, sortedLines(t, filepath.Join(cmd.Dir, "ranks"))); d != "" {
					t.Errorf("the ranks that ran:\n%s", d)
				}
			})
		}
	}
}

// A program whose main knows nothing of muster is not started again, and its own
// children are its own.
func TestEmbed(t *testing.T) {
	cmd := command(t, "embed")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := "main has not called process.GuardMain"; !strings.Contains(string(out), want) {
		t.Errorf("the log does not say %q:\n%s", want, out)
	}
	want := []string{"job SUCCEEDED", "long: <nil>", "main", "short: exit status 7", "worker", "worker"}
	if d := cmp.Diff(want, sortedLines(t, filepath.Join(filepath.Dir(cmd.Args[len(cmd.Args)-1]), "notes"))); d != "" {
		t.Error(d)
	}
}

func sortedLines(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(strings.SplitSeq(strings.TrimSpace(string(text)), "\n"))
}
