//go:build linux

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/testproc"
)

// A defect of torchrun 2.15, by its number in the notes this project began with.
// The probe runs a job and returns what is wrong with how it went: nothing under
// muster, something under torchrun.
type defect struct {
	id, what string
	probe    func(t *testing.T, l launcher) error
}

var defects = []defect{
	{"D1", "a restart re-uses the worker store", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 2 --max-restarts 1",
			"report:$TORCHELASTIC_RESTART_COUNT $MASTER_PORT", "gate", "a0:r1:exit:9", "a0:hang", "exit:0")
		ports := map[string]string{}
		for range 2 {
			attempt, port, _ := strings.Cut(j.line(), " ")
			ports[attempt] = port
		}
		j.gate.Open()
		j.want(0)
		for _, line := range j.rest() {
			attempt, port, _ := strings.Cut(line, " ")
			ports[attempt] = port
		}
		if len(ports) != 2 || ports["0"] == ports["1"] {
			return fmt.Errorf("ports by attempt: %v", ports)
		}
		return nil
	}},
	{"D6", "the root cause is found by whole seconds and rank", func(t *testing.T, l launcher) error {
		dir := t.TempDir()
		// A long interval puts both deaths into one poll.
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 2 --monitor-interval 3 --event-log-handler console",
			"ignore:TERM", "pid:"+dir, "ready", "gate", "r1:exit:11", "r0:after:"+dir+" 1", "r0:exit:10")
		j.await("ready 0", "ready 1")
		if l.name == "muster" { // it cannot know the order of deaths that were before it came to watch
			j.awaitErrs("worker.status.START", 2)
		}
		j.gate.Open()
		j.want(1)
		cause := strings.Join(j.rootCause(), "\n")
		if !strings.Contains(cause, "rank      : 1") || !strings.Contains(cause, "exitcode  : 11") {
			return fmt.Errorf("the second failure is named as the cause:\n%s", cause)
		}
		return nil
	}},
	{"D7", "a worker in uninterruptible sleep makes the job succeed", func(t *testing.T, l launcher) error {
		s := setup{env: []string{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=1"}}
		j := workers(t, l, s, "--standalone --nproc-per-node 2 --max-restarts 3 --shutdown-timeout 1", "ready", "r1:report:stuck", "r1:vfork", "hang")
		j.await("ready 0", "ready 1", "stuck")
		status := j.statusOrHang()
		if more := j.rest(); len(more) > 0 {
			t.Errorf("it was restarted: %q", more)
		}
		if status != 1 {
			return fmt.Errorf("exit status %d\n%s", status, j.console())
		}
		return left(j, 0)
	}},
	{"D8", "a half-written error file crashes the agent", func(t *testing.T, l launcher) error {
		var all error
		for _, text := range []string{`{"mess`, ``, `[]`, `{"message": {}}`, `\x00\xff`, `{"message": {"message": "m", "extraInfo": {"timestamp": "soon"}}}`} {
			j := workers(t, l, setup{}, "--standalone --nproc-per-node 1 --max-restarts 1", "a0:errorfile:"+text, "a0:exit:1", "exit:0")
			if status := j.status(); status != 0 {
				all = errors.Join(all, fmt.Errorf("error file %q: no restart, status %d", text, status))
			}
			if l.name == "torchrun" && all != nil {
				return all
			}
		}
		j := workers(t, l, setup{}, "--standalone", `errorfile:{"mess`, "exit:1")
		if j.want(1); !strings.Contains(j.errs(), "exitcode  : 1") {
			all = errors.Join(all, errors.New("no report"))
		}
		return all
	}},
	{"D9", "a relative log directory loses error files of workers that change theirs", func(t *testing.T, l launcher) error {
		s := setup{dir: t.TempDir()}
		j := workers(t, l, s, "--standalone --log-dir logs", "cd:/", `errorfile:{"message": {"message": "boom of D9", "extraInfo": {"timestamp": "1700000000", "py_callstack": "boom of D9"}}}`, "exit:1")
		if j.want(1); !strings.Contains(j.errs(), "boom of D9") {
			return fmt.Errorf("the report lacks what the worker recorded\n%s", j.console())
		}
		return nil
	}},
	{"D10", "--shutdown-timeout is ignored when a failed worker's peers are stopped", slowPeers},
	{"P4", "30 s for peers, whatever --shutdown-timeout says", slowPeers},
	{"D11", "a third SIGTERM leaves workers behind", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 2 --shutdown-timeout 60",
			"catch:TERM", "catch:TERM", "ignore:TERM", "report:deaf", "hang")
		j.await("ready 0", "ready 1").signal(syscall.SIGTERM)
		for _, lines := range [][]string{{"ready 0", "ready 1"}, {"deaf", "deaf"}} {
			if !j.awaitOrEnd(lines...) {
				break
			}
			if l.name == "torchrun" {
				j.cmd.Process.Signal(syscall.SIGTERM)
			} else {
				j.insist(syscall.SIGTERM) // the second may be taken for an echo of the first
			}
		}
		j.within(patience)
		return left(j, 0)
	}},
	{"D11", "SIGKILL of the agent leaves workers behind", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 2", "ready", "hang")
		j.await("ready 0", "ready 1").signal(syscall.SIGKILL)
		j.want(-9)
		return left(j, soon)
	}},
	{"D11", "an unlisted signal to the agent leaves workers behind", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 2 --signals-to-handle SIGINT", "ready", "hang")
		j.await("ready 0", "ready 1").signal(syscall.SIGTERM)
		j.want(-15)
		return left(j, soon)
	}},
	{"D12", "a signal in the first rendezvous kills the agent", func(t *testing.T, l launcher) error {
		// Its store is somebody who takes the connection and says nothing.
		mute, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer mute.Close()
		j := workers(t, l, setup{}, "--rdzv-backend c10d --rdzv-conf is_host=0 --rdzv-endpoint "+mute.Addr().String(), "ready", "exit:0")
		conn, err := mute.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		j.signal(syscall.SIGTERM)
		if status := j.status(); status != 1 || !strings.Contains(j.errs(), "SIGTERM") {
			return fmt.Errorf("status %d, and it says %q", status, j.errs())
		}
		return nil
	}},
	{"D15", "what one failure records appears in others", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 2 --event-log-handler console", "r1:exit:3", "hang").want(1)
		var all error
		for _, e := range events(t, j) {
			text, _ := e.Metadata["raw_error"].(string)
			rank, _ := e.Metadata["global_rank"].(float64)
			if e.Source == "WORKER" && rank == 0 && strings.Contains(text, "errorTraits") {
				all = fmt.Errorf("rank 0, which was stopped, has rank 1's errorTraits: %s", text)
			}
		}
		return all
	}},
	{"D16", "events have no time, lists for numbers, and success for failed jobs", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 2 --event-log-handler console", "r1:exit:3", "hang").want(1)
		var all error
		for _, e := range events(t, j) {
			if e.Timestamp == 0 {
				all = errors.Join(all, fmt.Errorf("%s has timestamp 0", e.Name))
			}
			if e.Source == "AGENT" && e.Metadata["state"] == "SUCCEEDED" {
				all = errors.Join(all, errors.New("the agent SUCCEEDED"))
			}
			var inner map[string]any
			text, _ := e.Metadata["metadata"].(string)
			if err := json.Unmarshal([]byte(text), &inner); err != nil {
				t.Errorf("inner metadata %q: %v", text, err)
			}
			if list, ok := inner["local_rank"].([]any); ok {
				all = errors.Join(all, fmt.Errorf("%s has local_rank %v", e.Name, list))
			}
		}
		return all
	}},
	{"D16", "an unknown event handler is noticed after the rendezvous", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --event-log-handler nosuch", "ready", "exit:0")
		if status := j.status(); status != 2 || !strings.Contains(j.errs(), "nosuch") || strings.Contains(j.errs(), "Traceback") {
			return fmt.Errorf("status %d, want 2 and no traceback", status)
		}
		return nil
	}},
	{"D17", "peers that the agent stopped are listed as failures", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 3", "ready", "gate", "r1:exit:3", "hang")
		j.await("ready 0", "ready 1", "ready 2").gate.Open()
		j.want(1)
		_, block, _ := strings.Cut(j.errs(), "\nFailures:\n")
		block, _, _ = strings.Cut(block, "Root Cause")
		if strings.Contains(block, "SIGTERM") {
			return fmt.Errorf("failures:\n%s", block)
		}
		return nil
	}},
	{"D18", "--shutdown-timeout 0 claims that processes did not die", func(t *testing.T, l launcher) error {
		// Of several workers one or the other is not dead at once.
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 6 --shutdown-timeout 0", "ready", "hang")
		j.await("ready 0", "ready 1", "ready 2", "ready 3", "ready 4", "ready 5").signal(syscall.SIGTERM)
		j.want(1)
		if strings.Contains(j.errs(), "did not exit") {
			return errors.New(strings.Join(grep(j.errs(), "did not exit"), "\n"))
		}
		return left(j, 0)
	}},

	{"P0", "lines tee'd to a pipe are held back", func(t *testing.T, l launcher) error {
		r, w := pipe(t)
		j := workers(t, l, setup{stdout: w}, "--standalone -t 1", `print:hello\n`, "ready", "gate", "exit:0")
		w.Close()
		j.await("ready 0")
		r.SetReadDeadline(time.Now().Add(soon))
		line, err := bufio.NewReader(r).ReadString('\n')
		j.gate.Open()
		j.want(0)
		if err != nil {
			return fmt.Errorf("read %q, %v", line, err)
		}
		return nil
	}},
	{"P1", "parts of lines are printed, prefixed again and mixed", func(t *testing.T, l launcher) error {
		r, w := pipe(t)
		s := setup{stdout: w, env: []string{"PYTHONUNBUFFERED=1"}}
		j := workers(t, l, s, "--standalone --nproc-per-node 2 -t 1", "print:part", "ready", "gate", `print:ial\n`, "print:no newline", "exit:0")
		w.Close()
		j.await("ready 0", "ready 1")
		// Whoever prints parts has had the time to.
		r.SetReadDeadline(time.Now().Add(time.Second))
		buf := make([]byte, 1000)
		n, _ := r.Read(buf)
		r.SetReadDeadline(time.Time{})
		all := collect(r)
		j.gate.Open()
		j.want(0)
		got := strings.Split(strings.TrimSuffix(string(buf[:n])+all(), "\n"), "\n")
		slices.Sort(got)
		if want := []string{"[default0]:no newline", "[default0]:partial", "[default1]:no newline", "[default1]:partial"}; !slices.Equal(got, want) {
			return fmt.Errorf("console has %q, want %q", got, want)
		}
		return nil
	}},
	{"P2", "a carriage return becomes a new line", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone -t 1", `print:10%\r20%\r30%\ndos\r\n`, "exit:0").want(0)
		// The prefix is repeated, or it would be overwritten.
		if got, want := j.out(), "[default0]:10%\r[default0]:20%\r[default0]:30%\n[default0]:dos\r\n"; got != want {
			return fmt.Errorf("console has %q, want %q", got, want)
		}
		return nil
	}},
	{"P3", "children of dead workers live on", func(t *testing.T, l launcher) error {
		var all error
		for _, last := range []string{"exit:0", "exit:5"} {
			j := workers(t, l, setup{env: []string{"MUSTER_HELPER_TIMEOUT=1"}}, "--standalone --shutdown-timeout 3", "brood", "gate", last)
			j.await("grandchild", "grandchild", "grandchild").gate.Open()
			j.within(patience)
			all = errors.Join(all, left(j, 0))
		}
		return all
	}},
	{"P5", "a failed start of one worker leaves those before it", func(t *testing.T, l launcher) error {
		// Log files for 40 workers do not fit in 100 descriptors.
		s := setup{wrap: []string{"/bin/sh", "-c", `ulimit -n 100; exec "$@"`, "sh"}}
		j := workers(t, l, s, "--standalone --nproc-per-node 40 -r 3", "ready", "gate", "exit:0")
		if j.awaitOrEnd(slices.Collect(func(yield func(string) bool) {
			for i := range 40 {
				if !yield("ready " + itoa(i)) {
					return
				}
			}
		})...) {
			j.gate.Open()
			j.want(0)
		}
		return left(j, 0)
	}},
	{"P6", "--log-dir /dev/null ignores the rank filter", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 2 --log-dir /dev/null --local-ranks-filter 1",
			`r0:print:apple 0\n`, `r1:print:apple 1\n`, "exit:0").want(0)
		if got := j.out(); got != "apple 1\n" {
			return fmt.Errorf("the console has %q, want rank 1 only", got)
		}
		return nil
	}},
	{"P6", "--log-dir /dev/null crashes with line filters", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --log-dir /dev/null --duplicate-stdout-filters apple", "exit:0")
		if status := j.status(); status != 2 || !strings.Contains(j.errs(), "/dev/null keeps no files") {
			return fmt.Errorf("status %d, want 2 and a word about the filters", status)
		}
		return nil
	}},
	{"P7", "filters see parts of lines, and tee'd ranks only", func(t *testing.T, l launcher) error {
		dir := t.TempDir()
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 2 -t 0:1 -r 1:1 --duplicate-stdout-filters apple --log-dir "+dir,
			"print:green app", "ready", "gate", `print:le\npear\n`, "exit:0")
		j.await("ready 0", "ready 1")
		j.gate.Open()
		j.want(0)
		got := grep(contents(t, one(t, dir, "*/attempt_0/filtered_stdout.log")), "")
		slices.Sort(got)
		if want := []string{"[default0]:green apple", "[default1]:green apple"}; !slices.Equal(got, want) {
			return fmt.Errorf("filtered file has %q, want %q", got, want)
		}
		return nil
	}},
	{"P8", "local ranks above 9 cannot be named", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --nproc-per-node 11 -t 10:1", `r10:print:hello\n`, "exit:0")
		if status := j.status(); status != 0 || j.out() != "[default10]:hello\n" {
			return fmt.Errorf("status %d, console %q", status, j.out())
		}
		return nil
	}},
	{"P9", "temporary log directories pile up", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone", "exit:0").want(0)
		if got := glob(t, j.tmp, "*"); len(got) > 0 {
			return fmt.Errorf("left in TMPDIR: %q", got)
		}
		return nil
	}},
	{"P10", "a program that cannot be executed crashes the agent", func(t *testing.T, l launcher) error {
		path := script(t, "noshebang", "echo hi\n")
		j := run(t, l, setup{}, "--standalone --no-python", path).want(1)
		if !strings.Contains(j.errs(), "FAILED") || !strings.Contains(j.errs(), "Root Cause") {
			return fmt.Errorf("no report")
		}
		return nil
	}},
	{"P11", "the end of a worker is noticed at the next poll", func(t *testing.T, l launcher) error {
		j := workers(t, l, setup{}, "--standalone --monitor-interval 100", "ready", "gate", "exit:0")
		j.await("ready 0")
		began := time.Now()
		j.gate.Open()
		j.want(0)
		if d := time.Since(began); d > 50*time.Second {
			return fmt.Errorf("noticed after %v", d)
		}
		return nil
	}},
}

