package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/version"
	"github.com/muster-run/muster/launch"
)

func lookupLevel(level string) func(string) (string, bool) {
	return func(name string) (string, bool) { return level, name == "LOGLEVEL" && level != "unset" }
}

func TestLogFormat(t *testing.T) {
	var out strings.Builder
	log, err := NewLogger(&out, lookupLevel("DEBUG"))
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("found", "n", 1)
	log.Info("started", "run_id", "a b", "pid", 7)
	log.With("role", "default").WithGroup("g").With("x", 1).Warn("two\nlines\n", "error", errors.New("bad\nthing"), slog.Group("in", "k", ""))
	log.Warn("host n\x1b[31m1\rtold\u009b:", "scope_id", "a\u009b31m", "name", "\u202eb", "host", "é")
	log.Error("done", slog.Group("", "inline", true), "took", 3*time.Second, slog.Attr{})
	log.Info("worker output was lost")
	log.Warn("worker output was lost", "bytes", 5)
	log.Log(t.Context(), levelCritical, "gone")
	log.With("with", "Spec.NodeRank").Warn("the command of Records.OnEvent failed; the job continues", "error", errors.New("give Spec.LocalAddr"))

	prefix := regexp.MustCompile(fmt.Sprintf(`^([DIWEC])\d{4} \d{2}:\d{2}:\d{2}\.\d{6} %d muster/console\] `, os.Getpid()))
	var got []string
	for line := range strings.Lines(out.String()) {
		if !prefix.MatchString(line) {
			t.Errorf("no prefix: %q", line)
		}
		got = append(got, prefix.ReplaceAllString(strings.TrimSuffix(line, "\n"), "$1|"))
	}
	want := []string{
		"D|found n=1",
		`I|started run_id="a b" pid=7`,
		`W|two`,
		`W|lines`,
		`W| role=default g.x=1 g.error="bad\nthing" g.in.k=""`,
		`W|host n1 told: scope_id="a\u009b31m" name="\u202eb" host=é`,
		"E|done inline=true took=3s",
		"I|worker output was lost",
		"W|worker output was lost bytes=5" + tag("worker output was lost"),
		"C|gone",
		`W|the command of --on-event failed; the job continues with=--node-rank error="give --local-addr" [M1181]`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// On a terminal, what does not fit in a line is a block that a person reads.
func TestLogBlock(t *testing.T) {
	var out strings.Builder
	log, _ := NewLogger(&out, lookupLevel("unset"))
	log.Handler().(*LogHandler).terminal = true
	log.Warn("restarting the worker group", "cause", `rank 1 on host h: killed by "SIGKILL"`, "restart", "1/3", "rule", "", "report", "/logs/"+strings.Repeat("x", 80), "ask", "Spec.LocalAddr")
	log.Warn("a name that another user chose", "name", "x\nW1127 12:00:00.000000 1 muster/agent] forged\x1b[2J"+strings.Repeat("y", 80))
	if got := strings.Count(out.String(), "\n"); got != 7 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%d lines: %q", got, out.String())
	}
	log.Warn("short", "restart", "1/3")
	want := "muster/console] restarting the worker group [M1052]\n    cause: rank 1 on host h: killed by \"SIGKILL\"\n    restart: 1/3\n    report: /logs/" +
		strings.Repeat("x", 80) + "\n    ask: --local-addr\n"
	if got := out.String(); !strings.Contains(got, want) || !strings.HasSuffix(got, "muster/console] short restart=1/3\n") {
		t.Errorf("got\n%s", got)
	}
}

// With --log-format json each record is one object, however many lines its message has.
func TestLogFormatJSON(t *testing.T) {
	var out strings.Builder
	log, err := NewLogger(&out, lookupLevel("DEBUG"))
	log.Handler().(*LogHandler).UseJSON()
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("found", "n", 1, "pid", 7, "signal", syscall.SIGTERM)
	log.With("role", "default").WithGroup("g").Warn("two\nlines", "error", errors.New("bad"), "took", 3*time.Second)
	log.Warn("worker output was lost")
	log.Warn("name another one with logs.Config.Dir", "error", errors.New("give Spec.LocalAddr"), "advice", "Spec.Live")
	log.Log(t.Context(), levelCritical, "gone")
	var got []map[string]any
	for line := range strings.Lines(out.String()) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if _, err := time.Parse(time.RFC3339Nano, record["time"].(string)); err != nil {
			t.Error(err)
		}
		delete(record, "time")
		got = append(got, record)
	}
	pid := float64(os.Getpid())
	want := []map[string]any{
		{"level": "DEBUG", "msg": "found", "n": 1.0, "pid": 7.0, "signal": "terminated", "agent_pid": pid, "logger": "muster/console"},
		{"level": "WARNING", "msg": "two\nlines", "role": "default", "agent_pid": pid,
			"g": map[string]any{"error": "bad", "took": "3s", "logger": "muster/console"}},
		{"level": "WARNING", "msg": "worker output was lost", "agent_pid": pid, "logger": "muster/console", "id": strings.Trim(tag("worker output was lost"), " []")},
		{"level": "WARNING", "msg": "name another one with --log-dir", "error": "give --local-addr", "advice": "--live", "agent_pid": pid, "logger": "muster/console"},
		{"level": "CRITICAL", "msg": "gone", "agent_pid": pid, "logger": "muster/console"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLogTime(t *testing.T) {
	at := time.Date(2026, 11, 21, 6, 53, 51, 123_000_000, time.Local)
	record := slog.NewRecord(at, slog.LevelWarn, "x", 0)
	if got, want := logPrefix(record), fmt.Sprintf("W1121 06:53:51.123000 %d muster] ", os.Getpid()); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A package below internal/ is known by its name, in whatever room it is.
func TestLogSource(t *testing.T) {
	for want, f := range map[string]any{"muster/launch": launch.Run, "muster/autopsy": autopsy.Take, "muster/version": version.Read} {
		if got := source(reflect.ValueOf(f).Pointer() + 1); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	// Packages that this one may not import.
	for function, want := range map[string]string{
		"agent.(*Agent).Run": "muster/agent",
		"agent/internal/evidence.(*Collector).WatchProgress.func1": "muster/agent",
		"agent/internal/peers.(*Round).Hear":                       "muster/agent",
		"rendezvous/internal/node.(*Node).Next":                    "muster/node",
		"cmd/muster/internal/runline.Run":                          "muster/cli",
	} {
		if got := known("github.com/muster-run/muster/" + function); got != want {
			t.Errorf("%s: got %s, want %s", function, got, want)
		}
	}
	if got := source(0); got != "muster" {
		t.Errorf("of no function: %s", got)
	}
}

func TestLogLevel(t *testing.T) {
	for _, tt := range []struct {
		level string
		want  string // the letters that get through
		err   bool
	}{
		{"unset", "WEC", false},
		{"", "WEC", false},
		{"DEBUG", "DIWEC", false},
		{"NOTSET", "DIWEC", false},
		{"INFO", "IWEC", false},
		{"info", "IWEC", false},
		{"WARN", "WEC", false},
		{"WARNING", "WEC", false},
		{"ERROR", "EC", false},
		{"CRITICAL", "C", false},
		{"FATAL", "C", false},
		{"loud", "WEC", true},
	} {
		var out strings.Builder
		log, err := NewLogger(&out, lookupLevel(tt.level))
		if (err != nil) != tt.err {
			t.Errorf("%q: error %v", tt.level, err)
		}
		for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError, levelCritical} {
			log.Log(t.Context(), level, "x")
		}
		var got strings.Builder
		for line := range strings.Lines(out.String()) {
			got.WriteString(line[:1])
		}
		if got.String() != tt.want {
			t.Errorf("%q lets %s through, want %s", tt.level, got.String(), tt.want)
		}
	}
}

// Records of several goroutines do not mix.
func TestLogIsAtomic(t *testing.T) {
	var out strings.Builder
	log, _ := NewLogger(&out, lookupLevel("INFO"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				log.With("worker", i).Info("a\nb")
			}
		})
	}
	wg.Wait()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 800 {
		t.Fatalf("%d lines, want 800", len(lines))
	}
	for i, line := range lines {
		_, text, _ := strings.Cut(line, "] ")
		if text != "a" && !strings.HasPrefix(text, "b worker=") || i%2 == 0 != (text == "a") {
			t.Fatalf("line %d is %q", i, line)
		}
	}
}
