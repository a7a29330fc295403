package policy_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/policy"
)

var update = flag.Bool("update", false, "write the golden files anew")

const full = `max_restarts: 10
rules:
  - name: bad-gpu
    match: {exit: [66, "70-79"], signal: [SIGBUS, KILL, 31, SIGRTMIN+3], stderr: ['ECC error', '^Xid'], host: 'gpu-*', role: trainer}
    action: drain
  - name: oom
    match: {cause: oom}
    action: retry
    budget: {restarts: 2, window: 1h}
    backoff: {initial: 5s, factor: 3, max: 1m, jitter: 0.2, reset: 20m}
  - match: {cause: [lost peer, not_started, host-lost]}
    action: stop
default: {action: retry, all: true, backoff: {initial: 1s}}
no_progress: {restarts: 3, file: [ckpt/latest, ckpt/step], heartbeat: true}
`

func parse(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text), "p.yaml")
	if err != nil {
		t.Fatalf("%v", err)
	}
	return p
}

func TestParse(t *testing.T) {
	want := &policy.Policy{File: "p.yaml", MaxRestarts: 10,
		Rules: []policy.Rule{
			{Name: "bad-gpu", Line: 3, Action: policy.Drain, Match: policy.Match{
				Exits: []policy.Range{{66, 66}, {70, 79}}, Signals: []syscall.Signal{syscall.SIGBUS, syscall.SIGKILL, 31, 37},
				Stderr: []*regexp.Regexp{regexp.MustCompile("(?m)ECC error"), regexp.MustCompile("(?m)^Xid")},
				Hosts:  []string{"gpu-*"}, Roles: []string{"trainer"}}},
			{Name: "oom", Line: 6, Action: policy.Retry, Match: policy.Match{Causes: []failure.Cause{failure.CauseOOM}},
				Budget:  &policy.Budget{Restarts: 2, Window: time.Hour},
				Backoff: &policy.Backoff{Initial: 5 * time.Second, Factor: 3, Max: time.Minute, Jitter: 0.2, Reset: 20 * time.Minute}},
			{Name: "#3", Line: 11, Action: policy.Stop,
				Match: policy.Match{Causes: []failure.Cause{failure.CauseLostPeer, failure.CauseNotStarted, failure.CauseHostLost}}},
		},
		Default: policy.Rule{Name: "default", Line: 13, Action: policy.Retry, All: true,
			Backoff: &policy.Backoff{Initial: time.Second, Factor: 2, Max: 5 * time.Minute, Reset: 10 * time.Minute}},
		NoProgress: &policy.NoProgress{Restarts: 3, Heartbeat: true, Files: []string{"ckpt/latest", "ckpt/step"}},
	}
	patterns := cmp.Comparer(func(a, b *regexp.Regexp) bool { return a.String() == b.String() })
	if diff := cmp.Diff(want, parse(t, full), patterns); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// What is not said is as without a policy.
func TestParseEmpty(t *testing.T) {
	want := &policy.Policy{File: "p.yaml", MaxRestarts: -1, Default: policy.Rule{Name: "default", Action: policy.Retry}}
	for _, text := range []string{"{}", "rules: []\n", "# nothing\n--- {}\n"} {
		if diff := cmp.Diff(want, parse(t, text)); diff != "" {
			t.Errorf("%q: -want +got:\n%s", text, diff)
		}
	}
}

// Each file of testdata has everything that is wrong with it in a file beside it.
func TestParseErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p, err := policy.Parse(text, filepath.Base(file))
		if err == nil || p != nil {
			t.Errorf("%s: no error", file)
			continue
		}
		golden := strings.TrimSuffix(file, ".yaml") + ".txt"
		if *update {
			if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, rerr := os.ReadFile(golden)
		if rerr != nil {
			t.Fatal(rerr)
		}
		if diff := cmp.Diff(string(want), err.Error()+"\n"); diff != "" {
			t.Errorf("%s: -want +got:\n%s", file, diff)
		}
	}
}

// Callers can tell where an error is.
func TestErrorPosition(t *testing.T) {
	_, err := policy.Parse([]byte("max_restarts: 1\nrulez: []\n"), "p.yaml")
	e, ok := errors.AsType[*policy.Error](err)
	if !ok || e.File != "p.yaml" || e.Line != 2 {
		t.Errorf("%#v", err)
	}
}