func slowPeers(t *testing.T, l launcher) error {
	j := workers(t, l, setup{}, "--standalone --nproc-per-node 2 --shutdown-timeout 1", "r0:ignore:TERM", "ready", "gate", "r1:exit:3", "hang")
	j.await("ready 0", "ready 1")
	began := time.Now()
	j.gate.Open()
	j.want(1)
	if d := time.Since(began); d > 20*time.Second {
		return fmt.Errorf("took %v", d)
	}
	return left(j, 0)
}

// left is noneLeft for a probe.
func left(j *job, d time.Duration) error {
	deadline := time.Now().Add(d)
	for pid := range j.tag.Processes() {
		testproc.AwaitEnd(pid, time.Until(deadline))
	}
	if left := j.tag.Processes(); len(left) > 0 {
		return fmt.Errorf("%d processes left: %v", len(left), left)
	}
	return nil
}

// awaitErrs waits until the launcher has written a text n times.
func (j *job) awaitErrs(text string, n int) {
	j.t.Helper()
	for deadline := time.After(patience); strings.Count(j.errs(), text) < n; {
		select {
		case <-time.After(time.Millisecond):
		case <-j.ended:
			j.t.Fatalf("%s ended without %d times %q\n%s", j.l.name, n, text, j.console())
		case <-deadline:
			j.t.Fatalf("%s does not say %q\n%s", j.l.name, text, j.console())
		}
	}
}

