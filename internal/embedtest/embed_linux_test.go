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

	"github.com/muster-run/muster/internal/doctest"
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
		for i, text := range programsOf(page) {
			name := filepath.Join(dir, programName(page, i))
			if err := os.Mkdir(name, 0o700); err != nil {
				return dir, err
			}
			if err := os.WriteFile(filepath.Join(name, "main.go"), []byte(text), 0o600); err != nil {
				return dir, err
			}
		}
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
		{"build", "-ldflags=-s -w", "-o", bin + "/", "./..."},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "CGO_ENABLED=0")
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

// programsOf are the whole programs that a page shows.
func programsOf(page string) []string {
	p, err := doctest.Read(root, page)
	if err != nil {
		panic(err)
	}
	var texts []string
	for _, b := range p.Blocks {
		if b.Kind == "go" && strings.HasPrefix(b.Text, "package main\n") {
			texts = append(texts, b.Text)
		}
	}
	return texts
}

func programName(page string, i int) string {
	return fmt.Sprintf("%s%d", strings.TrimSuffix(filepath.Base(page), ".md"), i)
}

// command returns the program, to be run in a directory of its own and, since a mistake
// would make it start itself without end, as the first of a PID namespace.
func command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	alone := []string{"--map-root-user", "--user", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() == 0 {
		alone = alone[2:]
	}
	if out, err := exec.Command("unshare", append(slices.Clone(alone), "true")...).CombinedOutput(); err != nil {
		t.Skipf("needs the right to make a PID namespace: %v: %s", err, out)
	}
	cmd := exec.Command("unshare", append(append(alone, filepath.Join(bin, name)), args...)...)
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
		for i := range programs {
			name := programName(page, i)
			t.Run(name, func(t *testing.T) {
				cmd := command(t, name)
				if err := os.WriteFile(filepath.Join(cmd.Dir, "train.py"), []byte(script), 0o600); err != nil {
					t.Fatal(err)
				}
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if strings.Contains(string(out), "guard") {
					t.Errorf("the program has no guard:\n%s", out)
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
	if d := cmp.Diff(want, sortedLines(t, filepath.Join(filepath.Dir(cmd.Args[slices.Index(cmd.Args, "--mount-proc")+1]), "notes"))); d != "" {
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
