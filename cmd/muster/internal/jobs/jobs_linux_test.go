package jobs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/wire/unixsock"
)

// A real job is listed, signaled, restarted and stopped.
func TestJobs(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("needs sh")
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if err := os.Chmod(os.Getenv("XDG_RUNTIME_DIR"), 0o700); err != nil {
		t.Fatal(err)
	}
	runID := fmt.Sprint("jobs-", os.Getpid())
	cmd := exec.Command("muster", "run", "--rdzv-id", runID, "--log-dir", t.TempDir(), "--no-python", "sh", "-c",
		`trap 'echo got it' USR1; trap 'exit 0' TERM; echo begun; while :; do sleep 0.05; done`)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}()
	lines := bufio.NewScanner(stdout)
	says := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the worker says %q, want %q", lines.Text(), want)
		}
	}
	muster := func(args ...string) (string, error) {
		out, err := exec.Command("muster", args...).CombinedOutput()
		return string(out), err
	}
	must := func(want string, args ...string) {
		t.Helper()
		// A worker may write before its agent has noted that all of them run.
		out, err := muster(args...)
		for err != nil && strings.Contains(out, "at the moment") {
			out, err = muster(args...)
		}
		if err != nil || !strings.Contains(out, want) {
			t.Fatalf("muster %s: %v: %s; want %q", strings.Join(args, " "), err, out, want)
		}
	}
	says("begun")
	must("sent SIGUSR1 to rank 0 (pid ", "signal", "usr1", runID, "--rank", "0")
	says("got it")
	must(runID, "ps")
	out, err := muster("ps", "--json")
	var list struct {
		Version int
		Jobs    []psJob
	}
	if jsonErr := json.Unmarshal([]byte(out), &list); err != nil || jsonErr != nil || list.Version != 1 {
		t.Fatalf("ps --json: %v, %v: %s", err, jsonErr, out)
	}
	found := false
	for _, j := range list.Jobs { // other tests' jobs may be among them
		found = found || j.Job != nil && j.RunID == runID && j.PID == cmd.Process.Pid && len(j.Ranks) == 1 && j.Ranks[0] == 0 && j.User == userName(os.Geteuid()) && j.Host != nil
	}
	if !found {
		t.Errorf("ps --json: %s", out)
	}
	must("restarting the workers of job '"+runID+"'", "restart", fmt.Sprint(cmd.Process.Pid))
	says("begun")
	for _, tt := range [][]string{{"rank 7 does not run on this host", "signal", "USR1", runID, "--rank", "7"}, {"has the run ID or pid 'no-such'", "stop", "no-such"}, {"exclude each other", "stop", "x", "--all"}} {
		if out, err := muster(tt[1:]...); err == nil || !strings.Contains(out, tt[0]) {
			t.Errorf("muster %v: %v: %s", tt[1:], err, out)
		}
	}
	must("has stopped", "stop", runID)
	if out, _ := muster("ps"); strings.Contains(out, runID) {
		t.Errorf("ps after stop: %s", out)
	}
}

// alone runs the rest of a test in a process of its own, in which nobody else has jobs and which
// a shell has set up. It returns false in the process that waits for that.
func alone(t *testing.T, setUp string) bool {
	t.Helper()
	if os.Getenv("TEST_ALONE") != "" {
		loopback(t)
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	// A /tmp and a /run/user with nothing of others, and a network, which has the names of sockets.
	const script = `mount -t tmpfs tmpfs $NEW && for d in "$PWD" "${1%/*}" "$MUSTER_DIR"; do
		mkdir -p "$NEW/${d#/tmp/}" && mount --bind "$d" "$NEW/${d#/tmp/}" || exit 77; done
	mount --rbind $NEW /tmp && mkdir -m 700 $OWN && mount -t tmpfs -o mode=700 tmpfs $OWN && { ! [ -d /run/user ] || mount -t tmpfs tmpfs /run/user; } &&
		cd "$PWD" && eval "$0" || exit 77; exec "$@"`
	muster, err := exec.LookPath("muster")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", script, setUp, os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), "TEST_ALONE=1", "XDG_RUNTIME_DIR=", "TMPDIR=", "OWN=/tmp/muster-0", "NEW="+t.TempDir(), "MUSTER_DIR="+filepath.Dir(muster))
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET} // which makes the mounts private
	out, err := cmd.CombinedOutput()
	if exit, ok := err.(*exec.ExitError); errors.Is(err, syscall.EPERM) || ok && exit.ExitCode() == 77 {
		t.Skipf("needs the right to mount: %v: %s", err, out)
	}
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return false
}

