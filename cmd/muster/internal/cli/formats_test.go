package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/golden"
	"github.com/muster-run/muster/timer"
)

// formatsWorker is a worker of TestReferenceFormats. Its first attempt misses a deadline; in
// the second, rank 0 fails when it is told to.
func formatsWorker() {
	client := &timer.SocketClient{Path: os.Getenv(timer.EnvSocket)}
	dir, rank, first := os.Args[1], os.Getenv("RANK"), os.Getenv("TORCHELASTIC_RESTART_COUNT") == "0"
	fmt.Println("epoch 0: loss 0.065606")
	fmt.Fprintln(os.Stderr, "reading batch 3")
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	open := func(name string, flag int) *os.File { // while the test has it open
		f, err := os.OpenFile(filepath.Join(dir, name), flag, 0)
		check(err)
		return f
	}
	if rank == "0" && first {
		_, err := io.ReadFull(open("turn", os.O_RDONLY), make([]byte, 1)) // of rank 1, which is ready
		check(err)
		check(client.Acquire("batch", time.Now().Add(200*time.Millisecond)))
	} else {
		check(client.Heartbeat(120))
		check(client.Acquire("epoch", time.Now().Add(10*time.Minute)))
		goOn := open("go", os.O_RDONLY)
		open("ready", os.O_WRONLY).Write([]byte("x"))
		if first {
			open("turn", os.O_WRONLY).Write([]byte("x"))
		} else if rank == "0" {
			_, err := io.ReadAll(goOn)
			check(err)
			os.Exit(3)
		}
	}
	os.ReadFile(filepath.Join(dir, "never")) // until muster ends it
}

