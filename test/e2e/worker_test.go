//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/timer"
)

// steps are what workers of these tests can do besides what testproc's can:
//
//	ready              report "ready RANK"
//	catch:TERM,INT     report "SIGTERM at RANK" and continue with the next step
//	stray              leave a process in a session of its own behind
//	brood              leave three kinds of grandchildren behind
//	timer:fifo|socket  acquire a timer that has run out, and end at a refusal
//	beat:N             send a heartbeat
//	census             report the agent's pid, and what lives beside it and the worker
//	print:TEXT         write TEXT to stdout, with \n, \r, \xNN as Go has them
//	error:TEXT         write TEXT to stderr, likewise
//	flood:N            write N lines to stdout, whatever happens to them
//	errorfile:TEXT     write TEXT into $TORCHELASTIC_ERROR_FILE
//	live               take part in a live group, and report its memberships
//	dump:DIR           describe itself in DIR/RANK.json
//	pid:DIR            leave its pid in DIR/RANK
//	after:DIR RANK     wait until the worker that did so is dead
var steps = testproc.Steps{
	"ready": func(string) { testproc.Say("ready " + rank()) },
	"catch": func(names string) {
		c := make(chan os.Signal, 1)
		signal.Notify(c, signals(names)...)
		testproc.Say("ready " + rank())
		testproc.Say(unix.SignalName((<-c).(syscall.Signal)) + " at " + rank())
	},
	"stray": func(string) {
		cmd := exec.Command(os.Args[0], testproc.Args("hang")...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		must(cmd.Start())
	},
	"brood": func(string) { brood() },
	"timer": func(kind string) {
		var c timer.Client = &timer.FileClient{Path: os.Getenv("TORCHELASTIC_TIMER_FILE")}
		if kind == "socket" {
			c = socketClient()
		}
		must(c.Acquire("a step", time.Now()))
	},
	"beat":   func(n string) { must(socketClient().Heartbeat(int64(number(n)))) },
	"census": func(string) { testproc.Say(census()) },
	"print":  func(text string) { write(os.Stdout, text) },
	"error":  func(text string) { write(os.Stderr, text) },
	"flood": func(n string) {
		for i := range number(n) {
			fmt.Fprintf(os.Stdout, "line %d of rank %s\n", i, rank())
		}
	},
	"errorfile": func(text string) {
		must(os.WriteFile(os.Getenv("TORCHELASTIC_ERROR_FILE"), []byte(unescape(text)), 0o666))
	},
	"dump":    func(dir string) { dump(filepath.Join(dir, rank()+".json")) },
	"live":    func(slow string) { takePart(slow, "") },
	"replica": func(size string) { takePart("", size) },
	"stuck":   func(string) { waitsForOthers = true },
	"last":    func(string) { endMember() },
	"fail":    func(length string) { failMember(length) },
	"end":     func(string) { endTraining() },
	"over":    func(string) { awaitOver() },
	"pid": func(dir string) {
		must(os.WriteFile(filepath.Join(dir, rank()), []byte(strconv.Itoa(os.Getpid())), 0o666))
	},
	"after": func(arg string) {
		dir, other, _ := strings.Cut(arg, " ")
		b, err := os.ReadFile(filepath.Join(dir, other))
		must(err)
		testproc.AwaitEnd(number(string(b)), patience)
	},
}

func rank() string { return os.Getenv("RANK") }

func number(s string) int {
	n, err := strconv.Atoi(s)
	must(err)
	return n
}

func write(f *os.File, text string) {
	_, err := f.WriteString(unescape(text))
	must(err)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(98)
	}
}

func socketClient() *timer.SocketClient {
	return &timer.SocketClient{Path: os.Getenv(timer.EnvSocket)}
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
	deaf := worker("ignore:TERM,INT,HUP,QUIT,USR1,USR2", "report:grandchild", "hang")
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
