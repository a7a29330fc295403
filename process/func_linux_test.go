package process_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// registerFuncs registers what workers can run, in the test and in the workers.
func registerFuncs() {
	register()
	funcs := map[string]process.Func{
		"extra": func(_ context.Context, input []byte) ([]byte, error) {
			given, err := io.ReadAll(os.NewFile(3, "extra"))
			return append(input, given...), err
		},
		"echo":  func(_ context.Context, input []byte) ([]byte, error) { return input, nil },
		"error": func(context.Context, []byte) ([]byte, error) { return []byte("lost"), errors.New("no luck") },
		"panic": func(context.Context, []byte) ([]byte, error) { panic(fmt.Sprint("out of ", "ideas")) },
		"index": func(_ context.Context, input []byte) ([]byte, error) { return input[:len(input)/2][len(input):], nil },
		"exit":  func(_ context.Context, input []byte) ([]byte, error) { os.Exit(int(input[0])); return nil, nil },
		"goroutine panics": func(context.Context, []byte) ([]byte, error) {
			go panic("elsewhere")
			select {}
		},
		"kill": func(context.Context, []byte) ([]byte, error) {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				return nil, err
			}
			select {}
		},
		"until stopped": func(ctx context.Context, _ []byte) ([]byte, error) {
			testproc.Say("up")
			<-ctx.Done()
			if s, ok := errors.AsType[*process.SignalError](context.Cause(ctx)); ok {
				return []byte(s.Error()), nil
			}
			return nil, ctx.Err()
		},
		"never stops": func(ctx context.Context, _ []byte) ([]byte, error) {
			testproc.Say("up")
			<-ctx.Done()
			for {
				time.Sleep(time.Hour)
			}
		},
		"surroundings": func(context.Context, []byte) ([]byte, error) {
			in, err := io.ReadAll(os.Stdin)
			if err != nil {
				return nil, err
			}
			child := exec.Command(testproc.Program(), testproc.Args("fds", "env:MUSTER_FUNC", "stat")...)
			if err := child.Run(); err != nil {
				return nil, err
			}
			return fmt.Appendf(nil, "%d %q %s", len(in), os.Args, os.Getenv("RANK")), nil
		},
	}
	for name, f := range funcs {
		process.Register(name, f)
	}
}

// calls is a Config of workers that run a function.
func calls(lab *testproc.Lab, name string, inputs ...string) process.Config {
	cfg := process.Config{Name: "default", Func: name, Inputs: map[int][]byte{}, Envs: noEnvs(len(inputs)), Env: lab.Env(), Grace: long}
	for i, input := range inputs {
		cfg.Inputs[i] = []byte(input)
	}
	return cfg
}

func TestFunc(t *testing.T) {
	inModes(t, func(t *testing.T, s *process.Supervisor) {
		lab := testproc.New(t)
		r := wait(t, start(t, s, calls(lab, "echo", "one", "", "\x00\xff\n")))
		if r.IsFailed() {
			t.Errorf("failed: %+v", r.Failures)
		}
		want := map[int][]byte{0: []byte("one"), 1: nil, 2: []byte("\x00\xff\n")}
		if d := cmp.Diff(want, r.ReturnValues(), cmpopts.EquateEmpty()); d != "" {
			t.Error(d)
		}
	})
}

// Programs' workers return nothing; a function's argument is its input.
func TestFuncWithArgs(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	cfg := calls(lab, "echo")
	cfg.Inputs, cfg.Envs = nil, noEnvs(2)
	cfg.Args = map[int][]string{0: {"the argument"}, 1: nil}
	if d := cmp.Diff(map[int][]byte{0: []byte("the argument"), 1: nil}, wait(t, start(t, s, cfg)).ReturnValues(), cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[int][]byte{0: nil}, wait(t, start(t, s, workers(lab, do("exit:0")))).ReturnValues()); d != "" {
		t.Error(d)
	}
}