// awaitOrEnd waits for the lines, or for the end of the launcher; false then.
func (j *job) awaitOrEnd(lines ...string) bool {
	missing := len(lines)
	want := map[string]int{}
	for _, l := range lines {
		want[l]++
	}
	for missing > 0 {
		select {
		case l := <-j.board.Lines:
			if want[l] > 0 {
				want[l]--
				missing--
			}
		case <-j.ended:
			return false
		case <-time.After(patience):
			j.t.Fatalf("%s neither ends nor reports %q\n%s", j.l.name, lines, j.console())
		}
	}
	return true
}

type event struct {
	Name, Source string
	Timestamp    float64
	Metadata     map[string]any
}

// events reads those that the console handler wrote.
func events(t *testing.T, j *job) []event {
	t.Helper()
	var all []event
	for _, line := range grep(j.errs(), `^\{"name"`) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, e)
	}
	if len(all) < 5 {
		t.Fatalf("only %d events\n%s", len(all), j.console())
	}
	return all
}

func TestDefects(t *testing.T) {
	t.Parallel()
	for _, d := range defects {
		t.Run(d.id+" "+d.what, func(t *testing.T) {
			t.Parallel()
			if err := d.probe(t, muster(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestJudgeDefects(t *testing.T) {
	for _, d := range defects {
		t.Run(d.id+" "+d.what, func(t *testing.T) {
			if err := d.probe(t, judge(t)); err != nil {
				t.Logf("as expected: %v", err)
			} else {
				t.Error("torchrun does not show this defect any more")
			}
		})
	}
}

// Each of them has its line in docs/differences.md.
func TestDefectsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "differences.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range defects {
		if !strings.Contains(string(text), "| "+d.id+" ") && !strings.Contains(string(text), ", "+d.id+" ") && !strings.Contains(string(text), d.id+", ") {
			t.Errorf("%s (%s) is not in docs/differences.md", d.id, d.what)
		}
	}
}