func TestParseBounds(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"too large", strings.Repeat("# x\n", (64<<10)/4+1), "larger than 65536 bytes"},
		{"many rules", "rules:\n" + strings.Repeat("- action: stop\n", 201), "more than 200 rules"},
		{"long list", "rules: [{match: {exit: [" + strings.Repeat("1,", 101) + "]}, action: stop}]", "a list of 101; want 1 to 100 members"},
		{"long pattern", "rules: [{match: {stderr: '" + strings.Repeat("x", 1001) + "'}, action: stop}]", "more than 1000 bytes"},
		{"hungry pattern", "rules: [{match: {stderr: '((x{1000}){1000}){1000}'}, action: stop}]", "is not a regular expression"},
		{"deep", strings.Repeat("[", 20000), "this is not YAML"},
		{"aliases", "a: &a [x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\n", "an alias (*b)"},
		{"no UTF-8", "rules: \xff\xfe", "this is not YAML"},
	} {
		_, err := policy.Parse([]byte(tt.text), "p.yaml")
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %.300v, want %q in it", tt.name, err, tt.want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	good, fifo, large := filepath.Join(dir, "good"), filepath.Join(dir, "fifo"), filepath.Join(dir, "large")
	err := errors.Join(os.WriteFile(good, []byte(full), 0o600), syscall.Mkfifo(fifo, 0o600),
		os.WriteFile(large, make([]byte, 64<<10+1), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if p, err := policy.Load(good); err != nil || p.File != good || len(p.Rules) != 3 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, tt := range []struct{ file, want string }{
		{filepath.Join(dir, "none"), "no such file"}, {dir, "not a regular file"}, {fifo, "not a regular file"}, {large, "larger than"},
	} {
		if _, err := policy.Load(tt.file); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.file) {
			t.Errorf("%s: %v, want %q", tt.file, err, tt.want)
		}
	}
}

func TestNotes(t *testing.T) {
	for _, tt := range []struct {
		text     string
		restarts int
		want     []string
	}{
		{full, 10, nil},
		{full, 0, []string{"p.yaml: rules retry, but the job has no restarts; set max_restarts in the file, or --max-restarts"}},
		{"rules: [{name: a, match: {exit: 3}, action: drain}]", 0, nil},
		{"rules: [{name: a, match: {exit: 3}, action: drain}]\ndefault: {action: retry}", 0, []string{"p.yaml: rules retry, but the job has no restarts; set max_restarts in the file, or --max-restarts"}},
		{full, 1, []string{"p.yaml:6: rule oom has a budget of 2 restarts, but the job has 1"}},
		{"rules: [{name: a, action: stop}, {name: b, action: stop}]\ndefault: {action: stop}", 0,
			[]string{"p.yaml:1: rule b never decides: rule a before it matches everything"}},
		{"rules: [{match: {cause: host lost}, action: retry, budget: {restarts: 4}}]\ndefault: {action: stop}", 0, nil},
	} {
		if diff := cmp.Diff(tt.want, parse(t, tt.text).Notes(tt.restarts)); diff != "" {
			t.Errorf("%s\n%d restarts: -want +got:\n%s", tt.text, tt.restarts, diff)
		}
	}
}

// Whatever the text: an error with a position in it, or a policy that decides.
func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := policy.Parse(text, "p.yaml")
		if err != nil {
			if p != nil {
				t.Error("an error and a policy")
			}
			lines := strings.Count(string(text), "\n") + strings.Count(string(text), "\r") + 2
			list := []error{err}
			if several, ok := err.(interface{ Unwrap() []error }); ok {
				list = several.Unwrap()
			}
			for _, one := range list {
				if several, ok := one.(interface{ Unwrap() []error }); ok { // what the library has found
					one = several.Unwrap()[0]
				}
				e, ok := one.(*policy.Error)
				if !ok || e.Line > lines*3 || e.Line < 0 || e.Message == "" {
					t.Errorf("%#v", one)
				}
			}
			return
		}
		e := &policy.Engine{Policy: p, MaxRestarts: 3}
		for i, cause := range []failure.Cause{failure.CauseExitCode, failure.CauseHostLost, failure.CauseOOM, failure.CauseNotStarted} {
			d := e.Decide(policy.Failure{Cause: cause, ExitCode: i, Stderr: "ECC error", Restarts: i}, time.Unix(int64(i), 0))
			if d.Delay < 0 || d.Delay > 24*time.Hour || d.Action == "" && d.Rule != "" {
				t.Errorf("%+v", d)
			}
			e.Record(d)
			_ = fmt.Sprint(d, p.Notes(i))
		}
	})
}
