package process

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

// A Func is a worker that is a function of this program: it gets its argument
// and returns its value as bytes. The group runs it in a new process, which is
// the program itself started again.
type Func func(ctx context.Context, arg []byte) ([]byte, error)

var registry struct {
	sync.Mutex
	funcs map[string]Func
}

// Register names a function so that Config.Func can refer to it. Call it before
// FuncMain; a name can be taken once.
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

// JSON makes a Func of a function over values that encoding/json carries.
func JSON[A, R any](f func(context.Context, A) (R, error)) Func {
	return func(ctx context.Context, arg []byte) ([]byte, error) {
		var a A
		if len(arg) > 0 {
			if err := json.Unmarshal(arg, &a); err != nil {
				return nil, fmt.Errorf("argument: %w", err)
			}
		}
		r, err := f(ctx, a)
		if err != nil {
			return nil, err
		}
		return json.Marshal(r)
	}
}

const (
	funcVar       = "MUSTER_FUNC"
	argsFD        = 3
	resultFD      = 4
	maxFuncValue  = 1 << 40 // larger lengths are not lengths
	statusValue   = 0
	statusError   = 1
	statusPanic   = 2
	exitFuncError = 1
)

// A FuncError is what a function worker failed with: its error's text, or its
// panic and stack.
type FuncError struct {
	Message string
	Stack   string // of a panic
}

func (e *FuncError) Error() string { return e.Message }

// FuncMain runs the registered function that this process was started for, and
// does not return then. A program whose groups have Func calls it in main after
// the functions are registered.
func FuncMain() {
	name := os.Getenv(funcVar)
	if name == "" {
		return
	}
	os.Unsetenv(funcVar)
	args, result := os.NewFile(argsFD, "arguments"), os.NewFile(resultFD, "result")
	status, value := callFunc(name, args)
	args.Close()
	var head [9]byte
	head[0] = byte(status)
	binary.LittleEndian.PutUint64(head[1:], uint64(len(value)))
	_, err := result.Write(head[:])
	if err == nil {
		_, err = result.Write(value)
	}
	if err = errors.Join(err, result.Close()); err != nil {
		fmt.Fprintln(os.Stderr, "muster: return the value of", name+":", err)
		os.Exit(exitFuncError)
	}
	if status != statusValue {
		fmt.Fprintf(os.Stderr, "%s: %s\n", name, value)
		os.Exit(exitFuncError)
	}
	os.Exit(0)
}

func callFunc(name string, args io.Reader) (status int, value []byte) {
	defer func() {
		if p := recover(); p != nil {
			status, value = statusPanic, fmt.Appendf(nil, "panic: %v\x00%s", p, debug.Stack())
		}
	}()
	registry.Lock()
	f := registry.funcs[name]
	registry.Unlock()
	if f == nil {
		return statusError, fmt.Appendf(nil, "no function %q is registered in the worker; call Register before FuncMain", name)
	}
	arg, err := io.ReadAll(args)
	if err != nil {
		return statusError, fmt.Appendf(nil, "read the argument: %v", err)
	}
	value, err = f(context.Background(), arg)
	if err != nil {
		return statusError, []byte(err.Error())
	}
	return statusValue, value
}

// A call is the parent's side of one function worker.
type call struct {
	childArgs, childResult *os.File // the worker's ends
	args, resultEnd        *os.File
	arg                    []byte
	done                   chan struct{}
	value                  []byte
	err                    error
}

func newCall(name string, args []string) (*call, error) {
	if len(args) > 1 {
		return nil, fmt.Errorf("function %s takes one argument, got %d", name, len(args))
	}
	c := &call{done: make(chan struct{})}
	var err error
	if c.childArgs, c.args, err = os.Pipe(); err != nil {
		return nil, err
	}
	if c.resultEnd, c.childResult, err = os.Pipe(); err != nil {
		c.childArgs.Close()
		c.args.Close()
		return nil, err
	}
	if len(args) == 1 {
		c.arg = []byte(args[0])
	}
	return c, nil
}

// started closes the worker's ends and begins to feed it and to read its result,
// so that neither side waits for the other however large the values are.
func (c *call) started(ok bool) {
	c.childArgs.Close()
	c.childResult.Close()
	if !ok {
		c.args.Close()
		c.resultEnd.Close()
		close(c.done)
		return
	}
	go func() {
		_, _ = c.args.Write(c.arg) // a worker that ended early says so itself
		c.args.Close()
	}()
	go func() {
		defer close(c.done)
		defer c.resultEnd.Close()
		c.value, c.err = readResult(c.resultEnd)
	}()
}

func readResult(r io.Reader) ([]byte, error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, &FuncError{Message: "the worker ended without returning"}
	}
	size := binary.LittleEndian.Uint64(head[1:])
	if size > maxFuncValue {
		return nil, &FuncError{Message: "the worker returned nonsense"}
	}
	value, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil || uint64(len(value)) != size {
		return nil, &FuncError{Message: "the worker ended while it was returning its value"}
	}
	switch head[0] {
	case statusValue:
		return value, nil
	case statusPanic:
		for i, b := range value {
			if b == 0 {
				return nil, &FuncError{Message: string(value[:i]), Stack: string(value[i+1:])}
			}
		}
	}
	return nil, &FuncError{Message: string(value)}
}

// result returns what the function returned. The worker has ended.
func (c *call) result() ([]byte, error) {
	// What it wrote is in the pipe; a process that it left behind may keep the
	// pipe open.
	_ = c.resultEnd.SetReadDeadline(time.Now().Add(5 * time.Second))
	<-c.done
	return c.value, c.err
}
