// Package testproc is the worker of tests that need real processes: the test
// binary started again with a script as its arguments. Tests learn from a board, a
// named pipe, how far workers are, and hold them up at a gate, a lock, so that no
// test guesses how long something takes.
//
// A test binary that uses it calls Main first in TestMain.
package testproc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Patience bounds every wait. Nothing is expected to take this long; it turns a
// hang into a failure.
const Patience = 3 * time.Minute

const (
	word     = "testproc" // the first argument of a test binary that is a worker
	boardVar = "TESTPROC_BOARD"
	gateVar  = "TESTPROC_GATE"
	tagVar   = "TESTPROC_TAG"
	raceVar  = "GORACE"
	raceExit = "atexit_sleep_ms=0" // the detector's default is a second
)

// Main runs the script that the program was started with and does not return then.
// Otherwise it only calls Prepare. The steps of a script, one per argument:
//
//	say:WORD          write "WORD pid" to the board
//	env:NAME          write "NAME=value" to the board
//	fds               write "fds=0,1,2" to the board, what is open
//	cpus              write "cpus=0" to the board, the usable CPUs
//	stat              write "stat=pid parent group session" to the board
//	args              write the arguments after this one to the board, joined by "|", and go on after them
//	in                write "in=TEXT" to the board, a line of stdin
//	out:TEXT err:TEXT write a line to stdout, stderr
//	gate              wait until the gate is opened
//	hang              wait for ever
//	ignore:N          ignore signal N
//	trap:N:CODE       exit with CODE at signal N
//	tell:N            write "got N" to the board at each signal N
//	exit:CODE         exit
//	kill:N            send signal N to this process, and wait
//	spawn:FLAGS:SCRIPT  start a child that runs SCRIPT, its steps separated by "|".
//	                  FLAGS, separated by commas: setsid, double (an orphan at once), bare (an empty environment but for the board)
//	vfork             be in uninterruptible sleep until killed (Linux)
//	alloc:MIB         use so much memory
//	seize:PID         trace a process as a debugger does, and wait until it has ended (Linux)
//
// A script that comes to its end exits 0.
func Main() {
	RefuseMain()
	if len(os.Args) < 2 || os.Args[1] != word {
		Prepare()
		return
	}
	run(os.Args[2:])
	os.Exit(0)
}

// Prepare changes what this program's children inherit, so that they do not take a
// second to exit under the race detector, unless that is set up otherwise, and that
// they heed SIGHUP and SIGINT also where the tests were started by nohup or in the
// background of a script.
func Prepare() {
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	if _, set := os.LookupEnv(raceVar); !set {
		check(os.Setenv(raceVar, raceExit))
	}
}

func run(script []string) {
	for i, step := range script {
		verb, arg, _ := strings.Cut(step, ":")
		switch verb {
		case "say":
			say(fmt.Sprintf("%s %d", arg, os.Getpid()))
		case "env":
			value, ok := os.LookupEnv(arg)
			if !ok {
				value = "(unset)"
			}
			say(arg + "=" + value)
		case "args":
			say(strings.Join(script[i+1:], "|"))
			return
		case "fds", "cpus", "stat":
			say(verb + "=" + look(verb))
		case "in":
			line, err := bufio.NewReader(os.Stdin).ReadString('\n')
			if err != nil {
				line = err.Error()
			}
			say("in=" + strings.TrimSuffix(line, "\n"))
		case "out":
			fmt.Println(arg)
		case "err":
			fmt.Fprintln(os.Stderr, arg)
		case "gate":
			gate, err := os.Open(os.Getenv(gateVar))
			check(err)
			check(syscall.Flock(int(gate.Fd()), syscall.LOCK_SH))
			gate.Close()
		case "hang":
			hang()
		case "ignore":
			signal.Ignore(sig(arg))
		case "trap":
			n, code, _ := strings.Cut(arg, ":")
			got := make(chan os.Signal, 1)
			signal.Notify(got, sig(n))
			go func() { <-got; os.Exit(number(code)) }()
		case "tell":
			got := make(chan os.Signal, 10)
			signal.Notify(got, sig(arg))
			go func() {
				for range got {
					say("got " + arg)
				}
			}()
		case "exit":
			os.Exit(number(arg))
		case "kill":
			check(syscall.Kill(os.Getpid(), sig(arg)))
			hang()
		case "spawn":
			flags, steps, _ := strings.Cut(arg, ":")
			spawn(strings.Split(flags, ","), strings.Split(steps, "|"))
		case "seize":
			seize(number(arg))
		case "alloc":
			block := make([]byte, number(arg)<<20)
			for i := 0; i < len(block); i += 4096 {
				block[i] = byte(i)
			}
			defer runtime.KeepAlive(block)
		default:
			check(fmt.Errorf("testproc: no step %q", step))
		}
	}
}

func hang() {
	// Not select {}: with no other goroutine that is a deadlock to Go.
	for {
		time.Sleep(time.Hour)
	}
}

