package wheeltest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/test/doctest"
)

// root is the source tree.
const root = "../.."

// The suite builds and installs once.
var shared struct {
	dir    string // of the suite
	dist   string // with the wheel
	built  string // with the binaries in it, by platform
	python func() (string, error)
}

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "wheeltest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	shared.dir, shared.dist, shared.built = dir, filepath.Join(dir, "dist"), filepath.Join(dir, "built")
	shared.python = sync.OnceValues(func() (string, error) { return exec.LookPath("python3") })
	return m.Run()
}

var wheel = sync.OnceValues(func() (string, error) {
	cmd := exec.Command(filepath.Join(root, "internal/tools/wheel.sh"), shared.dist, platform)
	cmd.Env = append(os.Environ(), "BUILT="+shared.built)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("wheel.sh: %w\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(shared.dist, "*.whl"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("wheels %v, %v; want one", found, err)
	}
	return found[0], nil
})

// A python is an interpreter that is at hand.
type python struct {
	path         string
	major, minor int
}

func (p python) String() string { return fmt.Sprintf("%d.%d", p.major, p.minor) }

// pythons are those that the package supports, oldest first.
var pythons = sync.OnceValue(func() []python {
	home, _ := os.UserHomeDir()
	installed, _ := filepath.Glob(filepath.Join(home, ".pyenv/versions/3.*/bin/python3"))
	candidates := append(installed, "python3", "/usr/bin/python3")
	for minor := 8; minor < 20; minor++ {
		candidates = append(candidates, fmt.Sprintf("python3.%d", minor))
	}
	var found []python
	for _, name := range candidates {
		if slices.ContainsFunc(found, func(p python) bool { return name == "python"+p.String() }) {
			continue // pyenv's is a script that takes a while to find the one we have
		}
		out, err := exec.Command(name, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])").Output()
		if err != nil {
			continue // not installed, or not complete
		}
		p := python{path: name}
		if _, err := fmt.Sscan(string(out), &p.major, &p.minor); err != nil || p.major != 3 || p.minor < 8 {
			continue
		}
		if !slices.ContainsFunc(found, func(o python) bool { return o.minor == p.minor }) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b python) int { return a.minor - b.minor })
	return found
})

// output runs a program in dir and returns what it printed, on both streams.
func output(t *testing.T, dir string, env []string, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PYTHONPATH=") || strings.HasPrefix(kv, "MUSTER_BINARY=") || strings.HasPrefix(kv, "VIRTUAL_ENV=")
	}), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return string(out)
}

// environments has a virtual environment with the wheel for each interpreter.
var environments sync.Map // of path to func() (string, error)