// What a worker is given as open files has the next numbers, whatever it runs.
func TestExtraFiles(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	extra := map[int][]*os.File{}
	for rank, text := range []string{"", "one", "two"} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
		w.Close()
		defer r.Close()
		if rank > 0 {
			extra[rank] = []*os.File{r, os.Stdin}
		}
	}
	cfg := calls(lab, "echo", "a")
	cfg.ExtraFiles = map[int][]*os.File{1: nil, 0: {nil}}
	if _, err := s.Start(cfg); err == nil || !strings.Contains(err.Error(), "extra files, local rank 1 is not one of {0}") || !strings.Contains(err.Error(), "extra files, local rank 0 ") {
		t.Errorf("got %v", err)
	}
	cfg = calls(lab, "extra", "", "a ", "b ")
	cfg.ExtraFiles = extra
	cfg.ExtraFiles[0] = []*os.File{os.Stdin}
	r := wait(t, start(t, s, cfg))
	want := map[int][]byte{0: nil, 1: []byte("a one"), 2: []byte("b two")}
	if d := cmp.Diff(want, r.ReturnValues(), cmpopts.EquateEmpty()); d != "" {
		t.Error(d, r.Failures)
	}
	programs := workers(lab, do("fds"))
	programs.ExtraFiles = map[int][]*os.File{0: {os.Stdin, os.Stdin}}
	wait(t, start(t, s, programs))
	if got := lab.Line(); got != "fds=0,1,2,3,4" {
		t.Errorf("got %q", got)
	}
}

// Source: process.md §6, the column of MultiprocessContext.
func TestFuncSurroundings(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{Guard: true})
	cfg := calls(lab, "surroundings", "input")
	cfg.Envs[0] = map[string]string{"RANK": "7"}
	g := start(t, s, cfg)
	x := wait(t, g).Exits[0]
	if got, want := string(x.Value), fmt.Sprintf("0 %q 7", os.Args[:1]); got != want || x.Code != 0 {
		t.Errorf("got %q, %+v, want %q", got, x, want)
	}
	// A child of the function has neither its descriptors nor its variable.
	if got := lab.Line(); got != "fds=0,1,2" {
		t.Errorf("got %q", got)
	}
	if got := lab.Line(); got != "MUSTER_FUNC=(unset)" {
		t.Errorf("got %q", got)
	}
	pid := g.PIDs()[0]
	if got, want := lab.Line(), fmt.Sprintf(" %d %d %d", pid, pid, pid); !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want the worker as parent, group and session: %s", got, want)
	}
}

// registerOnlyHere registers a function that workers do not have.
var registerOnlyHere = sync.OnceFunc(func() {
	process.Register("only here", func(context.Context, []byte) ([]byte, error) { return nil, nil })
})

func TestFuncFails(t *testing.T) {
	registerOnlyHere()
	for _, tt := range []struct {
		name, input string
		code        int
		want        string // the error's text
		stack       string // in the error's stack
		recorded    string // in the error file, besides
	}{
		{"error", "", 1, "no luck", "", "no luck"},
		{"panic", "", 2, "panic: out of ideas", "func_linux_test.go", "panic: out of ideas"},
		{"index", "abc", 2, "panic: runtime error: slice bounds out of range ", "func_linux_test.go", "panic: runtime error"},
		{"only here", "", 1, `no function "only here" is registered in the worker; call Register before FuncMain`, "", "is registered in the worker"},
		{"greet", "no JSON", 1, "input: invalid character 'o' in literal null (expecting 'u')", "", "input: "},
		{"kill", "", -9, "the function did not return: the process ended with -9", "", ""},
		{"exit", "\x03", 3, "the function did not return: the process ended with 3", "", ""},
		{"goroutine panics", "", 2, "the function did not return: the process ended with 2", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{})
			errorFile := filepath.Join(t.TempDir(), "error.json")
			cfg := calls(lab, tt.name, tt.input)
			cfg.Envs[0] = map[string]string{"TORCHELASTIC_ERROR_FILE": errorFile}
			cfg.Logs = attempt(t, 1, quiet)
			r := wait(t, start(t, s, cfg))
			x := r.Failures[0]
			err, ok := errors.AsType[*process.FuncError](x.Err)
			if !ok || x.Code != tt.code || len(x.Value) > 0 || !strings.HasPrefix(err.Error(), tt.want) {
				t.Fatalf("got %+v", x)
			}
			if !strings.Contains(err.Stack, tt.stack) || (err.Stack == "") != (tt.stack == "") {
				t.Errorf("stack %q", err.Stack)
			}
			checkErrorFile(t, errorFile, tt.recorded, tt.stack)
			stderr, rerr := os.ReadFile(r.Stderrs[0])
			if rerr != nil || !strings.Contains(string(stderr), tt.recorded) || !strings.Contains(string(stderr), tt.stack) {
				t.Errorf("stderr %q, %v", stderr, rerr)
			}
		})
	}
}

