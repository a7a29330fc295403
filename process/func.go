package process

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Func is a worker that is a function of this program: it gets its input and
// returns its value as bytes, of any kind and up to 2 GiB. The group runs it in a
// new process, which is the program itself started again.
//
// SIGTERM, SIGINT and SIGHUP cancel its context, with a *SignalError as cause; it
// should then return, or it is killed after the grace.
type Func func(ctx context.Context, input []byte) ([]byte, error)

// registry holds the functions that can be workers. A parent names one and its
// child, the same program, has to find it.
var registry struct {
	sync.Mutex
	funcs map[string]Func
}

// Register names a function so that Config.Func can refer to it. Call it before
// FuncMain, in the parent as in the child; a name can be taken once.
func Register(name string, f Func) {
	registry.Lock()
	defer registry.Unlock()
	if registry.funcs[name] != nil || name == "" || f == nil {
		panic(fmt.Sprintf("process: function %q is registered twice, or has no name or body", name))
	}
	if registry.funcs == nil {
		registry.funcs = map[string]Func{}
	}
	registry.funcs[name] = f
}

// CheckFunc says why the function of that name cannot be a worker; nil if it can.
func CheckFunc(name string) error {
	switch {
	case lookupFunc(name) == nil:
		return fmt.Errorf("no function %q is registered; call Register before Start and before FuncMain", name)
	case !calledFuncMain.Load():
		return errNoFuncMain
	}
	return nil
}

func lookupFunc(name string) Func {
	registry.Lock()
	defer registry.Unlock()
	return registry.funcs[name]
}

// JSON makes a Func of a function over values that encoding/json carries. The caller makes
// the input with json.Marshal, and reads the value with Exit.Decode. Without an input the
// function gets the zero value.
func JSON[In, Out any](f func(context.Context, In) (Out, error)) Func {
	return func(ctx context.Context, input []byte) ([]byte, error) {
		var in In
		if len(input) > 0 {
			if err := json.Unmarshal(input, &in); err != nil {
				return nil, fmt.Errorf("input: %w", err)
			}
		}
		out, err := f(ctx, in)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	}
}

// A FuncError is what a function worker failed with.
type FuncError struct {
	// Message is the error's text, or what the function panicked with.
	Message string
	// Stack is the trace of a panic; empty for an error.
	Stack string `json:",omitempty"`
}

func (e *FuncError) Error() string {
	if e.Stack != "" {
		return "panic: " + e.Message
	}
	return e.Message
}

// The child reads the function's name in a variable, "<n>:<name>", the input from
// descriptor n, and writes its result to n+1: a kind, a length, and as many bytes, which are
// the value, or a FuncError as JSON.
const (
	funcVar = "MUSTER_FUNC"
	inputFD = 3 // without extra files

	kindValue byte = 0
	kindError byte = 1

	maxValue = 1<<31 - 1

	exitError = 1
	exitPanic = 2 // as Go has it
)

// FuncMain runs the registered function that this process was started for, and
// does not return then. A program whose groups have Func calls it in main, or in a
// test's TestMain, after the functions are registered.
func FuncMain() {
	calledFuncMain.Store(true)
	number, name, _ := strings.Cut(os.Getenv(funcVar), ":")
	fd, err := strconv.Atoi(number)
	if err != nil || fd < inputFD {
		return
	}
	os.Unsetenv(funcVar)
	syscall.CloseOnExec(fd)
	syscall.CloseOnExec(fd + 1)
	os.Exit(funcMain(name, os.NewFile(uintptr(fd), "input"), os.NewFile(uintptr(fd+1), "result")))
}

func funcMain(name string, input, result *os.File) int {
	value, err := callFunc(name, input)
	input.Close()
	kind, status := kindValue, 0
	if ferr, ok := errors.AsType[*FuncError](err); ok {
		kind, status = kindError, exitError
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, ferr)
		if ferr.Stack != "" {
			status = exitPanic
			fmt.Fprintf(os.Stderr, "\n%s", ferr.Stack)
		}
		if err := writeErrorFile(os.Getenv(errorFileVar), ferr); err != nil {
			fmt.Fprintf(os.Stderr, "%s: error file: %v\n", name, err)
		}
		value, _ = json.Marshal(ferr)
	}
	var head [9]byte
	head[0] = kind
	binary.LittleEndian.PutUint64(head[1:], uint64(len(value)))
	_, err = result.Write(head[:])
	if err == nil {
		_, err = result.Write(value)
	}
	if err = errors.Join(err, result.Close()); err != nil {
		fmt.Fprintf(os.Stderr, "%s: return the value: %v\n", name, err)
		return exitError
	}
	return status
}