// environment makes a virtual environment with pip, and has pip install the wheel.
func environment(t *testing.T, p python) string {
	t.Helper()
	once, _ := environments.LoadOrStore(p.path, sync.OnceValues(func() (string, error) {
		path, err := wheel()
		if err != nil {
			return "", err
		}
		dir := filepath.Join(shared.dir, "venv"+p.String())
		for _, argv := range [][]string{
			{p.path, "-m", "venv", dir},
			{filepath.Join(dir, "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-index", path},
		} {
			if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
				return "", fmt.Errorf("%v: %w\n%s", argv, err, out)
			}
			if err := pretendPySpy(dir); err != nil {
				return "", err
			}
		}
		return dir, nil
	}))
	dir, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// pretendPySpy makes pip believe that py-spy is installed, which the tests need no network for.
func pretendPySpy(dir string) error {
	found, err := filepath.Glob(filepath.Join(dir, "lib/python*/site-packages"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("site-packages %v, %v", found, err)
	}
	info := filepath.Join(found[0], "py_spy-0.4.0.dist-info")
	if err := os.MkdirAll(info, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(info, "METADATA"), []byte("Metadata-Version: 2.1\nName: py-spy\nVersion: 0.4.0\n"), 0o644)
}

// ends are the oldest and the newest interpreter.
func ends(t *testing.T) []python {
	t.Helper()
	all := pythons()
	if len(all) == 0 {
		t.Skip("needs Python 3.8 or newer, with venv and ensurepip")
	}
	return slices.CompactFunc([]python{all[0], all[len(all)-1]}, func(a, b python) bool { return a == b })
}

// unittest runs modules of python/tests and says how many tests ran.
func unittest(t *testing.T, interpreter string, env []string, modules ...string) {
	t.Helper()
	source, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	temp, err := os.MkdirTemp(shared.dir, "t") // for the logs that failed jobs keep
	if err != nil {
		t.Fatal(err)
	}
	env = append(env, "MUSTER_SOURCE="+source, "PYTHONDONTWRITEBYTECODE=1", "TMPDIR="+temp)
	out := output(t, filepath.Join(source, "python/tests"), env, append([]string{interpreter, "-m", "unittest"}, modules...)...)
	ran := regexp.MustCompile(`Ran (\d+) tests? in (\S+)`).FindStringSubmatch(out)
	if ran == nil {
		t.Fatalf("unittest said\n%s", out)
	}
	if n, _ := strconv.Atoi(ran[1]); n == 0 {
		t.Errorf("no test ran: %s", out)
	}
	t.Logf("%s: %s", interpreter, ran[0])
}

// modules are the test modules that need no PyTorch.
func modules(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "python/tests/test_*.py"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	var names []string
	for _, path := range found {
		if name := strings.TrimSuffix(filepath.Base(path), ".py"); name != "test_torch" && name != "test_live" {
			names = append(names, name)
		}
	}
	return names
}

// launching are the test modules whose jobs may have a template of warm starts.
var launching = []string{"test_launch", "test_run"}

// Jobs do the same where workers are forks of a template.
func TestPackageWarm(t *testing.T) {
	t.Parallel()
	all := ends(t)
	if os.Getenv("MUSTER_JUDGE") == "" {
		all = all[len(all)-1:]
	}
	for _, p := range all {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			dir := environment(t, p)
			unittest(t, filepath.Join(dir, "bin/python"), []string{"MUSTER_WARM=1", "XDG_CACHE_HOME=" + t.TempDir()}, launching...)
		})
	}
}

// In `make test` the oldest interpreter starts its jobs cold, the newest one warm.
func TestPackage(t *testing.T) {
	t.Parallel()
	for i, p := range ends(t) {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			dir, all := environment(t, p), modules(t)
			if i > 0 && os.Getenv("MUSTER_JUDGE") == "" {
				all = slices.DeleteFunc(all, func(name string) bool { return slices.Contains(launching, name) })
			}
			unittest(t, filepath.Join(dir, "bin/python"), nil, all...)
		})
	}
}

// PyTorch's interpreter runs the installed package.
func TestBesideTorch(t *testing.T) {
	t.Parallel()
	interpreter := pypeer.Python(t)
	dir := environment(t, ends(t)[0])
	site, err := filepath.Glob(filepath.Join(dir, "lib/python*/site-packages/muster"))
	if err != nil || len(site) != 1 {
		t.Fatalf("installed in %v, %v", site, err)
	}
	unittest(t, interpreter, []string{"PYTHONPATH=" + filepath.Dir(site[0])}, "test_torch", "test_live")
}

