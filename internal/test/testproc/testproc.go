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
	"maps"
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

	"golang.org/x/sys/unix"
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
//	report:TEXT       write TEXT to the board; $NAME in it is from the environment
//	env:NAME          write "NAME=value" to the board
//	fds               write "fds=0,1,2" to the board, what is open
//	cpus              write "cpus=0" to the board, the usable CPUs
//	stat              write "stat=pid parent group session" to the board
//	args              write the arguments after this one to the board, joined by "|", and continue after them
//	in                write "in=TEXT" to the board, a line of stdin
//	out:TEXT err:TEXT write a line to stdout, stderr
//	gate              wait until the gate is opened
//	hang              wait for ever
//	ignore:N,N        ignore these signals
//	trap:N:CODE       exit with CODE at signal N
//	tell:N            write "got N" to the board at each signal N
//	exit:CODE         exit
//	kill:N            send signal N to this process, and wait
//	cd:DIR            change directory
//	spawn:FLAGS:SCRIPT  start a child that runs SCRIPT, its steps separated by "|".
//	                  FLAGS, separated by commas: setsid, double (an orphan at once), bare (an empty environment but for the board)
//	vfork             be in uninterruptible sleep until killed (Linux)
//	alloc:MIB         use so much memory
//	seize:PID         trace a process as a debugger does, and wait until it has ended (Linux)
//
// A signal N is a number or a name: 15, TERM. A step that begins with rN: or aN: is
// only for the worker of that rank or attempt. Tests may have steps of their own.
//
// A script that comes to its end exits 0.
func Main(own ...Steps) {
	RefuseMain()
	if len(os.Args) < 2 || os.Args[1] != word {
		Prepare()
		return
	}
	for _, more := range own {
		maps.Copy(steps, more)
	}
	run(os.Args[2:])
	os.Exit(0)
}

// Steps are what a test binary's workers can do besides, by name. A step gets what
// stands behind the name and a colon.
type Steps map[string]func(arg string)