func sig(s string) syscall.Signal { return syscall.Signal(number(s)) }

func number(s string) int {
	n, err := strconv.Atoi(s)
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		say("error: " + strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(99)
	}
}

// Say writes a short line to the board that this process's environment names.
func Say(line string) { say(line) }

func say(line string) {
	board, err := os.OpenFile(os.Getenv(boardVar), os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(98)
	}
	defer board.Close()
	_, _ = board.WriteString(line + "\n") // short lines are written whole
}

func spawn(flags, script []string) {
	if slices.Contains(flags, "double") {
		rest := slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return f == "double" })
		check(child(nil, []string{"spawn:" + strings.Join(rest, ",") + ":" + strings.Join(script, "|")}).Run())
		return
	}
	check(child(flags, script).Start())
}

func child(flags, script []string) *exec.Cmd {
	cmd := exec.Command(executable(), append([]string{word}, script...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: slices.Contains(flags, "setsid")}
	if slices.Contains(flags, "bare") {
		cmd.Env = []string{boardVar + "=" + os.Getenv(boardVar), tagVar + "=" + os.Getenv(tagVar), raceVar + "=" + raceExit}
	}
	return cmd
}

func executable() string {
	path, err := os.Executable()
	check(err)
	return path
}

// A Lab is a test's board, gate and tag.
type Lab struct {
	t     testing.TB
	tag   string
	path  [2]string // board, gate
	board *os.File
	lines *bufio.Reader
	gate  *os.File
}

var labs atomic.Int64

// New makes a Lab for one test. When the test ends, no process with its tag may be
// left.
func New(t testing.TB) *Lab {
	t.Helper()
	l := &Lab{t: t, tag: fmt.Sprintf("%d.%d", os.Getpid(), labs.Add(1))}
	dir := t.TempDir()
	l.path = [2]string{filepath.Join(dir, "board"), filepath.Join(dir, "gate")}
	if err := syscall.Mkfifo(l.path[0], 0o666); err != nil {
		t.Fatal(err)
	}
	var err error
	// Open for both, so that neither side ever waits for the other to open it.
	if l.board, err = os.OpenFile(l.path[0], os.O_RDWR|syscall.O_NONBLOCK, 0); err != nil {
		t.Fatal(err)
	}
	if l.gate, err = os.Create(l.path[1]); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(l.gate.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	l.lines = bufio.NewReader(l.board)
	t.Cleanup(func() {
		l.board.Close()
		l.gate.Close()
	})
	t.Cleanup(func() { l.CheckNothingLeft() })
	return l
}

// Env returns the environment of workers.
func (l *Lab) Env() []string {
	return append(os.Environ(), boardVar+"="+l.path[0], gateVar+"="+l.path[1], tagVar+"="+l.tag,
		raceVar+"="+raceExit)
}

// Program returns the worker's program, Args the arguments that make it run a
// script.
func Program() string { return executable() }

// Args returns the arguments of a worker that runs a script.
func Args(script ...string) []string { return append([]string{word}, script...) }

// OpenGate lets workers at the gate go on, also those that come later.
func (l *Lab) OpenGate() { l.gate.Close() }

// Line returns the next line from the board.
func (l *Lab) Line() string {
	l.t.Helper()
	_ = l.board.SetReadDeadline(time.Now().Add(Patience))
	line, err := l.lines.ReadString('\n')
	if err != nil {
		l.t.Fatalf("nothing on the board: %v", err)
	}
	if strings.HasPrefix(line, "error: ") {
		l.t.Fatal(line)
	}
	return strings.TrimSuffix(line, "\n")
}

// Lines returns the next n lines, sorted.
func (l *Lab) Lines(n int) []string {
	l.t.Helper()
	lines := make([]string, n)
	for i := range lines {
		lines[i] = l.Line()
	}
	slices.Sort(lines)
	return lines
}

// NoMore fails the test if something is on the board that was not read. Who could
// write to it must have ended.
func (l *Lab) NoMore() {
	l.t.Helper()
	const end = "no more"
	if _, err := l.board.WriteString(end + "\n"); err != nil {
		l.t.Fatal(err)
	}
	for line := l.Line(); line != end; line = l.Line() {
		l.t.Errorf("also on the board: %q", line)
	}
}

// PID waits for "word pid" on the board and returns the pid.
func (l *Lab) PID(word string) int {
	l.t.Helper()
	line := l.Line()
	said, pid, _ := strings.Cut(line, " ")
	n, err := strconv.Atoi(pid)
	if said != word || err != nil {
		l.t.Fatalf("board: got %q, want %q and a pid", line, word)
	}
	return n
}

// PIDs waits for n times "word pid".
func (l *Lab) PIDs(word string, n int) []int {
	l.t.Helper()
	pids := make([]int, n)
	for i := range pids {
		pids[i] = l.PID(word)
	}
	return pids
}