// checkErrorFile checks what the worker left for the report; no text: no file.
func checkErrorFile(t *testing.T, path, message, stack string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if message == "" {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error file %q, %v", text, err)
		}
		return
	}
	var file struct {
		Message struct {
			Message   string
			ExtraInfo struct {
				Callstack string `json:"py_callstack"`
				Timestamp json.Number
			}
		}
	}
	if err := errors.Join(err, json.Unmarshal(text, &file)); err != nil {
		t.Fatal(err)
	}
	m := file.Message
	seconds, err := m.ExtraInfo.Timestamp.Int64()
	if !strings.Contains(m.Message, message) || !strings.Contains(m.ExtraInfo.Callstack, stack) || m.ExtraInfo.Callstack == "" || err != nil ||
		time.Since(time.Unix(seconds, 0)).Abs() > time.Hour {
		t.Errorf("error file %s", text)
	}
}

// The first failure stops the others, functions too.
func TestFuncFailureStopsTheRest(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	cfg := calls(lab, "until stopped", "", "")
	g := start(t, s, cfg)
	lab.Lines(2)
	if err := syscall.Kill(g.PIDs()[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := wait(t, g)
	if d := cmp.Diff(map[int]int{0: -9, 1: 0}, codes(r)); d != "" {
		t.Error(d)
	}
	if got := string(r.Exits[1].Value); got != "received signal SIGTERM (15)" {
		t.Errorf("the other returned %q, %v", got, r.Exits[1].Err)
	}
}

func TestFuncIsStopped(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		sig         syscall.Signal
		grace       time.Duration
		code        int
	}{
		{"until stopped", "received signal SIGINT (2)", syscall.SIGINT, long, 0},
		{"until stopped", "received signal SIGHUP (1)", syscall.SIGHUP, long, 0},
		{"never stops", "", syscall.SIGTERM, time.Millisecond, -9},
	} {
		t.Run(tt.name+" "+failure.Signal(tt.sig).String(), func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{})
			g := start(t, s, calls(lab, tt.name, "x"))
			lab.Line()
			g.Close(tt.sig, tt.grace)
			x := wait(t, g).Exits[0]
			if string(x.Value) != tt.value || x.Code != tt.code || x.StoppedBy != tt.sig || (x.Err == nil) != (tt.code == 0) {
				t.Errorf("got %+v", x)
			}
		})
	}
}

// A function that ends the process well has no value and is not a failure.
// Source: process.md §7: sys.exit(0) counts as returning None.
func TestFuncExitsWell(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	r := wait(t, start(t, s, calls(lab, "exit", "\x00")))
	if x := r.Exits[0]; r.IsFailed() || x.Err != nil || x.Value != nil {
		t.Errorf("got %+v", x)
	}
}

// Neither side waits for the other, however much there is to pass.
func TestFuncLargeValues(t *testing.T) {
	t.Parallel() // it takes a while
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	cfg := calls(lab, "echo", "", "x", "")
	cfg.Inputs[0] = bytes.Repeat([]byte("0123456789abcdef"), 64<<20/16)
	cfg.Inputs[2] = cfg.Inputs[0][:1<<20]
	r := wait(t, start(t, s, cfg))
	if r.IsFailed() {
		t.Errorf("failed: %d workers", len(r.Failures))
	}
	for i, want := range cfg.Inputs {
		if got := r.Exits[i].Value; !bytes.Equal(got, want) {
			t.Errorf("worker %d: %d bytes, want %d, the same", i, len(got), len(want))
		}
	}
}