// callFunc calls the function; its error is a *FuncError.
func callFunc(name string, input io.Reader) (value []byte, err error) {
	ctx, stop := signalled()
	defer stop()
	defer func() {
		if p := recover(); p != nil {
			err = &FuncError{Message: fmt.Sprint(p), Stack: string(debug.Stack())}
		}
	}()
	f := lookupFunc(name)
	if f == nil {
		return nil, &FuncError{Message: fmt.Sprintf("no function %q is registered in the worker; call Register before "+
			"FuncMain", name)}
	}
	in, err := io.ReadAll(input)
	if err != nil {
		return nil, &FuncError{Message: fmt.Sprintf("read the input: %v", err)}
	}
	value, err = f(ctx, in)
	switch {
	case err != nil:
		return nil, &FuncError{Message: err.Error()}
	case len(value) > maxValue:
		return nil, &FuncError{Message: fmt.Sprintf("the value has %d bytes, %d are possible; write it to a file and "+
			"return its name", len(value), maxValue)}
	}
	return value, nil
}

// signalled returns a context that a signal to stop cancels.
func signalled() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	go func() {
		select {
		case s := <-got:
			cancel(&SignalError{Signal: s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// writeErrorFile leaves the error where the failure report looks for it.
// Source: ErrorHandler.record_exception in multiprocessing/errors.
func writeErrorFile(path string, e *FuncError) error {
	if path == "" {
		return nil
	}
	type extra struct {
		Callstack string `json:"py_callstack"`
		Timestamp string `json:"timestamp"`
	}
	type message struct {
		Message string `json:"message"`
		Extra   extra  `json:"extraInfo"`
	}
	stack := e.Stack
	if stack == "" {
		stack = e.Message
	}
	text, err := json.Marshal(map[string]message{
		"message": {e.Error(), extra{stack, strconv.FormatInt(time.Now().Unix(), 10)}},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o666)
}

// A call is the parent's side of one function worker. The fork thread makes it, with forked;
// after start its two goroutines have parentIn and parentOut, and value and err are the
// second's until finish has waited for it.
type call struct {
	input               []byte
	childIn, childOut   *os.File // the worker's ends
	parentIn, parentOut *os.File
	started             bool
	wg                  sync.WaitGroup // feeds and reads the worker
	value               []byte
	err                 error
}

func newCall(input []byte) (*call, error) {
	c := &call{input: input}
	var err error
	if c.childIn, c.parentIn, err = os.Pipe(); err != nil {
		return nil, err
	}
	if c.parentOut, c.childOut, err = os.Pipe(); err != nil {
		c.childIn.Close()
		c.parentIn.Close()
		return nil, err
	}
	return c, nil
}

func (c *call) env(name string, extraFiles int) string {
	return fmt.Sprintf("%s=%d:%s", funcVar, inputFD+extraFiles, name)
}

func (c *call) childEnds() []uintptr { return []uintptr{c.childIn.Fd(), c.childOut.Fd()} }

// start begins to write the input and to read the result, at the same time, so that neither
// side waits for the other however large the values are.
func (c *call) start() {
	if c == nil {
		return
	}
	c.started = true
	c.wg.Go(func() {
		_, _ = c.parentIn.Write(c.input) // a worker that ended early says so itself
		c.parentIn.Close()
	})
	c.wg.Go(func() {
		c.value, c.err = readResult(c.parentOut)
		c.parentOut.Close()
	})
}

// forked closes the worker's ends once it has been forked, and all ends if it could not be.
func (c *call) forked() {
	c.childIn.Close()
	c.childOut.Close()
	if !c.started {
		c.parentIn.Close()
		c.parentOut.Close()
	}
}

// errNoResult: the worker ended before it said anything.
var errNoResult = errors.New("no result")

func readResult(r io.Reader) ([]byte, error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, errNoResult
	}
	size := binary.LittleEndian.Uint64(head[1:])
	if size > maxValue || head[0] > kindError {
		return nil, &FuncError{Message: "the worker returned something that is not a value"}
	}
	var value bytes.Buffer
	value.Grow(int(min(size, 1<<20)))
	if n, err := io.Copy(&value, io.LimitReader(r, int64(size))); err != nil || uint64(n) != size {
		return nil, &FuncError{Message: fmt.Sprintf("the worker ended after %d of %d bytes of its value", n, size)}
	}
	if head[0] == kindValue {
		return value.Bytes(), nil
	}
	e := new(FuncError)
	if err := json.Unmarshal(value.Bytes(), e); err != nil {
		e.Message = "the worker's error cannot be read: " + err.Error()
	}
	return nil, e
}

// finish adds what the function returned to x. All that the worker wrote is in the pipe by
// now. A process that got away from the group may still hold the other end; the deadlines
// are for that.
func (c *call) finish(x *Exit) {
	_ = c.parentOut.SetReadDeadline(time.Now().Add(time.Second))
	_ = c.parentIn.SetWriteDeadline(time.Now())
	c.wg.Wait()
	x.Value, x.Err = c.value, c.err
	switch {
	case x.Err == errNoResult && x.Code == 0:
		x.Err = nil // it called os.Exit(0)
	case x.Err == errNoResult:
		x.Err = &FuncError{Message: fmt.Sprintf("the function did not return: the process ended with %d", x.Code)}
	case x.Err != nil && x.Code == 0:
		x.Code = exitError
	}
}