// loopback brings up lo of a new network.
func loopback(t *testing.T) {
	t.Helper()
	lo, err := unix.NewIfreq("lo")
	fd, socketErr := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err = errors.Join(err, socketErr); err == nil {
		defer unix.Close(fd)
		lo.SetUint16(unix.IFF_UP)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// says runs muster, and wants its status and what it says.
func says(t *testing.T, line string, status int, want ...string) (out string) {
	t.Helper()
	said, err := exec.Command("muster", strings.Fields(line)...).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); err != nil && !ok || ok && exit.ExitCode() != status || !ok && status != 0 {
		t.Errorf("muster %s: %v, want status %d: %s", line, err, status, said)
	}
	for _, w := range want {
		if !strings.Contains(string(said), w) {
			t.Errorf("muster %s: no %q in: %s", line, w, said)
		}
	}
	return string(said)
}

// Agents on one host are of one job if they meet at the same place; those of jobs on one host
// never are.
func TestIsOf(t *testing.T) {
	agent := func(uid int, name, endpoint string, maxHosts int) job {
		j := job{Agent: unixsock.Agent{UID: uid, Name: name}}
		if endpoint != "" {
			j.state = &jobstate.State{Job: jobstate.Job{RunID: name, Backend: "c10d", Endpoint: endpoint, MaxHosts: maxHosts}}
		}
		return j
	}
	first := agent(1, "j", "h:1", 2)
	for _, tt := range []struct {
		other job
		want  bool
	}{
		{agent(1, "j", "h:1", 2), true},
		{agent(1, "j", "", 0), true}, // it does not answer
		{agent(1, "j", "h:2", 2), false},
		{agent(1, "k", "h:1", 2), false},
		{agent(2, "j", "h:1", 2), false},
	} {
		if got := first.isOf(&tt.other); got != tt.want {
			t.Errorf("%+v: %v", tt.other, got)
		}
	}
	if one := agent(1, "j", "localhost:0", 1); one.isOf(&one) {
		t.Error("two jobs on one host")
	}
}

// docs/formats.md has each field of `muster ps --json` that the state does not have.
func TestPsFormat(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/formats.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n### Job of muster ps\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var want, have []string
	for f := range reflect.TypeFor[psJob]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			want = append(want, name)
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		have = append(have, m[1])
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Whoever may connect to an agent's socket cannot keep others from it.
func TestSocketAbuse(t *testing.T) {
	job := startJob(t, "--rdzv-id", fmt.Sprint("abused-", os.Getpid()))
	agents, err := unixsock.Agents(t.Context())
	i := slices.IndexFunc(agents, func(a unixsock.Agent) bool { return a.PID == job.Process.Pid })
	if i < 0 {
		t.Fatalf("%v, %v", agents, err)
	}
	dial := func() net.Conn {
		conn, err := agents[i].Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	answer := func(conn net.Conn) string {
		t.Helper()
		said, _ := io.ReadAll(io.LimitReader(conn, 1000)) // the rest is reset
		return string(said)
	}
	for range 200 {
		dial()
	}
	for range 200 { // which never read what they get
		io.WriteString(dial(), "GET /v1/state HTTP/1.1\r\nHost: x\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	for request, want := range map[string]string{
		"\x00\xff\x16\x03\r\n\r\n":                                                  "HTTP/1.1 400 ",
		"GET /" + strings.Repeat("x", 4<<20) + " HTTP/1.0\r\n\r\n":                  "HTTP/1.1 431 ",
		"POST /v1/nosuch HTTP/1.0\r\n\r\n":                                          "HTTP/1.0 404 ",
		"POST /v1/signal?signal=0 HTTP/1.0\r\n\r\n":                                 "HTTP/1.0 400 ",
		"POST /v1/signal?signal=USR1&rank=-1 HTTP/1.0\r\n\r\n":                      "HTTP/1.0 400 ",
		"PUT /v1/stop HTTP/1.0\r\n\r\n":                                             "HTTP/1.0 405 ",
		"POST /v1/signal HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n": "HTTP/1.1 400 ",
	} {
		conn := dial()
		go func() {
			io.WriteString(conn, request)
			for i := 0; i < 1<<14; i++ { // 1 GB of body, if somebody reads that
				if _, err := conn.Write(make([]byte, 1<<16)); err != nil || !strings.Contains(request, "1073741824") {
					break
				}
			}
			conn.(*net.UnixConn).CloseWrite()
		}()
		if said := answer(conn); !strings.HasPrefix(said, want) {
			t.Errorf("%.60q: %.100q, want %q", request, said, want)
		}
	}
	says(t, "ps", console.ExitOK, job.pid())
	says(t, "signal 0 "+job.pid(), console.ExitUsage)
	says(t, "signal CONT "+job.pid(), console.ExitOK, "sent SIGCONT to rank 0 ")
}

// Several jobs, two of them with the same run ID: all commands find the one that is meant.
func TestSeveralJobs(t *testing.T) {
	if !alone(t, ":") {
		return
	}
	for _, line := range []string{"stop", "stop --all", "top", "logs", "restart"} {
		says(t, line, console.ExitError, "error: no job of this user runs on this host\nhint: run this on a host of the job, as the user who started it (`muster ps` lists the jobs of a host)\n")
	}
	says(t, "ps", console.ExitOK, "no job of any user runs on this host")
	if got := says(t, "ps --json", console.ExitOK); got != "{\n  \"jobs\": [],\n  \"version\": 1\n}\n" {
		t.Errorf("no jobs: %s", got)
	}

	single := startJob(t, "--rdzv-id", "single", "--tee", "3")
	for _, name := range []string{" single", " " + single.pid()} {
		says(t, "top"+name, console.ExitOK, "muster sh  ", "  single ")
		says(t, "logs"+name, console.ExitOK, "begun\n")
	}
	// A job that is not named is shown, and nothing is done to it.
	says(t, "top", console.ExitOK, "muster sh  ", "  single ")
	for _, line := range []string{"stop", "stop --host", "restart", "signal KILL", "signal KILL --rank 0", "logs", "bundle"} {
		says(t, line, console.ExitError, "error: no job is named\nhint: name one by its run ID or pid:\n  job 'single' (pid "+single.pid()+")\n")
	}
	says(t, "dump", console.ExitError, "error: no job is named\nhint: name one by its run ID, or a process with --pid:\n", "\n  job 'single' (1 worker)\n")
	says(t, "dump "+single.pid(), console.ExitOK, "no Python stacks of rank 0:")
	says(t, "dump single --json", console.ExitOK, `"reason": "on demand, job single"`)
	says(t, "top 1", console.ExitError, "error: no job of any user on this host has the run ID or pid '1'\nhint: `muster ps` lists the jobs\n")
	says(t, "dump nosuch", console.ExitError, "error: no job of any user on this host has the run ID or pid 'nosuch'\nhint: ")
	says(t, "logs nosuch", console.ExitError, "error: there is no directory 'nosuch', and no job of any user on this host has the run ID or pid 'nosuch'\nhint: ")
	says(t, "signal USR1 single --rank 3", console.ExitError, "error: job 'single' (pid "+single.pid()+"): rank 3 does not run on this host at the moment\nhint: choose from 0\n")
	says(t, "signal USR1 single --rank 0 --rank 3", console.ExitUsage, "error: --rank is given twice\nhint: leave one of the two out, '0' or '3'\n")

	file := filepath.Join(t.TempDir(), "b.tar.gz")
	says(t, "bundle single -o "+file, console.ExitOK, "Wrote "+file)
	dirs, err := filepath.Glob(filepath.Join(single.Args[3], "single_*")) // of --log-dir
	if err != nil || len(dirs) != 1 {
		t.Fatal(dirs, err)
	}
	live, _ := unpack(t, file, "muster-"+filepath.Base(dirs[0]))
	for name, want := range map[string]string{"state.json": `"pid": `, "index.txt": "of the job's agent\n", "report.txt": ": still runs"} {
		if !strings.Contains(live[name], want) {
			t.Errorf("bundle single: %s has no %q:\n%s", name, want, live[name])
		}
	}

	bare := startJob(t, "--rdzv-id", "team/bare", "--log-dir", "/dev/null") // no path, if nothing is there
	says(t, "logs team/bare", console.ExitError, "error: job 'team/bare' (pid "+bare.pid()+") keeps no log files\nhint: start it with another --log-dir than /dev/null\n")
	bare.gate.Close()
	bare.Wait()

	twins := []*agentJob{startJob(t, "--rdzv-id", "twin"), startJob(t, "--rdzv-id", "twin")}
	for _, line := range []string{"stop twin", "top twin", "restart twin", "logs twin", "bundle twin"} {
		says(t, line, console.ExitError, "error: 2 agents on this host have the run ID 'twin'\nhint: name one by its pid:\n", "(pid "+twins[0].pid()+")", "(pid "+twins[1].pid()+")")
	}
	says(t, "top", console.ExitError, "error: no job is named\nhint: name one by its run ID or pid:\n", "\n  job 'single' (pid "+single.pid()+")\n")
	says(t, "logs "+twins[0].pid(), console.ExitError, "wrote to no files")

	// The worker ignores SIGTERM, and reads on.
	if got := says(t, "stop --no-wait "+twins[0].pid(), console.ExitOK, "stopping job 'twin' (pid "+twins[0].pid()+")\n"); strings.Contains(got, "has stopped") {
		t.Errorf("--no-wait: %s", got)
	}
	says(t, "ps", console.ExitOK, twins[0].pid())
	twins[0].gate.Close()
	twins[0].Wait()
	if got := says(t, "ps", console.ExitOK, twins[1].pid()); strings.Contains(got, twins[0].pid()) {
		t.Errorf("an agent that has ended: %s", got)
	}

	// Killed, it leaves its socket, which goes when somebody asks for the job.
	twins[1].Process.Kill()
	twins[1].Wait()
	socket, old := fmt.Sprintf("%s/twin.%s", os.Getenv("OWN"), twins[1].pid()), time.Now().Add(-time.Minute)
	if err := os.Chtimes(socket, old, old); err != nil {
		t.Error(err)
	}
	says(t, "stop twin", console.ExitError, "error: no job of any user on this host has the run ID or pid 'twin'\n")
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket of an agent that was killed: %v", err)
	}

	other := startJob(t, "--rdzv-id", "other")
	other.Process.Signal(syscall.SIGSTOP)
	if err := unix.Waitid(unix.P_PID, other.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	says(t, "ps --json", console.ExitOK, `"problem": "ask job 'other' (pid `+other.pid()+`): its agent is stopped (state T in /proc)`, `"run_id": "single"`)
	says(t, "stop other", console.ExitError, "error: job 'other' (pid "+other.pid()+"): its agent is stopped (state T in /proc) and gets what it is asked for when it goes on\nhint: run kill -CONT "+other.pid()+"\n")
	namesake := startJob(t, "--rdzv-id", "other")
	says(t, "stop other", console.ExitError, "error: 2 agents on this host have the run ID 'other'\n")
	namesake.gate.Close()
	namesake.Wait()
	other.Process.Signal(syscall.SIGCONT)
	other.Wait() // since it was asked to stop
	says(t, "stop --all --no-wait", console.ExitOK, "stopping job 'single' (pid "+single.pid()+")\n")
}

// A twoFold is one of two agents of a job, with one rank.
type twoFold struct {
	rank     int
	stop     func() // ends what it serves
	restarts *atomic.Int64
}

func (a twoFold) Stop(string, bool) func() { return func() { go a.stop() } }
func (a twoFold) Restart(string) error     { a.restarts.Add(1); return nil }
func (a twoFold) Autopsy(context.Context, string) ([]byte, error) {
	return nil, errors.New("nothing")
}
func (a twoFold) Signal(_ syscall.Signal, rank int) ([]agent.Worker, error) {
	if rank >= 0 && rank != a.rank {
		return nil, fmt.Errorf("rank %d is elsewhere", rank)
	}
	return []agent.Worker{{Rank: a.rank, PID: 40 + a.rank}}, nil
}

// Two agents of one job on this host are stopped together, and asked once for a restart.
func TestAgentsOfOneJob(t *testing.T) {
	if !alone(t, ":") {
		return
	}
	var restarts atomic.Int64
	for rank := range 2 {
		l, err := unixsock.Listen("unix", fmt.Sprintf("%s/duo.%d", os.Getenv("OWN"), rank+1))
		if err != nil {
			t.Fatal(err)
		}
		state := topState()
		state.Job.RunID, state.Job.MaxHosts, state.Host.GroupRank = "duo", 2, rank
		ctx, stop := context.WithCancel(t.Context())
		s, err := health.Listen(health.Config{Listener: l, Source: fixedJob{state}, Control: twoFold{rank, stop, &restarts}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error)
		go func() { served <- s.Serve(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
	pid := fmt.Sprint(os.Getpid())
	commands := map[string]func(context.Context, *command.Command, []string) error{
		"signal": Signal, "restart": Restart, "logs": Logs, "stop": Stop}
	for _, tt := range []struct {
		line   string
		status int
		want   string
	}{
		{"signal USR1 duo", console.ExitOK, "sent SIGUSR1 to rank 0 (pid 40)\nsent SIGUSR1 to rank 1 (pid 41)\n"},
		{"signal USR1 duo --rank 1", console.ExitOK, "sent SIGUSR1 to rank 1 (pid 41)\n"},
		{"signal USR1 duo --rank 2", console.ExitError, "error: job 'duo' (pid " + pid + "): rank 2 is elsewhere\n"},
		{"restart duo", console.ExitOK, "restarting the workers of job 'duo' (pid " + pid + ")\n"},
		{"logs duo", console.ExitError, "error: ask job 'duo' (pid " + pid + "): it answers 404: this server does not follow logs\n"},
		{"stop duo", console.ExitOK, strings.Repeat("stopping job 'duo' (pid "+pid+")\n", 2) + strings.Repeat("job 'duo' (pid "+pid+") has stopped\n", 2)},
	} {
		args := strings.Fields(tt.line)
		var said strings.Builder
		if status := command.Start(t.Context(), args[0], commands[args[0]], args[1:], &said, &said); status != tt.status || said.String() != tt.want {
			t.Errorf("muster %s: status %d, %s", tt.line, status, said.String())
		}
	}
	if n := restarts.Load(); n != 1 {
		t.Errorf("asked %d times for a restart", n)
	}
}

// Another user's agent cannot trouble root: it is asked only where it is meant, and its answer
// is bounded. A job's pid is no other job's run ID.
func TestOthersAgent(t *testing.T) {
	if !alone(t, ":") {
		return
	}
	job := startJob(t, "--rdzv-id", "mine")
	const uid = 65534
	dir := fmt.Sprintf("/tmp/muster-%d", uid)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, uid, uid)); err != nil {
		t.Fatal(err)
	}
	listening := make(chan error)
	var l net.Listener
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		var err error
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uid, ^uintptr(0)); errno != 0 {
			err = errno
		} else {
			l, err = net.Listen("unix", dir+"/"+job.pid()+".1")
		}
		listening <- err
	}()
	if err := <-listening; err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	served := make(chan bool)
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if n, _ := conn.Read(make([]byte, 4096)); n > 0 {
				asked.Add(1)
				fmt.Fprintf(conn, "HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n", maxOthers+1)
			}
			conn.Close()
		}
	}()
	defer func() { l.Close(); <-served }()
	for _, line := range []string{"top", "top " + job.pid(), "signal CONT " + job.pid()} {
		says(t, line, console.ExitOK)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("another user's agent was asked %d times", n)
	}
	says(t, "ps --json", console.ExitOK, fmt.Sprintf("the answer has a length of '%d' bytes; the limit is %d", maxOthers+1, maxOthers), `"run_id": "mine"`)
	if n := asked.Load(); n != 1 {
		t.Errorf("ps asked it %d times", n)
	}
	says(t, "logs "+job.pid(), console.ExitError, "wrote to no files")
}

// Without a directory for its socket a job runs, with one warning.
func TestNoSocket(t *testing.T) {
	for name, tt := range map[string]struct{ setUp, why string }{
		"read-only": {`mount -o remount,ro $OWN`, "read-only file system"},
		"full":      {`mount -o remount,nr_inodes=1 $OWN`, "no space left on device"},
		"open":      {`chmod 770 $OWN`, "is open to other users (mode 0770); remove it, or make it private: chmod 700 /tmp/muster-0"},
	} {
		t.Run(name, func(t *testing.T) {
			if !alone(t, tt.setUp) {
				return
			}
			said := says(t, "run --log-dir "+t.TempDir()+" --no-python true", console.ExitOK, tt.why)
			if strings.Count(said, "the job has no socket") != 1 || strings.Count(said, tt.why) != 1 {
				t.Errorf("want one warning: %s", said)
			}
		})
	}
}

// What waits for a place in a job that runs is not said to run.
func TestStateInPS(t *testing.T) {
	workers, hosts := []jobstate.Worker{{Rank: 0}}, make([]jobstate.Host, 2)
	for _, tt := range []struct {
		state jobstate.State
		want  string
	}{
		{jobstate.State{Job: jobstate.Job{Phase: "running"}, Hosts: hosts, Workers: workers}, "running"},
		{jobstate.State{Job: jobstate.Job{Phase: "rendezvous"}, Host: jobstate.Host{GroupRank: -1}, Hosts: hosts, Workers: workers}, "waiting"},
		{jobstate.State{Job: jobstate.Job{Phase: "rendezvous"}, Host: jobstate.Host{GroupRank: -1}}, "rendezvous"},
	} {
		if got := psState(&tt.state); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.state, got, tt.want)
		}
	}
}
