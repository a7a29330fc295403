package failure_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/failure"
)

var update = flag.Bool("update", false, "rewrite testdata/report")

func text(t *testing.T, r *failure.Report) string { return written(t, r.WriteText) }

func block(t *testing.T, r *failure.Report) string { return written(t, r.WriteTorchrun) }

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b strings.Builder
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func after(d time.Duration) time.Time { return noon.Add(d) }

// peer is rank n, ended by SIGTERM 100 ms after noon.
func peer(n int, stoppedBy syscall.Signal) *failure.ProcessFailure {
	return failure.New(failure.Observation{LocalRank: n, Rank: n, PID: 10091 + n, ExitCode: -15,
		Ended: after(100*time.Millisecond + time.Duration(n)), StoppedBy: failure.Signal(stoppedBy), Host: "h.example"})
}

// Without what muster adds, the block is torchrun's, byte for byte.
// Source: golden/fail-plain, fail-signal, fail-record.
func TestReportGolden(t *testing.T) {
	record := strings.ReplaceAll(read(t, "testdata/torchrun-2.15/worker_error.json"), "<UNIX_SECS>", fmt.Sprint(noon.Unix()))
	tests := []struct {
		golden, title string
		exitCode      int
		errorFile     string
	}{
		{"fail-plain-exit3.txt", "fail.py", 3, ""},
		{"fail-plain-raise.txt", "fail.py", 1, ""},
		{"fail-signal-segv.txt", "fail.py", -11, ""},
		{"fail-record-raise.txt", "rec.py", 1, record},
	}
	for _, tt := range tests {
		t.Run(tt.golden, func(t *testing.T) {
			o := failure.Observation{LocalRank: 1, Rank: 1, PID: 10092, ExitCode: tt.exitCode, Ended: noon, Host: "h.example", StderrPath: "/logs/stderr.log"}
			if tt.errorFile != "" {
				o.ErrorFile = write(t, tt.errorFile)
			}
			got := block(t, failure.NewReport(failure.ReportConfig{Title: tt.title}, []*failure.ProcessFailure{peer(0, 0), failure.New(o), peer(2, 0)}))
			_, got, ok := strings.Cut(got, "\n")
			if !ok {
				t.Fatal("no first line")
			}
			var kept []string
			for l := range strings.Lines(got) {
				if !strings.HasPrefix(l, "  cause     : ") && !strings.HasPrefix(l, "  hint      : ") && !strings.HasPrefix(l, "  log       : ") {
					kept = append(kept, l)
				}
			}
			got = strings.Join(kept, "")
			want := strings.NewReplacer("<FQDN>", "h.example", "<YYYY-MM-DD_HH:MM:SS>", noon.Local().Format("2006-01-02_15:04:05"),
				"LOGDIR/<UUID>_<RAND8>/attempt_0/1/error.json", o.ErrorFile,
				// torchrun's advice is what muster does anyway.
				"To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html", "none, neither in an error file nor on the worker's stderr").Replace(read(t, filepath.Join("testdata/torchrun-2.15", tt.golden)))
			got = strings.NewReplacer("pid: 10091", "pid: <PID>", "pid: 10092", "pid: <PID>", "pid: 10093", "pid: <PID>",
				"PID 10091", "PID <PID>", "PID 10092", "PID <PID>", "PID 10093", "PID <PID>").Replace(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Whole reports, as people see them: muster's own, then torchrun's.
func TestReportText(t *testing.T) {
	local := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = local })
	worker := func(n int, o failure.Observation) *failure.ProcessFailure {
		if o.Rank, o.LocalRank, o.Host = n, n, "h.example"; o.Err == nil {
			o.PID = 10091 + n
		}
		if o.Ended.IsZero() {
			o.Ended = noon
		}
		return failure.New(o)
	}
	chatter := strings.Repeat("epoch 1: loss nan\n", 30) + "assertion failed: loss is nan\n"
	tests := []struct {
		name     string
		cfg      failure.ReportConfig
		failures []*failure.ProcessFailure
	}{
		{"lifted", failure.ReportConfig{Title: "train.py", Attempt: 2, Restarts: 2}, []*failure.ProcessFailure{
			peer(0, syscall.SIGTERM), worker(1, failure.Observation{ExitCode: 1, Evidence: failure.Evidence{StderrTail: []byte(simple)}, StderrPath: "/logs/attempt_2/1/stderr.log"}), peer(2, syscall.SIGTERM)}},
		{"tail", failure.ReportConfig{Title: "train.py"}, []*failure.ProcessFailure{
			worker(0, failure.Observation{ExitCode: 3, Evidence: failure.Evidence{StderrTail: []byte(chatter)}, StderrPath: "/logs/0/stderr.log"})}},
		{"tail of both", failure.ReportConfig{Title: "train.py"}, []*failure.ProcessFailure{
			worker(0, failure.Observation{ExitCode: 3, Evidence: failure.Evidence{Mixed: true, StderrTail: []byte("epoch 1\n")}})}},
		{"oom", failure.ReportConfig{Title: "train.py"}, []*failure.ProcessFailure{
			worker(0, failure.Observation{ExitCode: 1, Ended: after(-time.Millisecond), Evidence: failure.Evidence{StderrTail: []byte(strings.Replace(simple,
				"boom\nsecond line", "[/x/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711", 2))}}),
			worker(1, failure.Observation{ExitCode: -9, OOM: "cgroup memory.events: oom_kill 0→1"}), peer(2, syscall.SIGTERM)}},
		{"start", failure.ReportConfig{Title: "/no/such/prog"}, []*failure.ProcessFailure{
			worker(0, failure.Observation{ExitCode: 127, Evidence: failure.Evidence{Entrypoint: "/no/such/prog", Err: fmt.Errorf("start worker 0: %w", syscall.ENOENT)}})}},
		{"broken error file", failure.ReportConfig{Title: "train.py"}, []*failure.ProcessFailure{
			func() *failure.ProcessFailure {
				f := worker(0, failure.Observation{ExitCode: 1, ErrorFile: write(t, `{"mess`)})
				f.ErrorFile = "/logs/0/error.json"
				return f
			}()}},
		{"message", failure.ReportConfig{Title: "train.py"}, []*failure.ProcessFailure{
			worker(0, failure.Observation{ExitCode: 1, Evidence: failure.Evidence{Err: errors.New("out of cheese\nthe shop is closed")}})}},
		{"hang", failure.ReportConfig{Title: "train.py", Autopsy: "rank 0 in read (t.py:4), 1 rank in all_reduce (t.py:9)", AutopsyFile: "/logs/attempt_0/autopsy.txt"}, []*failure.ProcessFailure{
			worker(0, failure.Observation{ExitCode: -9, TimerExpired: failure.HangPrefix + "no output for 3s"})}},
		{"hang of unknown cause", failure.ReportConfig{Title: "train.py"}, []*failure.ProcessFailure{
			worker(0, failure.Observation{ExitCode: -9, TimerExpired: failure.HangPrefix + "cause unknown: nothing tells ranks 0-1 apart; no output for 3s"}),
			worker(1, failure.Observation{ExitCode: -9, TimerExpired: failure.HangPrefix + "cause unknown: nothing tells ranks 0-1 apart; no output for 3s"})}},
		{"none", failure.ReportConfig{Title: "train.py"}, nil},
		{"job", failure.ReportConfig{Title: "train.py", Host: "h1.example", Silent: []string{"h3.example (node 2), lost", "h4.example (node 3)"}, LeftOut: 7},
			decoded(t, []*failure.ProcessFailure{peer(0, syscall.SIGTERM), worker(1, failure.Observation{ExitCode: 1, Evidence: failure.Evidence{StderrTail: []byte(simple)}, StderrPath: "/logs/1/stderr.log"})})},
		{"silent job", failure.ReportConfig{Title: "train.py", Silent: []string{"h3.example (node 2), lost"}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := failure.NewReport(tt.cfg, tt.failures)
			got := text(t, r) + "\n--report torchrun\n\n" + block(t, r)
			path := filepath.Join("testdata/report", strings.ReplaceAll(tt.name, " ", "-")+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(read(t, path), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// D6: by nanoseconds, not by seconds and rank. D17: what the agent stopped is no
// failure. And neither is what another's death brought about.
func TestRoot(t *testing.T) {
	type o = failure.Observation
	type e = failure.Evidence
	reset := []byte(strings.Replace(simple, "ValueError: boom", "RuntimeError: [/x/gloo/pair.cc:547] Connection reset by peer", 1))
	file := func(said int64, written time.Time) string {
		path := write(t, fmt.Sprintf(`{"message": {"message": "E: m", "extraInfo": {"py_callstack": "T", "timestamp": "%d"}}}`, said))
		if err := os.Chtimes(path, written, written); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ms := time.Millisecond
	tests := []struct {
		name string
		all  []o // rank i is all[i]
		want string
	}{
		{"the earlier within a second (D6)", []o{{ExitCode: 10, Ended: after(30 * ms)}, {ExitCode: 11, Ended: noon}}, "1 0"},
		{"a nanosecond", []o{{ExitCode: 10, Ended: after(1)}, {ExitCode: 11, Ended: noon}}, "1 0"},
		{"a tie", []o{{ExitCode: 10, Ended: noon}, {ExitCode: 11, Ended: noon}}, "0 1"},
		{"stopped comes last (D17)", []o{{ExitCode: -15, StoppedBy: 15, Ended: after(-ms)}, {ExitCode: 11, Ended: noon}}, "1 0"},
		{"only stopped", []o{{ExitCode: -15, StoppedBy: 15, Ended: after(ms)}, {ExitCode: -15, StoppedBy: 15, Ended: noon}}, "1 0"},
		{"raised first, died later", []o{{ExitCode: 1, Ended: noon}, {ExitCode: 1, Ended: after(800 * ms), ErrorFile: file(noon.Unix(), after(-10*ms))}}, "1 0"},
		{"raised first, stopped on its way out", []o{{ExitCode: 1, Ended: noon}, {ExitCode: -15, StoppedBy: 15, Ended: after(800 * ms), ErrorFile: file(noon.Unix(), after(-10*ms))}}, "1 0"},
		{"raised since it was stopped", []o{{ExitCode: 1, Ended: noon}, {ExitCode: 1, StoppedBy: 15, Ended: after(800 * ms), ErrorFile: file(noon.Unix(), after(10*ms))}}, "0 1"},
		{"file from the future", []o{{ExitCode: 1, Ended: noon}, {ExitCode: 1, Ended: after(ms), ErrorFile: file(noon.Unix()+3600, after(time.Hour))}}, "0 1"},
		{"file from long ago", []o{{ExitCode: 1, Ended: noon}, {ExitCode: 1, Ended: after(ms), ErrorFile: file(1, after(-99*time.Hour))}}, "0 1"},
		{"file from before the start", []o{{ExitCode: 1, Ended: noon}, {ExitCode: 1, Started: after(-time.Second), Ended: after(ms), ErrorFile: file(noon.Unix()-60, after(-time.Minute))}}, "0 1"},
		{"file server ahead by an hour", []o{{ExitCode: 1, Ended: after(time.Second)}, {ExitCode: 1, Ended: after(2 * time.Second), ErrorFile: file(noon.Unix(), after(time.Hour))}}, "1 0"},
		{"lost its peer before the peer was seen dead", []o{{ExitCode: 1, Evidence: e{StderrTail: reset}, Ended: after(-5 * ms)}, {ExitCode: -9, Ended: noon}}, "1 0"},
		{"all lost a peer", []o{{ExitCode: 1, Evidence: e{StderrTail: reset}, Ended: after(ms)}, {ExitCode: 1, Evidence: e{StderrTail: reset}, Ended: noon}}, "1 0"},
		{"all three kinds", []o{{ExitCode: -15, StoppedBy: 15, Ended: after(-ms)}, {ExitCode: 1, Evidence: e{StderrTail: reset}, Ended: after(-ms)}, {ExitCode: 3, Ended: after(ms)}, {ExitCode: 3, Ended: noon}}, "3 2 1 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var all []*failure.ProcessFailure
			for i, o := range tt.all {
				o.Rank = i
				all = append(all, failure.New(o))
			}
			r := failure.NewReport(failure.ReportConfig{}, append(all, nil))
			var order []string
			for _, f := range r.Failures {
				order = append(order, fmt.Sprint(f.Rank))
			}
			if got := strings.Join(order, " "); got != tt.want {
				t.Errorf("order %s, want %s:\n%s", got, tt.want, text(t, r))
			}
			if root := r.Root(); root != r.Failures[0] || root.Kind == failure.Failed && strings.Contains(root.Cause, "stopped with") {
				t.Errorf("root is %v, %s", root, root.Cause)
			}
		})
	}
	if root := failure.NewReport(failure.ReportConfig{}, nil).Root(); root != nil {
		t.Errorf("no failures have the root %v", root)
	}
}

// A size of gloo's that does not fit is told of the rank that differs from most others in that collective.
func TestOutvote(t *testing.T) {
	reset := []byte(strings.Replace(simple, "ValueError: boom", "RuntimeError: [/x/gloo/pair.cc:547] Connection reset by peer", 1))
	aborted := []byte("terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at /x/gloo/transport/tcp/pair.cc:464] op.preamble.length <= op.nbytes. 524288 vs 131072. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n")
	for _, tt := range []struct {
		name  string
		ranks string // what they began, as group, number, kind; x: gloo has ended it; ?: its host says nothing
		want  string // cause or hint of the first
	}{
		{"larger", "dp:11:L dp:11:S dp:11:S x", "rank 0: began work 11 (L of group dp) where ranks 1-2 began S; gloo ended rank 3, which received more than it expected"},
		{"smaller", "dp:11:S dp:11:S dp:11:S x", "rank 3: ranks 0-2 began work 11 (S of group dp): this rank began a smaller one, or another"},
		{"two ranks", "dp:11:L x", "rank 1: this rank and the one that sent to it"},
		{"three ranks", "dp:11:L dp:11:S x", "rank 2: this rank and the one that sent to it"},
		{"half and half", "dp:11:L dp:11:L dp:11:S dp:11:S x", "rank 4: this rank and the one that sent to it"},
		{"in a pair, the others agree", "a:11:S a:11:S b:11:L x", "rank 3: this rank and the one that sent to it"},
		{"in one group of two", "a:7:S a:7:S a:7:S a:7:S b:7:S b:7:S b:7:L x", "rank 6: began work 7 (L of group b) where ranks 4-5 began S"},
		{"one is a step ahead", "dp:11:L dp:11:S dp:11:S dp:12:S x", "rank 0: began work 11 (L of group dp) where ranks 1-2 began S"},
		{"a host says nothing", "dp:11:S dp:11:S x ?", "rank 2: this rank and the one that sent to it"},
		{"nobody tells", "- - - x", "rank 3: this rank and the one that sent to it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var all []*failure.ProcessFailure
			ranks := strings.Fields(tt.ranks)
			for rank, what := range ranks {
				o := failure.Observation{Rank: rank, ExitCode: 1, Evidence: failure.Evidence{Workers: len(ranks), StderrTail: reset}, Ended: noon}
				if what == "x" {
					o.ExitCode, o.StderrTail = -6, aborted
				} else if part := strings.Split(what, ":"); len(part) == 3 {
					seq, _ := strconv.Atoi(part[1])
					o.Waits = []failure.Collective{{Group: "5(" + part[0] + ")", Enqueued: seq, Last: part[2]}, {Group: "1(tp)", Enqueued: 9}}
				}
				if what != "?" {
					all = append(all, failure.New(o))
				}
			}
			root := failure.NewReport(failure.ReportConfig{}, all).Root()
			if cause, hint := fmt.Sprintf("rank %d: %s", root.Rank, root.Cause), fmt.Sprintf("rank %d: %s", root.Rank, root.Hint); !strings.HasPrefix(cause, tt.want) && !strings.HasPrefix(hint, tt.want) {
				t.Errorf("got %s\nhint %s\nwant %s", cause, root.Hint, tt.want)
			}
		})
	}
}

func TestReportJSON(t *testing.T) {
	root := failure.New(failure.Observation{LocalRank: 1, Rank: 5, PID: 10092, ExitCode: -11, CoreDumped: true, Started: after(-time.Second), Ended: after(7),
		Evidence: failure.Evidence{StderrTail: []byte("caf\xe9\nbye\n")}, StderrPath: "/logs/1/stderr.log"})
	r := failure.NewReport(failure.ReportConfig{Title: "train.py", Host: "h", RunID: "job7", Attempt: 1, Restarts: 3, FirstRank: 4}, []*failure.ProcessFailure{peer(0, syscall.SIGTERM), root})
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	path := "testdata/report/report.json"
	if *update {
		if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(read(t, path), string(b)+"\n"); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// However many workers fail and however much they say, the report stays of a
// size that a person can scroll through.
func TestReportBounded(t *testing.T) {
	long := "Traceback (most recent call last):\n" + strings.Repeat("  File \"a.py\", line 3, in f\n    f(1)\n", 3_000) + "ValueError: boom"
	file := write(t, fmt.Sprintf(`{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": %q, "timestamp": "5"}}}`, long))
	var all []*failure.ProcessFailure
	for i := range 3000 {
		o := failure.Observation{Rank: i, ExitCode: 1, Ended: noon, PID: i + 1}
		if i < 100 {
			o.ErrorFile = file
		}
		all = append(all, failure.New(o))
	}
	r := failure.NewReport(failure.ReportConfig{Title: strings.Repeat("x", 1<<20)}, all)
	if got := text(t, r); len(got) > 128<<10 || !strings.HasSuffix(got, "\n    rank 32 (local_rank 0, pid 33): ValueError: boom\n    and 2967 more\n") {
		t.Errorf("muster's report has %d bytes and ends with %.200q", len(got), got[max(0, len(got)-200):])
	}
	got := block(t, r)
	if len(got) > 1<<20 {
		t.Errorf("report has %d bytes", len(got))
	}
	for _, want := range []string{"  traceback : Traceback (most recent call last):\n  [... ", " bytes left out ...]\n    ", "\n  ValueError: boom\n",
		"\n[32]:\n", "\n  rank 33 (local_rank 0, pid 34): ValueError: boom\n", "\n  rank 500 (local_rank 0, pid 501): exit code 1\n", "\n  and 1943 more\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("report lacks %q", want)
		}
	}
	if data := all[0].ErrorFileData(); len(data) > 80<<10 || !json.Valid(data) || !strings.Contains(string(data), "ValueError: boom") {
		t.Errorf("event data has %d bytes: %.200s", len(data), data)
	}
}

func TestErrorFileData(t *testing.T) {
	tests := []struct {
		o    failure.Observation
		want string
	}{
		{failure.Observation{ExitCode: -15}, `{"message": "<NONE>"}`},
		// D15: what one failure adds is not seen in another's.
		{failure.Observation{ExitCode: 3}, `{"message": "<NONE>", "errorTraits": {"category": "system_terminated_error", "retryability": "False"}}`},
		{failure.Observation{ExitCode: -9}, `{"message": "<NONE>"}`},
		{failure.Observation{ExitCode: 1, ErrorFile: write(t, `{"message":"a","x":[1,2]}`)}, `{"message": "a", "x": [1, 2]}`},
		{failure.Observation{ExitCode: -6, ErrorFile: write(t, `[`)}, `{"message": "<NONE>"}`},
	}
	for _, tt := range tests {
		if got := string(failure.New(tt.o).ErrorFileData()); got != tt.want {
			t.Errorf("exit code %d: got %s, want %s", tt.o.ExitCode, got, tt.want)
		}
	}
}

func TestExitStatus(t *testing.T) {
	tests := []struct {
		o    failure.Observation
		want int
	}{
		{failure.Observation{ExitCode: 3}, 3},
		{failure.Observation{ExitCode: 255}, 255},
		{failure.Observation{ExitCode: -9}, 137},
		{failure.Observation{ExitCode: -64}, 192},
		{failure.Observation{ExitCode: 0}, 1},
		{failure.Observation{ExitCode: -9, Abandoned: "nfs_wait"}, 1},
		{failure.Observation{Evidence: failure.Evidence{Err: fmt.Errorf("x: %w", syscall.ENOENT)}}, 127},
		{failure.Observation{Evidence: failure.Evidence{Err: syscall.EACCES}}, 126},
		{failure.Observation{Evidence: failure.Evidence{Err: errors.New("x")}}, 126},
	}
	for _, tt := range tests {
		f := failure.New(tt.o)
		if got := f.ExitStatus(); got != tt.want {
			t.Errorf("%+v: got %d, want %d", tt.o, got, tt.want)
		}
	}
	if got := (*failure.ProcessFailure)(nil).ExitStatus(); got != 1 {
		t.Errorf("no root: got %d", got)
	}
}

// A restart policy's decision is in the second line, and in the JSON.
func TestReportDecision(t *testing.T) {
	const decision = "stopped by rule bad-gpu of policy.yaml:3"
	r := failure.NewReport(failure.ReportConfig{Title: "t", Decision: decision}, []*failure.ProcessFailure{failure.New(failure.Observation{ExitCode: 66})})
	if lines := strings.Split(text(t, r), "\n"); lines[1] != "muster: "+decision {
		t.Errorf("the second line is %q", lines[1])
	}
	var got struct{ Decision string }
	if b, err := r.MarshalJSON(); err != nil || json.Unmarshal(b, &got) != nil || got.Decision != decision {
		t.Errorf("%s, %v", b, err)
	}
}
