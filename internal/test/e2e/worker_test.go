//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/procfs"
	"github.com/muster-run/muster/timer"
)

// workerMain is the worker. Its arguments are steps, taken in turn:
//
//	ready              report "ready RANK"
//	report TEXT        report TEXT; $NAME in it is from the environment
//	gate               wait for the gate
//	hold               wait for ever
//	ignore TERM,INT    ignore these signals from here on
//	catch TERM,INT     report "SIGTERM at RANK" and go on with the next step
//	stray              leave a process in a session of its own behind
//	brood              leave three kinds of grandchildren behind
//	timer fifo|socket  acquire a timer that has run out, and end at a refusal
//	beat N             send a heartbeat
//	census             report the agent's pid, and what lives beside it and the worker
//	exit N             exit with status N
//	kill NAME          send itself the signal
//	print TEXT         write TEXT to stdout, with \n, \r, \xNN as Go has them
//	error TEXT         write TEXT to stderr, likewise
//	flood N            write N lines to stdout, whatever happens to them
//	errorfile TEXT     write TEXT into $TORCHELASTIC_ERROR_FILE
//	cd DIR             change directory
//	dump DIR           describe itself in DIR/RANK.json
//	pid DIR            leave its pid in DIR/RANK
//	after DIR RANK     wait until the worker that did so is dead
//	stuck              enter uninterruptible sleep
//	eat N              take N MiB of memory
//
// A step may begin with rN: or aN: and is then only for that rank or attempt.
func workerMain(steps []string) int {
	rank, attempt := os.Getenv("RANK"), os.Getenv("TORCHELASTIC_RESTART_COUNT")
	for _, step := range steps {
		mine := true
		for {
			head, rest, ok := strings.Cut(step, ":")
			if !ok || len(head) < 2 || head[0] != 'r' && head[0] != 'a' {
				break
			}
			if _, err := strconv.Atoi(head[1:]); err != nil {
				break
			}
			mine = mine && (head == "r"+rank || head == "a"+attempt)
			step = rest
		}
		if !mine {
			continue
		}
		verb, arg, _ := strings.Cut(step, " ")
		switch verb {
		case "ready":
			report("ready " + rank)
		case "report":
			report(os.ExpandEnv(arg))
		case "gate":
			f, err := os.Open(os.Getenv(envGate))
			must(err)
			for err = unix.EINTR; err == unix.EINTR; {
				err = unix.Flock(int(f.Fd()), unix.LOCK_SH)
			}
			must(err)
		case "hold":
			hold()
		case "ignore":
			signal.Ignore(signals(arg)...)
		case "catch":
			c := make(chan os.Signal, 1)
			signal.Notify(c, signals(arg)...)
			report("ready " + rank)
			report(unix.SignalName((<-c).(syscall.Signal)) + " at " + rank)
		case "stray":
			cmd := exec.Command(os.Args[0], worker("hold")[1:]...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			must(cmd.Start())
		case "brood":
			brood()
		case "timer":
			var c timer.Client = &timer.FileClient{Path: os.Getenv("TORCHELASTIC_TIMER_FILE")}
			if arg == "socket" {
				c = socketClient()
			}
			must(c.Acquire("a step", time.Now()))
		case "beat":
			n, err := strconv.ParseInt(arg, 10, 64)
			must(err)
			must(socketClient().Heartbeat(n))
		case "census":
			report(census())
		case "exit":
			n, err := strconv.Atoi(arg)
			must(err)
			return n
		case "kill":
			must(unix.Kill(os.Getpid(), unix.SignalNum("SIG"+arg)))
			hold()
		case "print":
			_, err := os.Stdout.WriteString(unescape(arg))
			must(err)
		case "error":
			_, err := os.Stderr.WriteString(unescape(arg))
			must(err)
		case "flood":
			n, err := strconv.Atoi(arg)
			must(err)
			for i := range n {
				fmt.Fprintf(os.Stdout, "line %d of rank %s\n", i, rank)
			}
		case "errorfile":
			must(os.WriteFile(os.Getenv("TORCHELASTIC_ERROR_FILE"), []byte(unescape(arg)), 0o666))
		case "cd":
			must(os.Chdir(arg))
		case "dump":
			dump(filepath.Join(arg, rank+".json"))
		case "pid":
			must(os.WriteFile(filepath.Join(arg, rank), []byte(strconv.Itoa(os.Getpid())), 0o666))
		case "after":
			dir, other, _ := strings.Cut(arg, " ")
			b, err := os.ReadFile(filepath.Join(dir, other))
			must(err)
			pid, err := strconv.Atoi(string(b))
			must(err)
			awaitDeath(pid, patience)
		case "stuck":
			stuck()
		case "eat":
			n, err := strconv.Atoi(arg)
			must(err)
			for b := make([]byte, n<<20); ; {
				for i := 0; i < len(b); i += 4096 {
					b[i]++
				}
			}
		default:
			fmt.Fprintf(os.Stderr, "worker: unknown step %q\n", step)
			return 99
		}
	}
	return 0
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(98)
	}
}