var steps = Steps{}

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
		step, mine := forThis(step)
		if !mine {
			continue
		}
		verb, arg, _ := strings.Cut(step, ":")
		if own, ok := steps[verb]; ok {
			own(arg)
			continue
		}
		switch verb {
		case "say":
			say(fmt.Sprintf("%s %d", arg, os.Getpid()))
		case "report":
			say(os.ExpandEnv(arg))
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
			AwaitGate()
		case "hang":
			hang()
		case "ignore":
			for name := range strings.SplitSeq(arg, ",") {
				signal.Ignore(sig(name))
			}
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
		case "cd":
			check(os.Chdir(arg))
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
		case "vfork":
			vfork()
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

// AwaitGate waits until the test opens the gate.
func AwaitGate() {
	gate, err := os.Open(os.Getenv(gateVar))
	check(err)
	for err = syscall.EINTR; err == syscall.EINTR; {
		err = syscall.Flock(int(gate.Fd()), syscall.LOCK_SH)
	}
	check(err)
	gate.Close()
}

// forThis takes off what says for which workers a step is, and tells whether this is
// one of them.
func forThis(step string) (rest string, mine bool) {
	for mine = true; ; {
		head, rest, ok := strings.Cut(step, ":")
		if !ok || len(head) < 2 {
			return step, mine
		}
		number, which := head[1:], ""
		switch head[0] {
		case 'r':
			which = os.Getenv("RANK")
		case 'a':
			which = os.Getenv("TORCHELASTIC_RESTART_COUNT")
		default:
			return step, mine
		}
		if _, err := strconv.Atoi(number); err != nil {
			return step, mine
		}
		step, mine = rest, mine && number == which
	}
}

func hang() {
	// Not select {}: with no other goroutine that is a deadlock to Go.
	for {
		time.Sleep(time.Hour)
	}
}

func sig(s string) syscall.Signal {
	if n := unix.SignalNum("SIG" + s); n != 0 {
		return n
	}
	return syscall.Signal(number(s))
}

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

// A Board is a named pipe on which workers report lines.
type Board struct {
	Path  string
	Lines chan string // those not yet read, at most 10,000
}

// NewBoard makes a board, which ends with the test.
func NewBoard(t testing.TB) *Board {
	t.Helper()
	b := &Board{Path: filepath.Join(t.TempDir(), "board"), Lines: make(chan string, 10_000)}
	if err := syscall.Mkfifo(b.Path, 0o666); err != nil {
		t.Fatal(err)
	}
	// Open for both, so that neither side ever waits for the other to open it, and
	// that it never ends while workers come and go.
	f, err := os.OpenFile(b.Path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(f); s.Scan(); {
			b.Lines <- s.Text()
		}
	}()
	t.Cleanup(func() { f.Close(); <-done })
	return b
}

// Write writes a line, as a worker would.
func (b *Board) Write(t testing.TB, line string) {
	t.Helper()
	f, err := os.OpenFile(b.Path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(line + "\n"); err != nil {
		t.Fatal(err)
	}
}

// A Gate holds back processes until it is opened. It is a file lock, so that
// those who come late pass at once.
type Gate struct {
	Path string
	file *os.File
}

// NewGate makes a gate, which opens at the end of the test at the latest.
func NewGate(t testing.TB) *Gate {
	t.Helper()
	g := &Gate{Path: filepath.Join(t.TempDir(), "gate")}
	var err error
	if g.file, err = os.Create(g.Path); err == nil {
		err = syscall.Flock(int(g.file.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Open)
	return g
}

// Open lets workers at the gate continue, also those that come later.
func (g *Gate) Open() { g.file.Close() }

// A Tag marks every process of a test, however far it has strayed.
type Tag string

var tags atomic.Int64

// NewTag returns a tag that no other test has.
func NewTag() Tag { return Tag(fmt.Sprintf("%d.%d", os.Getpid(), tags.Add(1))) }

// Env returns what workers find a board, a gate and their tag by. Each may be missing.
func Env(b *Board, g *Gate, tag Tag) []string {
	var env []string
	if tag != "" {
		env = append(env, tagVar+"="+string(tag))
	}
	if b != nil {
		env = append(env, boardVar+"="+b.Path)
	}
	if g != nil {
		env = append(env, gateVar+"="+g.Path)
	}
	return env
}

// A Lab is a test's board, gate and tag.
type Lab struct {
	t     testing.TB
	board *Board
	gate  *Gate
	tag   Tag
}

// New makes a Lab for one test. When the test ends, no process with its tag may be
// left.
func New(t testing.TB) *Lab {
	t.Helper()
	l := &Lab{t: t, board: NewBoard(t), gate: NewGate(t), tag: NewTag()}
	t.Cleanup(l.CheckNothingLeft)
	return l
}

// Env returns the environment of workers.
func (l *Lab) Env() []string {
	return append(append(os.Environ(), Env(l.board, l.gate, l.tag)...), raceVar+"="+raceExit)
}

// Program returns the worker's program, Args the arguments that make it run a
// script.
func Program() string { return executable() }

// Args returns the arguments of a worker that runs a script.
func Args(script ...string) []string { return append([]string{word}, script...) }

// Unpaused in a process' environment keeps the tool that pauses processes under test off
// it and its children: for tests that look whether a process is stopped.
const Unpaused = "TESTPROC_UNPAUSED=1"

// WriteProgram writes a file that a test is about to execute. Nothing forks while it
// is open: a child that another test starts would have it open until its own exec,
// and "text file busy" would be the answer.
func WriteProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}

// OpenGate lets workers at the gate continue, also those that come later.
func (l *Lab) OpenGate() { l.gate.Open() }

// Line returns the next line from the board.
func (l *Lab) Line() string {
	l.t.Helper()
	select {
	case line := <-l.board.Lines:
		if strings.HasPrefix(line, "error: ") {
			l.t.Fatal(line)
		}
		return line
	case <-time.After(Patience):
		l.t.Fatalf("nothing on the board for %v", Patience)
		return ""
	}
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
	l.board.Write(l.t, end)
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