// pip's own copy of packaging has to agree that the tags fit this system, and that
// nothing is missing.
func TestInstalled(t *testing.T) {
	t.Parallel()
	p := ends(t)[0]
	dir := environment(t, p)
	bin := func(name string) string { return filepath.Join(dir, "bin", name) }
	if got := output(t, dir, nil, bin("python"), "-m", "pip", "check", "--disable-pip-version-check"); !strings.Contains(got, "No broken requirements") {
		t.Errorf("pip check: %s", got)
	}
	path, err := wheel()
	if err != nil {
		t.Fatal(err)
	}
	got := output(t, dir, nil, bin("python"), "-c", `import sys
from pip._vendor.packaging.tags import sys_tags
from pip._vendor.packaging.utils import parse_wheel_filename
name, version, build, tags = parse_wheel_filename(sys.argv[1])
print(name, build, sorted({t.interpreter + "-" + t.abi for t in tags}), bool(tags & set(sys_tags())))`, filepath.Base(path))
	if want := "muster-run () ['py3-none'] True\n"; got != want {
		t.Errorf("packaging: %s, want %s", got, want)
	}
	// What is on the path is the binary, not a script of Python's.
	head := make([]byte, 4)
	f, err := os.Open(bin("muster"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Read(head); err != nil || string(head[:2]) == "#!" {
		t.Errorf("bin/muster begins with %q, %v", head, err)
	}
	direct := output(t, dir, nil, bin("muster"), "version")
	if module := output(t, dir, nil, bin("python"), "-m", "muster", "version"); module != direct {
		t.Errorf("python -m muster version: %s, want %s", module, direct)
	}
	// Nothing is left when it goes.
	other := filepath.Join(t.TempDir(), "target")
	output(t, dir, nil, bin("python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--no-index", "--target", other, path)
	if got := output(t, dir, []string{"PYTHONPATH=" + other}, p.path, "-m", "muster", "version"); got != direct {
		t.Errorf("installed with --target: %s, want %s", got, direct)
	}
}

// With cloudpickle a function need not have a name. It is taken from whichever
// interpreter has it.
func TestCloudpickle(t *testing.T) {
	t.Parallel()
	for _, p := range pythons() {
		out, err := exec.Command(p.path, "-c", "import cloudpickle; print(cloudpickle.__path__[0])").Output()
		if err != nil {
			continue
		}
		dir := t.TempDir()
		if err := os.CopyFS(filepath.Join(dir, "cloudpickle"), os.DirFS(strings.TrimSpace(string(out)))); err != nil {
			t.Fatal(err)
		}
		newest := ends(t)
		venv := environment(t, newest[len(newest)-1])
		unittest(t, filepath.Join(venv, "bin/python"), []string{"PYTHONPATH=" + dir}, "test_launch.Values", "test_launch.Refused")
		return
	}
	t.Skip("needs an interpreter with cloudpickle")
}

// The types are complete. mypy is installed once, where it can be.
func TestTypes(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	find := exec.CommandContext(t.Context(), filepath.Join(root, "internal/tools/mypy.sh"))
	find.Stderr = &said
	mypy, err := find.Output()
	if err != nil {
		t.Skipf("needs mypy: %v: %s", err, said.String())
	}
	output(t, filepath.Join(root, "python"), nil, strings.TrimSpace(string(mypy)), "--strict", "--cache-dir", os.DevNull, "muster", "tests/typed.py")
}

// The commands of the pages, verbatim, and what they say they print.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	if _, err := shared.python(); err != nil || len(pythons()) == 0 {
		t.Skip("needs python3 with venv")
	}
	if platform != "linux/amd64" {
		t.Skip("docs/install.md unpacks the tarball for linux/amd64")
	}
	made, err := firstRelease()
	if err != nil {
		t.Fatal(err)
	}
	for name, least := range map[string]struct{ scripts, compared int }{"docs/install.md": {2, 0}, "docs/python.md": {4, 2}} {
		page, err := doctest.Read(root, name)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for _, from := range []string{made, shared.dist} {
			if err := os.CopyFS(filepath.Join(dir, "dist"), os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
		}
		compared := 0
		for _, script := range page.Scripts() {
			got := stdout(t, dir, script.Text)
			if !script.Compared {
				continue
			}
			compared++
			if diff := cmp.Diff(script.Output, got); diff != "" {
				t.Errorf("%s:%d: output (-documented +got):\n%s", name, script.At, diff)
			}
		}
		if n := len(page.Scripts()); n < least.scripts || compared < least.compared {
			t.Errorf("%d blocks of commands and %d of output in %s", n, compared, name)
		}
	}
}

// stdout runs a shell script and returns what it printed to stdout.
func stdout(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "PIP_NO_DEPS=1")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%s\n%v\n%s%s", script, err, out, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// The script refuses what it cannot build.
func TestUnknownPlatform(t *testing.T) {
	cmd := exec.CommandContext(context.Background(), filepath.Join(root, "internal/tools/wheel.sh"), t.TempDir(), "plan9/none")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "plan9/none") {
		t.Errorf("%v: %s", err, out)
	}
}
