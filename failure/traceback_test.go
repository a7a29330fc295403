package failure_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-run/muster/failure"
)

const simple = `Traceback (most recent call last):
  File "a.py", line 3, in <module>
    f(1)
    ~^^^
  File "a.py", line 2, in f
    raise ValueError("boom\nsecond line")
ValueError: boom
second line`

func TestLift(t *testing.T) {
	ranked := "[rank1]: " + strings.ReplaceAll(simple, "\n", "\n[rank1]: ")
	tests := []struct {
		name, stderr string
		exitCode     int
		want         failure.Traceback // an empty Text stands for all of stderr
	}{
		{"simple", simple, 1, failure.Traceback{Exception: "ValueError: boom", Last: true}},
		{"after other output", "start\n  File\n" + simple + "\n\n", 1, failure.Traceback{Exception: "ValueError: boom", Text: simple, Last: true}},
		{"after a progress bar", "  0%|   | 0/9\r 50%|## | 5/9 [00:01<00:02]" + simple, 1, failure.Traceback{Exception: "ValueError: boom", Text: simple, Last: true}},
		{"the last of two", strings.Replace(simple, "boom", "first", 1) + "\nretrying\n\n\n" + simple, 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple, Last: true}},
		{"before a log line", simple + "\n[W1121 10:11:12.123456789 ProcessGroupNCCL.cpp:1] destroy_process_group() was not called", 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple}},
		{"in colour", strings.NewReplacer("a.py", "\x1b[35ma.py\x1b[0m", "ValueError:", "\x1b[1;35mValueError\x1b[0m:").Replace(simple), 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple, Last: true}},
		{"Windows line ends", strings.ReplaceAll(simple, "\n", "\r\n"), 1, failure.Traceback{Exception: "ValueError: boom", Text: simple, Last: true}},
		{"torch's prefix", ranked + "\n", 1, failure.Traceback{Exception: "ValueError: boom", Text: simple, Last: true}},
		{"torch's prefix, interleaved", "x\n" + strings.ReplaceAll(ranked, "\n", "\nnoise: from a thread\n") + "\nnoise", 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple}},
		{"torch's prefix after one without", strings.Replace(simple, "boom", "first", 1) + "\n" + ranked, 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple, Last: true}},
		{"some other prefix", "host7> " + strings.ReplaceAll(simple, "\n", "\nhost7> ") + "\nelse", 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple}},
		{"noise within", strings.Replace(simple, "  File \"a.py\", line 2", "Epoch 3/10\n  File \"a.py\", line 2", 1), 1,
			failure.Traceback{Exception: "ValueError: boom", Last: true}},
		{"noise like an exception's name", "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\nWARNING: slow\n  File \"a.py\", line 4, in f\nKeyError: 'x'", 1,
			failure.Traceback{Exception: "KeyError: 'x' in f (a.py:4)", Last: true}},
		{"no message", "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\nAssertionError", 1,
			failure.Traceback{Exception: "AssertionError in <module> (a.py:3)", Last: true}},
		{"qualified name", "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n__main__.f.<locals>.Größe: x", 1,
			failure.Traceback{Exception: "__main__.f.<locals>.Größe: x", Last: true}},
		{"chained", strings.Replace(simple, "boom", "first", 1) + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + simple, 1,
			failure.Traceback{Exception: "ValueError: boom", Last: true}},
		{"from", strings.Replace(simple, "boom", "first", 1) + "\n\nThe above exception was the direct cause of the following exception:\n\n" + simple, 1,
			failure.Traceback{Exception: "ValueError: boom", Last: true}},
		{"chained, torch's prefix", "[rank0]: " + strings.ReplaceAll(strings.ReplaceAll(
			simple+"\n\nDuring handling of the above exception, another exception occurred:\n\n"+simple, "\n", "\n[rank0]: "), "[rank0]: \n", "\n"), 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + simple, Last: true}},
		{"cut off", "    g(x)\n  File \"a.py\", line 3, in <module>\n    f(1)\nValueError: boom\nsecond line", 1, failure.Traceback{
			Text:      "[... the beginning is lost ...]\n  File \"a.py\", line 3, in <module>\n    f(1)\nValueError: boom\nsecond line",
			Exception: "ValueError: boom", Last: true}},
		{"cut off within a line", "ine 9, in g\n  File \"a.py\", line 3, in <module>\n    f(1)\nValueError: boom", 1, failure.Traceback{
			Text:      "[... the beginning is lost ...]\n  File \"a.py\", line 3, in <module>\n    f(1)\nValueError: boom",
			Exception: "ValueError: boom", Last: true}},
		{"syntax error", "hello\n  File \"a.py\", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax", 1, failure.Traceback{
			Text: "  File \"a.py\", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax", Exception: "SyntaxError: invalid syntax", Last: true}},
		{"syntax error on import", "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    import b\n  File \"b.py\", line 1\n    x x\n    ^^^\nSyntaxError: invalid syntax", 1,
			failure.Traceback{Exception: "SyntaxError: invalid syntax", Last: true}},
		{"a thread's, before the real one", simple + "\nException in thread Thread-1 (run):\n" + strings.ReplaceAll(simple, "boom", "thread"), 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple}},
		{"only a thread's", "Exception in thread Thread-1 (run):\n" + simple, 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple, Last: true}},
		{"ignored in a destructor", simple + "\nException ignored in: <function A.__del__ at 0x7f>\n" + strings.ReplaceAll(simple, "boom", "del"), 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple}},
		{"ignored by Cython, which says so between two copies", simple + "\n\n" + strings.ReplaceAll(simple, "boom", "unload") +
			"\nException ignored in: 'cupy.cuda.function.Module.__dealloc__'\n" + strings.ReplaceAll(simple, "boom", "unload"), 1,
			failure.Traceback{Exception: "ValueError: boom", Text: simple}},
		{"of a data loader's worker", "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    next(it)\n" +
			"RuntimeError: Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n" +
			"  File \"b.py\", line 2, in __getitem__\n    raise ValueError(i)\nValueError: 7\n", 1,
			failure.Traceback{Exception: "RuntimeError: Caught ValueError in DataLoader worker process 0. ValueError: 7 in __getitem__ (b.py:2): raise ValueError(i)", Last: true}},
		{"of multiprocessing.spawn", "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    spawn(f)\n" +
			"torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n" +
			"  File \"b.py\", line 2, in f\n    raise ValueError(7)\nValueError: 7\n", 1,
			failure.Traceback{Exception: "torch.multiprocessing.spawn.ProcessRaisedException: ValueError: 7 in f (b.py:2): raise ValueError(7)", Last: true}},
		{"group", `  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  |     raise ExceptionGroup("eg", [ValueError(1), TypeError("t")])
  | ExceptionGroup: eg (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 9, in f
    | ValueError: 1
    +---------------- 2 ----------------
    | TypeError: t
    +------------------------------------`, 1, failure.Traceback{Exception: "ExceptionGroup: eg (2 sub-exceptions): ValueError: 1; TypeError: t", Last: true}},
		{"faulthandler", `hello
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "t.py", line 1 in wait

Current thread 0x00007f02 (most recent call first):
  File "a.py", line 3 in f
  File "a.py", line 4 in <module>

Extension modules: torch._C, numpy (total: 2)
`, -11, failure.Traceback{Kind: failure.Faulthandler, Exception: "Segmentation fault in f (a.py:3)", Last: true, Text: `Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "t.py", line 1 in wait

Current thread 0x00007f02 (most recent call first):
  File "a.py", line 3 in f
  File "a.py", line 4 in <module>

Extension modules: torch._C, numpy (total: 2)`}},
		{"C++", "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: misaligned address\nException raised from f at g.cpp:9 (most recent call first):\nframe #0: c10::Error\n", -6,
			failure.Traceback{Kind: failure.Native, Exception: "C++ exception c10::Error: CUDA error: misaligned address", Last: true}},
		{"C++ and faulthandler", "terminate called after throwing an instance of 'int'\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File \"a.py\", line 3 in f\n", -6,
			failure.Traceback{Kind: failure.Native, Exception: "C++ exception int, in f (a.py:3)", Last: true,
				Text: "terminate called after throwing an instance of 'int'\n\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File \"a.py\", line 3 in f"}},
		{"crash after a traceback", simple + "\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File \"a.py\", line 3 in f", -6,
			failure.Traceback{Kind: failure.Faulthandler, Exception: "Aborted in f (a.py:3)", Last: true,
				Text: "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File \"a.py\", line 3 in f"}},
		{"Go", "panic: boom [recovered]\n\tpanic: boom\n\ngoroutine 1 [running]:\nmain.main()\n\t/x/main.go:3 +0x1d\nexit status 2\n", 2,
			failure.Traceback{Kind: failure.GoPanic, Exception: "panic: boom [recovered]", Last: true}},
		{"Go, out of things to do", "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [select]:\n", 2,
			failure.Traceback{Kind: failure.GoPanic, Exception: "fatal error: all goroutines are asleep - deadlock!", Last: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want.Text == "" {
				tt.want.Text = strings.TrimRight(tt.stderr, "\n")
			}
			if tt.want.Kind == "" {
				tt.want.Kind = failure.Python
			}
			got, ok := failure.Lift([]byte(tt.stderr), tt.exitCode)
			if !ok {
				t.Fatal("found nothing")
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreUnexported(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestLiftNothing(t *testing.T) {
	for _, stderr := range []string{
		"", "\n\n", "hello\nEpoch: 3\n",
		"Traceback (most recent call last):",
		"Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    f(1)\n",
		"Stack (most recent call last):\n  File \"a.py\", line 3, in <module>\n    f(1)\nEpoch: 3\n",
		"panic: buy now\nEpoch: 3\n",
		"a.py:3: UserWarning: x\n  warnings.warn(\nINFO: y\n",
	} {
		if got, ok := failure.Lift([]byte(stderr), 1); ok {
			t.Errorf("in %q found %+v", stderr, got)
		}
	}
}

// pythons returns the interpreters that pyenv has, and the one in PATH.
func pythons(t *testing.T) []string {
	root := os.Getenv("PYENV_ROOT")
	if home, err := os.UserHomeDir(); root == "" && err == nil {
		root = filepath.Join(home, ".pyenv")
	}
	found, _ := filepath.Glob(filepath.Join(root, "versions", "3.*", "bin", "python3"))
	if path, err := exec.LookPath("python3"); err == nil && len(found) == 0 {
		found = append(found, path)
	}
	if len(found) == 0 {
		t.Skip("needs Python: none in PATH, none of pyenv")
	}
	return found
}

// What real interpreters print is found whole, with the exception they died of.
func TestLiftFromPython(t *testing.T) {
	scripts := []struct {
		name, code string
		since      int    // Python 3.<since>
		want       string // the exception, a regular expression
		exit       int
	}{
		{"plain", "def f():\n  raise ValueError('boom\\n\\nthird line')\nf()", 0, `^ValueError: boom$`, 1},
		{"chained", "try:\n  {}['k']\nexcept KeyError:\n  1/0", 0, `^ZeroDivisionError: division by zero$`, 1},
		{"from", "try:\n  {}['k']\nexcept KeyError as e:\n  raise RuntimeError('while looking') from e", 0, `^RuntimeError: while looking$`, 1},
		{"syntax", "x = 1\ndef f(:\n  pass\n", 0, `^SyntaxError: .*`, 1},
		{"indentation", "def f():\npass\n", 0, `^IndentationError: expected an indented block.*`, 1},
		{"eval", "eval('1 +')", 0, `^SyntaxError: .*`, 1},
		{"recursion", "def f(): f()\nf()", 0, `^RecursionError: maximum recursion depth exceeded.*`, 1},
		{"long recursion", "import sys; sys.setrecursionlimit(5000)\ndef g(n):\n  return f(n)\ndef f(n):\n  if n == 0: raise ValueError('bottom')\n  return g(n-1)\nf(1500)", 0, `^ValueError: bottom$`, 1},
		{"no message", "assert False", 0, `^AssertionError in <module> \(.*prog\.py:1\): assert False$`, 1},
		{"own class", "class Größe(Exception): pass\nraise Größe('é')", 0, `^(__main__\.)?Größe: é$`, 1},
		{"notes", "e = ValueError('boom'); e.add_note('a note'); raise e", 11, `^ValueError: boom$`, 1},
		{"group", "raise ExceptionGroup('eg', [ValueError(1), ExceptionGroup('in', [TypeError('t')])])", 11,
			`^ExceptionGroup: eg \(2 sub-exceptions\): ValueError: 1; TypeError: t$`, 1},
		{"chained group", "try:\n  1/0\nexcept ZeroDivisionError as e:\n  raise ExceptionGroup('eg', [e])", 11, `^ExceptionGroup: eg \(1 sub-exception\): ZeroDivisionError.*`, 1},
		{"module", "import nope_nope", 0, `^ModuleNotFoundError: No module named 'nope_nope'$`, 1},
		{"destructor", "class A:\n  def __del__(self): 1/0\na = A()\nraise ValueError('boom')", 0, `^ValueError: boom$`, 1},
		{"process pool", "import concurrent.futures as c, math\nif __name__ == '__main__':\n  with c.ProcessPoolExecutor(1) as p: p.submit(math.sqrt, -1).result()", 0, `^ValueError: (math domain error|expected a nonnegative input.*)$`, 1},
		{"signal", "import faulthandler, os, signal\nfaulthandler.enable()\ndef f(): os.kill(os.getpid(), signal.SIGSEGV)\nf()", 0, `^Segmentation fault in f \(.*prog\.py:3\)$`, -11},
		{"abort", "import faulthandler, os\nfaulthandler.enable()\nos.abort()", 0, `^Aborted in <module> \(.*prog\.py:3\)$`, -6},
	}
	dir := t.TempDir()
	for _, python := range pythons(t) {
		out, err := exec.Command(python, "-c", "import sys; print(sys.version_info[1])").Output()
		minor := 0
		if _, err2 := fmt.Sscan(string(out), &minor); err != nil || err2 != nil {
			t.Errorf("%s: %v, %v", python, err, err2)
			continue
		}
		for _, s := range scripts {
			if minor < s.since {
				continue
			}
			t.Run(fmt.Sprintf("3.%d/%s", minor, s.name), func(t *testing.T) {
				prog := filepath.Join(dir, "prog.py")
				if err := os.WriteFile(prog, []byte(s.code), 0o600); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(python, prog)
				cmd.Env = append(os.Environ(), "PYTHONIOENCODING=utf-8", "PYTHONDONTWRITEBYTECODE=1")
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				cmd.Run() // which fails; the code follows
				exit := cmd.ProcessState.ExitCode()
				if exit == -1 {
					exit = s.exit
				}
				if exit != s.exit {
					t.Fatalf("exit code %d, want %d: %s", exit, s.exit, stderr.Bytes())
				}
				tail := stderr.Bytes()
				if len(tail) > 64<<10 {
					tail = tail[len(tail)-64<<10:]
				}
				got, ok := failure.Lift(tail, exit)
				if !ok || !regexp.MustCompile(s.want).MatchString(got.Exception) {
					t.Fatalf("got %q, %v, want %s, of:\n%s", got.Exception, ok, s.want, stderr.Bytes())
				}
				cut := strings.HasPrefix(got.Text, "[... the beginning is lost")
				if cut != (len(tail) < stderr.Len()) {
					t.Errorf("cut %v; stderr has %d bytes", cut, stderr.Len())
				}
				// All that Python printed belongs to it, bar what the
				// destructor did.
				if text := strings.TrimRight(stderr.String(), "\n"); !cut && got.Text != text && !slices.Contains([]string{"destructor", "process pool"}, s.name) {
					t.Errorf("-want +got:\n%s", cmp.Diff(text, got.Text))
				}
			})
		}
	}
}

func FuzzLift(f *testing.F) {
	f.Add([]byte(simple), 1)
	f.Add([]byte("[rank0]: "+strings.ReplaceAll(simple, "\n", "\n[rank0]: ")), 1)
	f.Add([]byte("  + Exception Group Traceback (most recent call last):\n  | E: x\n  +-+--- 1 ---\n    | V: 1\n    +---"), 1)
	f.Add([]byte("Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File \"a.py\", line 3 in f"), -6)
	f.Add([]byte("terminate called after throwing an instance of 'int'\n  what():  x\n"), -6)
	f.Add([]byte("panic: x\n\ngoroutine 1 [running]:\n"), 2)
	f.Add([]byte("\x1b[31mTraceback (most recent call last):\x1b]0;t\x07\r\n  File \"\xff\", line 1, in x\n\xff: \x00"), 1)
	f.Fuzz(func(t *testing.T, stderr []byte, exitCode int) {
		if exitCode < -64 || exitCode > 255 {
			return
		}
		got, ok := failure.Lift(stderr, exitCode)
		if ok && (got.Exception == "" || got.Text == "") {
			t.Errorf("found %+v", got)
		}
		checkFailure(t, failure.New(failure.Observation{ExitCode: exitCode, Ended: noon, Evidence: failure.Evidence{StderrTail: stderr}}))
	})
}