// A large input that nobody reads any more does not hold up the group.
func TestFuncDoesNotReadItsInput(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	cfg := calls(lab, "echo", strings.Repeat("x", 64<<20))
	g := start(t, s, cfg)
	g.Close(syscall.SIGKILL, 0)
	if x := wait(t, g).Exits[0]; x.Code != -9 || x.Err == nil {
		t.Errorf("code %d, error %v", x.Code, x.Err)
	}
}

func TestFuncJSON(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	input, err := json.Marshal(request{"Hello", "world"})
	if err != nil {
		t.Fatal(err)
	}
	r := wait(t, start(t, s, calls(lab, "greet", string(input))))
	var got reply
	if err := r.Exits[0].Decode(&got); err != nil || got.Text != "Hello, world" {
		t.Errorf("got %+v, %v", got, err)
	}
	cfg := calls(lab, "greet", "") // the zero value
	cfg.Logs = attempt(t, 1, quiet)
	r = wait(t, start(t, s, cfg))
	if err := r.Exits[0].Decode(&got); err == nil || err.Error() != "nobody to greet" {
		t.Errorf("got %v", err)
	}
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		name string
		exit process.Exit
		want string
	}{
		{"a failure", process.Exit{Err: &process.FuncError{Message: "no luck"}, Code: 1}, "no luck"},
		{"a program's failure", process.Exit{LocalRank: 3, Code: -9}, "worker 3 ended with -9"},
		{"no value", process.Exit{LocalRank: 2}, "value of worker 2: unexpected end of JSON input"},
	} {
		if err := tt.exit.Decode(new(int)); err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
	var got int
	if err := (process.Exit{Value: []byte("12")}).Decode(&got); got != 12 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
}

func TestRegisterPanics(t *testing.T) {
	f := func(context.Context, []byte) ([]byte, error) { return nil, nil }
	for _, tt := range []struct {
		name string
		f    process.Func
	}{{"", f}, {"nothing", nil}, {"echo", f}} {
		t.Run(tt.name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			process.Register(tt.name, tt.f)
		})
	}
}

// result is what a worker sends.
func result(kind byte, size uint64, value string) string {
	return string(binary.LittleEndian.AppendUint64([]byte{kind}, size)) + value
}

func TestReadResult(t *testing.T) {
	for _, tt := range []struct{ name, sent, value, err string }{
		{"a value", result(0, 3, "abc"), "abc", ""},
		{"no value", result(0, 0, ""), "", ""},
		{"an error", result(1, 17, `{"Message":"bad"}`), "", "bad"},
		{"a panic", result(1, 29, `{"Message":"bad","Stack":"x"}`), "", "panic: bad"},
		{"nothing", "", "", "no result"},
		{"half a head", "\x00\x01", "", "no result"},
		{"half a value", result(0, 3, "ab"), "", "the worker ended after 2 of 3 bytes of its value"},
		{"an impossible size", result(0, 1<<31, ""), "", "the worker returned something that is not a value"},
		{"an impossible kind", result(2, 1, "a"), "", "the worker returned something that is not a value"},
		{"an error that is none", result(1, 1, "{"), "", "the worker's error cannot be read: unexpected end of JSON input"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			value, err := process.ReadResult(strings.NewReader(tt.sent))
			if err == nil {
				err = errors.New("")
			}
			if string(value) != tt.value || err.Error() != tt.err {
				t.Errorf("got %q, %v, want %q, %s", value, err, tt.value, tt.err)
			}
		})
	}
}

func FuzzReadResult(f *testing.F) {
	f.Add([]byte(result(0, 3, "abc")))
	f.Add([]byte(result(1, 17, `{"Message":"bad"}`)))
	f.Add([]byte(result(0, 1<<31-1, "cut short")))
	f.Fuzz(func(t *testing.T, sent []byte) {
		value, err := process.ReadResult(bytes.NewReader(sent))
		if _, ok := errors.AsType[*process.FuncError](err); !ok && err != nil && err != process.ErrNoResult {
			t.Errorf("error %#v", err)
		}
		if err != nil && value != nil || len(value) > len(sent) {
			t.Errorf("got %q, %v of %q", value, err, sent)
		}
	})
}