// hold waits for a signal that ends the process. An empty select would be taken
// for a deadlock.
func hold() {
	for {
		unix.Pause()
	}
}

// report writes one line on the board.
func report(text string) {
	f, err := os.OpenFile(os.Getenv(envBoard), os.O_WRONLY, 0)
	must(err)
	defer f.Close()
	_, err = f.WriteString(text + "\n")
	must(err)
}

func socketClient() *timer.SocketClient {
	c, err := timer.NewSocketClient(timer.SocketClientConfig{Path: os.Getenv(timer.EnvSocket)})
	must(err)
	return c
}

func census() string {
	all, err := procfs.All()
	must(err)
	var others []string
	for _, p := range all {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID)); err == nil && p.Alive() && p.PID != os.Getpid() && p.PID != os.Getppid() && string(name) != "muster-guard\n" {
			others = append(others, strings.TrimSpace(string(name)))
		}
	}
	return fmt.Sprintf("agent %d, others: %s", os.Getppid(), strings.Join(others, " "))
}

func signals(names string) []os.Signal {
	var all []os.Signal
	for name := range strings.SplitSeq(names, ",") {
		sig := unix.SignalNum("SIG" + name)
		if sig == 0 {
			must(fmt.Errorf("no signal %q", name))
		}
		all = append(all, sig)
	}
	return all
}

func unescape(text string) string {
	s, err := strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
	must(err)
	return s
}

// brood leaves grandchildren that ignore every signal that can be ignored: one
// in the worker's group, one in a session of its own, and one whose parent is
// gone as well. It returns when all of them do.
func brood() {
	deaf := worker("ignore TERM,INT,HUP,QUIT,USR1,USR2", "report grandchild", "hold")
	spawn := func(attr *syscall.SysProcAttr, argv []string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], argv[1:]...)
		cmd.SysProcAttr = attr
		must(cmd.Start())
		return cmd
	}
	spawn(nil, deaf)
	spawn(&syscall.SysProcAttr{Setsid: true}, deaf)
	// The shell ends at once; its child has neither its parent nor its group.
	sh := exec.Command("/bin/sh", slices.Concat([]string{"-c", `setsid "$@" </dev/null >/dev/null 2>&1 &`, "sh", os.Args[0]}, deaf[1:])...)
	sh.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(sh.Run())
}

// A description is what a worker knows of itself.
type description struct {
	Argv    []string
	Env     map[string]string
	Dir     string
	Group   bool           // leads its process group
	Session bool           // leads its session
	Files   map[int]string // open descriptors
	TTY     [3]bool        // whether 0, 1, 2 are terminals
	CPUs    int
	Ignored string // SigIgn of /proc/self/status
	Blocked string
}

func dump(path string) {
	d := description{Argv: os.Args, Env: map[string]string{}, Files: map[int]string{}}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		d.Env[k] = v
	}
	d.Dir, _ = os.Getwd()
	pgid, _ := unix.Getpgid(0)
	sid, _ := unix.Getsid(0)
	d.Group, d.Session = pgid == os.Getpid(), sid == os.Getpid()
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		fd, _ := strconv.Atoi(filepath.Base(link))
		if to, err := os.Readlink(link); err == nil {
			d.Files[fd] = to
		}
	}
	for fd := range d.TTY {
		_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		d.TTY[fd] = err == nil
	}
	var set unix.CPUSet
	unix.SchedGetaffinity(0, &set)
	d.CPUs = set.Count()
	b, err := json.Marshal(d)
	must(err)
	must(os.WriteFile(path+".new", b, 0o666))
	must(os.Rename(path+".new", path))
}

// The main goroutine stays on the main thread, whose state is the process's.
func init() { runtime.LockOSThread() }

// stuck puts the process into uninterruptible sleep (state D): a parent waits
// like that for the child of a vfork, here one that never execs.
func stuck() {
	if unix.Gettid() != os.Getpid() {
		must(fmt.Errorf("stuck: not on the main thread"))
	}
	report("stuck")
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VFORK|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 && errno == 0 {
		for {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	time.Sleep(time.Hour)
}