// fifo makes a FIFO of these workers. It is open for both, so that nobody sees an end of it.
func fifo(t *testing.T, dir, name string) *os.File {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// An example is JSON of a real run, as docs/formats.md shows it.
type example struct {
	name  string
	lines bool // each value on one line
	text  []string
}

// What a machine has of its own: the addresses and the boot ID of a message, and where tests have their files.
var (
	addresses  = regexp.MustCompile(`"hosts":\[[^{\]]*\]`)
	bootIDs    = regexp.MustCompile(`"boot":"[0-9a-f-]*"`)
	localPaths = regexp.MustCompile(`/[\w./-]*/(?:testscript-main\d+/bin|TestReferenceFormats\d+/\d+)`)
)

// What depends on the kernel, on what the user may see, and on the network.
var ofMachine = regexp.MustCompile(`^autopsy: \.(?:workers\[\]\.(?:(?:native|sockets|python)\.|problems)|groups\[\]\.)|^doctor: \.lines\[\]\.|^messages: \.(?:hosts|boot)`)

// The examples in docs/formats.md have the keys that a real run has; `make reference` writes
// those that do not.
func TestReferenceFormats(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems tell less of a process")
	}
	dir := t.TempDir()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	examples := slices.Concat(failedJob(t, dir), preemptedJob(t, dir), hosts(t, dir), printed(t, dir))
	const page = "../../../../docs/formats.md"
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for _, e := range examples {
		begin := "<!-- " + e.name + ": written by \"make reference\" -->\n"
		before, rest, ok := strings.Cut(text, begin)
		have, after, more := strings.Cut(rest, "<!-- end -->")
		if !ok || !more {
			t.Errorf("docs/formats.md has no place for %s", e.name)
			continue
		}
		var want bytes.Buffer
		wantKeys, haveKeys := map[string]bool{}, map[string]bool{}
		for _, one := range e.text {
			one = strings.NewReplacer(dir, "/home/user", host, "host0").Replace(one)
			one = bootIDs.ReplaceAllString(one, `"boot":"b9d6d1a2-3f0c-4e55-9a37-6c2f1d0e8a41"`)
			one = localPaths.ReplaceAllString(addresses.ReplaceAllString(one, `"hosts":["10.0.0.2/32"]`), "/home/user")
			d := json.NewDecoder(strings.NewReader(one))
			d.UseNumber()
			v, err := readShort(d)
			if err != nil {
				t.Fatalf("%s: %v in %s", e.name, err, one)
			}
			keys(e.name+": ", v, wantKeys)
			if compact := v.append(nil); e.lines {
				want.Write(compact)
			} else if err := json.Indent(&want, compact, "", "  "); err != nil {
				t.Fatal(err)
			}
			want.WriteByte('\n')
		}
		_, have, _ = strings.Cut(have, "```json\n")
		have, _, _ = strings.Cut(have, "```")
		for d := json.NewDecoder(strings.NewReader(have)); ; {
			if v, err := readShort(d); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("docs/formats.md, %s: %v", e.name, err)
			} else {
				keys(e.name+": ", v, haveKeys)
			}
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(wantKeys)), slices.Sorted(maps.Keys(haveKeys))); diff == "" {
			continue
		} else if !*golden.Update {
			t.Errorf("docs/formats.md, %s: the keys differ from a run's (-run +page); `make reference` writes them:\n%s", e.name, diff)
		}
		text = before + begin + "\n```json\n" + want.String() + "```\n\n<!-- end -->" + after
	}
	if *golden.Update {
		if err := os.WriteFile(page, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// A value is one of JSON whose objects keep their order.
type value struct {
	names  []string // of an object
	of     []value  // of an object or a list
	kind   json.Delim
	scalar any
}

// readShort reads a value. Of a list of objects it keeps the first, of another one the first two.
func readShort(d *json.Decoder) (v value, err error) {
	token, err := d.Token()
	if err != nil {
		return v, err
	}
	var open bool
	if v.kind, open = token.(json.Delim); !open {
		v.scalar = token
		return v, nil
	}
	for d.More() {
		if v.kind == '{' {
			name, err := d.Token()
			if err != nil {
				return v, err
			}
			v.names = append(v.names, name.(string))
		}
		member, err := readShort(d)
		if err != nil {
			return v, err
		}
		if v.kind == '{' || len(v.of) == 0 || len(v.of) == 1 && v.of[0].kind != '{' {
			v.of = append(v.of, member)
		}
	}
	_, err = d.Token()
	return v, err
}

func (v value) append(b []byte) []byte {
	if v.kind == 0 {
		text, _ := json.Marshal(v.scalar)
		return append(b, text...)
	}
	b = append(b, byte(v.kind))
	for i, member := range v.of {
		if i > 0 {
			b = append(b, ',')
		}
		if v.kind == '{' {
			b = strconv.AppendQuote(b, v.names[i])
			b = append(b, ':')
		}
		b = member.append(b)
	}
	return append(b, byte(v.kind)+2)
}

// keys adds the paths of all keys. What is null or empty in one run may have keys in another.
func keys(path string, v value, to map[string]bool) {
	for i, member := range v.of {
		below := path + "[]"
		if v.kind == '{' {
			below = path + "." + v.names[i]
			if !ofMachine.MatchString(below) {
				to[below] = true
			}
		}
		keys(below, member, to)
	}
}

// startFormats starts muster; its log has JSON.
func startFormats(t *testing.T, stderr io.Writer, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("muster", append([]string{"run", "--log-format", "json"}, args...)...)
	cmd.Env = append(os.Environ(), append([]string{"MUSTER_DEVICES=0"}, env...)...)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// one is the file that a pattern finds.
func one(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) != 1 {
		t.Fatalf("%s finds %q: %v", pattern, files, err)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}

// lineWith is the first line with a text.
func lineWith(t *testing.T, lines, text string) string {
	t.Helper()
	for l := range strings.Lines(lines) {
		if strings.Contains(l, text) {
			return l
		}
	}
	t.Fatalf("no line has %s:\n%s", text, lines)
	return ""
}

// failedJob is a job whose first attempt misses a deadline and whose second fails.
func failedJob(t *testing.T, dir string) []example {
	fifos := t.TempDir()
	ready, goOn := fifo(t, fifos, "ready"), fifo(t, fifos, "go")
	fifo(t, fifos, "turn")
	fifo(t, fifos, "never")
	logs, socket, errorFile := filepath.Join(dir, "logs"), filepath.Join(fifos, "s"), filepath.Join(dir, "error.json")
	t.Setenv("XDG_RUNTIME_DIR", fifos)
	if err := os.Chmod(fifos, 0o700); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := startFormats(t, &stderr, []string{"TORCHELASTIC_ERROR_FILE=" + errorFile}, "--rdzv-id", "job7", "--title", "llama-7b", "--nproc-per-node", "2",
		"--max-restarts", "1", "--log-dir", logs, "--redirects", "3", "--event-log-handler", "file", "--health-addr", "unix:"+socket,
		"--on-event", "cat >>"+dir+"/on-event.jsonl", "--no-python", "train", fifos)
	both := make([]byte, 3) // rank 1 in the first attempt, both in the second
	ready.SetReadDeadline(time.Now().Add(5 * time.Minute))
	if _, err := io.ReadFull(ready, both); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatalf("the workers do not come to their places: %v\n%s", err, &stderr)
	}
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	state := ""
	seen := func(text string) bool { return strings.Count(state, text) == 2 } // of each worker
	for !seen(`"epoch 0: `) || !seen(`"reading batch 3"`) || !seen(`"rss_bytes"`) || !seen(`"last_output":"`) {
		answer, err := client.Get("http://localhost/v1/state")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		state = string(text)
	}
	ps, err := exec.Command("muster", "ps", "--json").Output()
	var list struct {
		Jobs    []json.RawMessage `json:"jobs"`
		Version int               `json:"version"`
	}
	if err == nil {
		err = json.Unmarshal(ps, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	list.Jobs = slices.DeleteFunc(list.Jobs, func(j json.RawMessage) bool { // of other tests
		return !bytes.Contains(j, fmt.Appendf(nil, `"pid": %d,`, cmd.Process.Pid))
	})
	ps, _ = json.Marshal(list)
	ps = regexp.MustCompile(`"user":"[^"]*"`).ReplaceAll(ps, []byte(`"user":"user"`))
	goOn.Write([]byte("x"))
	goOn.Close()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("the job ended with %v:\n%s", err, &stderr)
	}
	events := one(t, filepath.Join(logs, "job7_*", "events.jsonl"))
	return []example{
		{"report", false, []string{one(t, filepath.Join(logs, "job7_*", "attempt_0", "report.json"))}},
		{"job", true, strings.Split(one(t, filepath.Join(logs, "job7_*", "job.jsonl")), "\n")},
		{"time", true, strings.Split(one(t, filepath.Join(logs, "job7_*", "time.jsonl")), "\n")},
		{"state", false, []string{state}},
		{"ps", false, []string{string(ps)}},
		{"worker event", false, []string{lineWith(t, events, `"worker_id": "`)}},
		{"watchdog event", false, []string{lineWith(t, events, `"timer expired"`)}},
		{"attempt event", false, []string{lineWith(t, events, `"muster.attempt.failed"`)}},
		{"rendezvous event", false, []string{lineWith(t, events, `"rendezvous.Next"`)}},
		{"autopsy", false, []string{one(t, filepath.Join(logs, "job7_*", "attempt_0", "autopsy.json"))}},
		{"on-event", true, []string{lineWith(t, one(t, filepath.Join(dir, "on-event.jsonl")), `"event":"failure"`)}},
		{"log line", true, []string{lineWith(t, stderr.String(), `"msg":"timers expired"`)}},
		{"error file", false, []string{one(t, errorFile)}},
	}
}

// preemptedJob is a job that is told to stop.
func preemptedJob(t *testing.T, dir string) []example {
	fifos := t.TempDir()
	ready := fifo(t, fifos, "ready")
	fifo(t, fifos, "never")
	logs := filepath.Join(dir, "preempted")
	var stderr bytes.Buffer
	cmd := startFormats(t, &stderr, nil, "--rdzv-id", "job8", "--preemption-signals", "SIGUSR1", "--log-dir", logs, "--redirects", "3",
		"--event-log-handler", "file", "--no-python", "sh", "-c", `echo x > "$0/ready"; exec cat "$0/never"`, fifos)
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Signal(syscall.SIGUSR1)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 75 {
		t.Fatalf("the job ended with %v:\n%s", err, &stderr)
	}
	var report struct{ Preempted json.RawMessage }
	if err := json.Unmarshal([]byte(one(t, filepath.Join(logs, "job8_*", "attempt_0", "report.json"))), &report); err != nil {
		t.Fatal(err)
	}
	return []example{
		{"preempted", false, []string{string(report.Preempted)}},
		{"preempted event", false, []string{lineWith(t, one(t, filepath.Join(logs, "job8_*", "events.jsonl")), `"muster.job.preempted"`)}},
	}
}

// printed is what commands print, of the failed job and of the examples.
func printed(t *testing.T, dir string) (list []example) {
	for name, args := range map[string]string{
		"report run": "report --json " + dir + "/logs", "report list": "report --list --json " + dir + "/logs",
		"doctor": "doctor --json --no-python true",
	} {
		cmd := exec.Command("muster", strings.Fields(args)...)
		cmd.Dir = "../../../../examples"
		out, err := cmd.Output()
		if err != nil && name != "doctor" { // which may find something
			t.Fatalf("muster %s: %v", args, err)
		}
		list = append(list, example{name, false, []string{string(out)}})
	}
	return list
}

// hosts is a job of two agents. What one of them exchanges with the other goes through a
// proxy that keeps it.
func hosts(t *testing.T, dir string) []example {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	reserved, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := reserved.Addr().String()
	reserved.Close()
	var mu sync.Mutex
	var streams [][]byte // what went one way through a connection
	keep := func(to, from net.Conn) {
		defer to.Close()
		mu.Lock()
		i := len(streams)
		streams = append(streams, nil)
		mu.Unlock()
		b := make([]byte, 1<<16)
		for {
			n, err := from.Read(b)
			mu.Lock()
			streams[i] = append(streams[i], b[:n]...)
			mu.Unlock()
			if _, werr := to.Write(b[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", endpoint)
			if err != nil {
				near.Close()
				continue
			}
			go keep(near, far)
			go keep(far, near)
		}
	}()
	var agents []*exec.Cmd
	var stderr [2]bytes.Buffer
	for i, at := range []string{endpoint, listener.Addr().String()} {
		agents = append(agents, startFormats(t, &stderr[i], nil, "--rdzv-id", "job9", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", at,
			"--rdzv-conf", fmt.Sprintf("is_host=%t", i == 0), "--local-addr", fmt.Sprintf("127.0.0.%d", i+1), "--log-dir", filepath.Join(dir, fmt.Sprint("host", i)), "--no-python", "sh", "-c", "exit 3"))
	}
	for i, agent := range agents {
		if err := agent.Wait(); agent.ProcessState.ExitCode() != 1 {
			t.Fatalf("an agent ended with %v:\n%s", err, &stderr[i])
		}
	}
	mu.Lock()
	defer mu.Unlock()
	find := func(begin string) string {
		for _, stream := range streams {
			for _, at := range regexp.MustCompile(regexp.QuoteMeta(begin)).FindAllIndex(stream, -1) {
				var v json.RawMessage
				if json.NewDecoder(bytes.NewReader(stream[at[0]:])).Decode(&v) == nil {
					return string(v)
				}
			}
		}
		t.Fatalf("the agents did not exchange %s:\n%q", begin, streams)
		return ""
	}
	return []example{
		{"messages", true, []string{find(`{"type":"hello"`), find(`{"type":"join"`), find(`{"type":"round"`)}},
		{"failed", false, []string{find(`{"node":`)}},
	}
}
