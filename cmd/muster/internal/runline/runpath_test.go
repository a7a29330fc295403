package runline

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/format/text"
)

// runPath runs a script as --run-path does and returns its output, exit status
// and error file.
func runPath(t *testing.T, script string, args ...string) (out string, status int, errorFile string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "s.py")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "error.json")
	cmd := exec.Command(python, append([]string{"-u", "-c", runPathCode, path}, args...)...)
	cmd.Env = append(os.Environ(), "TORCHELASTIC_ERROR_FILE="+file)
	said, err := cmd.Output()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(file)
	return strings.ReplaceAll(string(said), dir, "DIR"), cmd.ProcessState.ExitCode(), string(data)
}

func TestRunPath(t *testing.T) {
	out, status, file := runPath(t, "import sys; print(__name__, __file__, sys.argv, sys.path[0] == '')", "a", "-b", "--", "$x")
	want := "__main__ DIR/s.py ['DIR/s.py', 'a', '-b', '--', '$x'] False\n"
	if out != want || status != 0 || file != "" {
		t.Errorf("got %q, status %d, error file %q; want %q", out, status, file, want)
	}
}

// What others have put into the current directory is not imported. (From 3.11 on Python has runpy
// in itself, so that only an older one would.)
func TestRunPathIgnoresTheDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"contextlib", "functools", "runpy", "types", "warnings"} {
		if err := os.WriteFile(filepath.Join(dir, name+".py"), []byte("raise SystemExit('shadowed')"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	if out, status, _ := runPath(t, "print('here')"); out != "here\n" || status != 0 {
		t.Errorf("got %q, status %d", out, status)
	}
}

// The code is an argument like any other, so nothing in it may look like a macro.
func TestRunPathHasNoMacro(t *testing.T) {
	if got := text.Substitute([]string{runPathCode}, 7, map[string]string{"rank": "7", "role_name": "r", "hostname": "h"})[0]; got != runPathCode {
		t.Errorf("became\n%s", got)
	}
}

func TestRunPathRecordsExceptions(t *testing.T) {
	_, status, file := runPath(t, "def f():\n  raise ValueError('boom é\\nsecond')\nf()")
	var got struct {
		Message struct {
			Message   string
			ExtraInfo struct {
				Callstack string `json:"py_callstack"`
				Timestamp string
			}
		}
	}
	if err := json.Unmarshal([]byte(file), &got); err != nil {
		t.Fatalf("%v: %s", err, file)
	}
	if diff := cmp.Diff("ValueError: boom é\nsecond", got.Message.Message); diff != "" || status != 1 {
		t.Errorf("status %d, message (-want +got):\n%s", status, diff)
	}
	extra := got.Message.ExtraInfo
	if !strings.HasPrefix(extra.Callstack, "Traceback (most recent call last):\n") || !strings.Contains(extra.Callstack, "in f\n") || len(extra.Timestamp) < 10 {
		t.Errorf("extra info %+v", extra)
	}
	if strings.Contains(file, "é") {
		t.Errorf("not ASCII: %s", file)
	}
}

// Threads that torch has may still be at work when the script ends: they have 0.1 s, after
// what the script does at its exit.
func TestRunPathLetsThreadsEnd(t *testing.T) {
	for _, end := range []string{"", "sys.exit(0)", "sys.exit(3)", "raise ValueError"} {
		for torch, want := range map[string]string{"": "at exit\n", `sys.modules["torch"] = sys`: "at exit\nsleeps 0.1\n"} {
			out, _, _ := runPath(t, `import atexit, sys, time
`+torch+`
time.sleep = lambda seconds: print("sleeps", seconds)
atexit.register(print, "at exit")
`+end)
			if out != want {
				t.Errorf("%q, %q: %q, want %q", torch, end, out, want)
			}
		}
	}
}

func TestRunPathExits(t *testing.T) {
	for script, want := range map[string]int{"import sys; sys.exit(3)": 3, "raise SystemExit": 0, "pass": 0, "x(": 1} {
		_, status, file := runPath(t, script)
		if status != want {
			t.Errorf("%s: status %d, want %d", script, status, want)
		}
		if recorded := file != ""; recorded != (script == "x(") {
			t.Errorf("%s: error file %q", script, file)
		}
	}
}
