package runline

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/pypeer"
)

// A sample is a command line with the PET_ variables beside it.
type sample struct {
	Env  map[string]string
	Args []string
}

func args(s ...string) sample { return sample{Args: s} }

func pet(name, value string, s ...string) sample {
	return sample{Env: map[string]string{"PET_" + name: value}, Args: s}
}

// samples are command lines of which torchrun and muster must make the same.
var samples = []sample{
	args("s.py"),
	args("s.py", "a", "--b", "-c", "--nnodes", "9", "--", "--standalone"),
	args("--nproc-per-node", "2", "s.py"),
	args("--nproc-per-node=2", "s.py"),
	args("--nproc_per_node", "2", "s.py"),
	args("--nproc_per_node=2", "--nproc-per-node=3", "s.py"),
	args("--nproc-per", "2", "s.py"),
	args("--nproc-p=2", "s.py"),
	args("--nproc_p=2", "s.py"),
	args("--nnode", "2:4", "s.py"),
	args("--nn=2", "s.py"),
	args("--stand", "s.py"),
	args("--role", "r", "--ro", "q", "s.py"),
	args("--mod", "pkg.mod", "x"),
	args("--tee", "3", "--t", "1", "s.py"),
	args("--red", "1", "s.py"),
	args("-r3", "-t", "2", "s.py"),
	args("-r=3", "s.py"),
	args("-r", "0:1,1:2", "s.py"),
	args("-mr", "0", "m"),
	args("-mr0", "m"),
	args("-mt3", "m"),
	args("-mm", "m"),
	args("-rt3", "s.py"), // -r t3
	args("--redirects=", "s.py"),
	args("--rdzv-id", "", "s.py"),
	args("--rdzv-id", "-1", "s.py"),
	args("--rdzv-id", "-1.5", "s.py"),
	args("--rdzv-id", "-.5", "s.py"),
	args("--rdzv-id", "-", "s.py"),
	args("--rdzv-id", "-a b", "s.py"),
	args("--rdzv-id", "--a b", "s.py"),
	args("--rdzv-id=--standalone", "s.py"),
	args("--rdzv-conf", "a=b,c=d=e", "s.py"),
	args("--rdzv-conf=a=b", "s.py"),
	args("--max-restarts", "3", "s.py"),
	args("--max-restarts", "-3", "s.py"),
	args("--max-restarts", " +1_0 ", "s.py"),
	args("--max_restarts=010", "s.py"),
	args("--monitor-interval", "5", "s.py"),
	args("--monitor-interval", "1e-3", "s.py"),
	args("--monitor-interval", " 1_0.5_0 ", "s.py"),
	args("--monitor-interval=.5", "s.py"),
	args("--start-method", "fork", "s.py"),
	args("--no-python", "--run-path", "-m", "s"),
	args("--no_python", "--run_path", "--virtual_local_rank", "s"),
	args("--duplicate-stdout-filters", "a,,b,c", "--duplicate-stderr-filters", "", "s.py"),
	args("--duplicate-stdout-filters", "a,,,b", "s.py"),
	args("--duplicate-stdout-filters", ",,,,", "s.py"),
	args("--duplicate-stdout-filters", ",", "s.py"),
	args("--duplicate-stdout-filters", "é,,ü,x", "s.py"),
	args("--node-rank", "1", "--master-addr", "h", "--master-port", "1", "--local-addr", "l", "s.py"),
	args("--logs-specs", "x", "s.py"),
	args("--numa-binding", "core-complex", "s.py"),
	args("--signals-to-handle", "SIGUSR1", "--shutdown-timeout", "7", "s.py"),
	args("--event-log-handler", "console", "--log-dir", "/l", "--log-line-prefix-template", "${rank}", "--local-ranks-filter", "0,1", "s.py"),
	args("--", "s.py", "a"),
	args("--", "s.py", "--", "a"),
	args("--", "--nnodes", "2"),
	args("--", "--", "2"),
	args("--nnodes", "1", "--", "s.py"),
	args("s.py", "--", "a"),
	args("s.py", "--"),
	args("s.py", "--", "--"),
	args("s.py", "a", "--"),
	args("-", "a"),
	args("-1", "a"),
	args("-1.5"),
	args(""),
	args("--unknown with blank", "a"),
	args("-q x", "a"),
	args("-r -x", "s.py"),
	args("s.py", "--max-restarts", "x"),

	pet("NNODES", "2:3", "s.py"),
	pet("NNODES", "", "s.py"),
	pet("NNODES", "2", "--nnodes", "3", "s.py"),
	pet("NPROC_PER_NODE", "gpu", "s.py"),
	pet("MODULE", "1", "s.py"),
	pet("MODULE", "0", "s.py"),
	pet("MODULE", "-1", "s.py"),
	pet("MODULE", " 1_0 ", "s.py"),
	pet("MODULE", "0", "-m", "s.py"),
	pet("REDIRECTS", "3", "s.py"),
	pet("TEE", "0:1", "s.py"),
	pet("STANDALONE", "1", "s.py"),
	pet("MAX_RESTARTS", "2", "s.py"),
	pet("MAX_RESTARTS", "x", "--max-restarts", "1", "s.py"),
	pet("MONITOR_INTERVAL", "2", "s.py"),
	pet("MASTER_PORT", "12", "s.py"),
	pet("SHUTDOWN_TIMEOUT", "12", "s.py"),
	pet("LOG_DIR", "", "s.py"),
	pet("START_METHOD", "bogus", "s.py"),
	pet("DUPLICATE_STDOUT_FILTERS", "a,,b,c", "s.py"),
	pet("DUPLICATE_STDERR_FILTERS", "", "s.py"),
	pet("RDZV_ID", "x", "s.py"),
	pet("LOGS_SPECS", "x", "s.py"),
	pet("NUMA_BINDING", "x", "s.py"),
	pet("NNODE", "7", "s.py"),

	// Rejected by both.
	args(),
	args("--nnodes", "1"),
	args("--nnodes"),
	args("--nnodes", "--standalone", "s.py"),
	args("--nnodes", "--", "1", "s.py"),
	args("--rdzv-id", "-1e5", "s.py"),
	args("--rdzv-id", "-x", "s.py"),
	args("-r"),
	args("-mr"),
	args("-m=1", "s.py"),
	args("-mx", "s.py"),
	args("-x", "s.py"),
	args("-m x", "s.py"),
	args("--=3", "s.py"),
	args("-=3", "s.py"),
	args("---", "s.py"),
	args("--foo", "s.py"),
	args("--foo=bar", "s.py"),
	args("--standalone=1", "s.py"),
	args("--standalone=", "s.py"),
	args("--s", "s.py"),
	args("--sta", "s.py"),
	args("--r", "1", "s.py"),
	args("--n", "1", "s.py"),
	args("--rdzv", "1", "s.py"),
	args("--Nnodes", "1", "s.py"),
	args("--max-restarts", "a", "s.py"),
	args("--max-restarts", "1.0", "s.py"),
	args("--max-restarts", "0x1", "s.py"),
	args("--max-restarts", "1__0", "s.py"),
	args("--max-restarts", "_1", "s.py"),
	args("--max-restarts", "", "s.py"),
	args("--monitor-interval", "x", "s.py"),
	args("--monitor-interval", "0x1p-2", "s.py"),
	args("--monitor-interval", "1_", "s.py"),
	args("--monitor-interval", "", "s.py"),
	args("--master-port", "http", "s.py"),
	args("--start-method", "bogus", "s.py"),
	args("--numa-binding", "near", "s.py"),
	args("--print-completion", "cmd", "s.py"),
	args("--shutdown-timeout", "1x", "s.py"),
	args("--max-restarts=99999999999999999999x", "s.py"),
	pet("MAX_RESTARTS", "x", "s.py"),
	pet("MODULE", "true", "s.py"),
	pet("MODULE", "", "s.py"),
	pet("STANDALONE", "yes", "s.py"),
}

// dests is what both programs make of a sample: every option's value under
// argparse's name, or nothing where it is rejected.
func dests(s sample) (map[string]any, error) {
	l, errs := parseLine(s.Args)
	v, bad := weigh(l, func(name string) (string, bool) { text, ok := s.Env[name]; return text, ok })
	if !l.hasScript && !l.unknown {
		errs = append(errs, errors.New("no script"))
	}
	if err := errors.Join(append(errs, bad...)...); err != nil {
		return nil, err
	}
	all := map[string]any{
		"training_script":      l.script,
		"training_script_args": append([]string{}, l.args...),
	}
	for i := range options {
		o := &options[i]
		if o.own || o.name == "help" || o.name == "print-completion" {
			continue
		}
		value := v[o.name]
		if o.kind == kindList && value == nil {
			value = []string{}
		}
		all[strings.ReplaceAll(o.name, "-", "_")] = value
	}
	return all, nil
}

// jsonValue makes values comparable that went through JSON with ones that did not.
func jsonValue(t *testing.T, v any) any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestParseAsTorchrun(t *testing.T) {
	python := pypeer.Python(t)
	input, err := json.Marshal(samples)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", `
import contextlib, io, json, os, sys
from torch.distributed.run import get_args_parser
for name in [n for n in os.environ if n.startswith("PET_")]:
    del os.environ[name]
answers = []
for sample in json.load(sys.stdin):
    env = sample["Env"] or {}
    os.environ.update(env)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            found = vars(get_args_parser().parse_args(sample["Args"] or []))
        found.pop("print_completion")
        answers.append(found)
    except (SystemExit, ValueError):
        answers.append(None)
    for name in env:
        del os.environ[name]
print(json.dumps(answers))`)
	cmd.Stdin = strings.NewReader(string(input))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var answers []map[string]any
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	rejected := 0
	for i, s := range samples {
		got, err := dests(s)
		want := answers[i]
		if want == nil {
			rejected++
		}
		switch {
		case want == nil && err == nil:
			t.Errorf("%q: torchrun rejects it, muster reads %v", s, got)
		case want != nil && err != nil:
			t.Errorf("%q: torchrun accepts it, muster says: %v", s, err)
		case want != nil:
			if diff := cmp.Diff(any(want), jsonValue(t, got)); diff != "" {
				t.Errorf("%q (-torchrun +muster):\n%s", s, diff)
			}
		}
	}
	if rejected < 30 || rejected > len(samples)-80 {
		t.Errorf("torchrun rejects %d of %d samples", rejected, len(samples))
	}
}

// The table is torchrun's, option by option.
func TestOptionsAsTorchrun(t *testing.T) {
	python := pypeer.Python(t)
	out, err := exec.Command(python, "-c", `
import json
from torch.distributed.run import get_args_parser
print(json.dumps({max(a.option_strings, key=len)[2:].replace("_", "-"): {"strings": a.option_strings, "choices": a.choices and list(a.choices)}
    for a in get_args_parser()._actions if a.option_strings}))`).Output()
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Strings, Choices []string
	}
	var theirs map[string]row
	if err := json.Unmarshal(out, &theirs); err != nil {
		t.Fatal(err)
	}
	ours := map[string]row{}
	for i := range options {
		o := &options[i]
		if o.own {
			continue
		}
		strs := strings.Split(o.String(), "/")
		ours[o.name] = row{strs, o.choices}
	}
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("(-torchrun +muster):\n%s", diff)
	}
}

// Where argparse is needlessly strict, muster is not.
func TestParseMoreThanTorchrun(t *testing.T) {
	tests := []struct {
		args   []string
		option string
		want   any
	}{
		{[]string{"--nproc", "2", "s.py"}, "nproc-per-node", "2"}, // two spellings of one option
		{[]string{"--np=2", "s.py"}, "nproc-per-node", "2"},
		{[]string{"--mo", "s.py"}, "", nil}, // module, monitor-interval
		{[]string{"--nproc-per_node", "2", "s.py"}, "nproc-per-node", "2"},
		{[]string{"--max-res", "2", "s.py", "--nproc", "x", "--l"}, "max-restarts", 2.0},
		{[]string{"-mr=0", "s.py"}, "redirects", "0"}, // as of Python 3.12
	}
	for _, tt := range tests {
		got, err := dests(sample{Args: tt.args})
		if tt.option == "" {
			if err == nil {
				t.Errorf("%q was accepted", tt.args)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.args, err)
			continue
		}
		if v := jsonValue(t, got).(map[string]any)[strings.ReplaceAll(tt.option, "-", "_")]; v != tt.want {
			t.Errorf("%q: %s is %v, want %v", tt.args, tt.option, v, tt.want)
		}
	}
}

// Own options must not make an abbreviation ambiguous that torchrun accepts.
func TestOwnOptionsAreNotAbbreviated(t *testing.T) {
	for i := range options {
		o := &options[i]
		if !o.own {
			continue
		}
		if _, err := lookup(o.name[:len(o.name)-1]); err == nil {
			t.Errorf("--%s is an abbreviation of another option", o.name[:len(o.name)-1])
		}
		if o.env != "" && !strings.HasPrefix(o.env, "MUSTER_") {
			t.Errorf("--%s is read from %s", o.name, o.env)
		}
	}
	if _, err := lookup("e"); err != nil { // only event-log-handler
		t.Error(err)
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct {
		args []string
		want []string
	}{
		{[]string{"--nproc-per-nodes", "2", "s.py"}, []string{"unrecognized arguments: --nproc-per-nodes (did you mean --nproc-per-node?)"}},
		{[]string{"--nproc_per_gpu=2", "s.py"}, []string{"unrecognized arguments: --nproc_per_gpu (did you mean --nproc-per-node?)"}},
		{[]string{"--max-retries", "s.py"}, []string{"unrecognized arguments: --max-retries (did you mean --max-restarts?)"}},
		{[]string{"--mdoule", "s.py"}, []string{"unrecognized arguments: --mdoule (did you mean --module?)"}},
		{[]string{"--exit-cod", "s.py"}, []string{"unrecognized arguments: --exit-cod (did you mean --exit-code?)"}},
		{[]string{"--world-size", "s.py"}, []string{"unrecognized arguments: --world-size"}},
		{[]string{"-x", "s.py"}, []string{"unrecognized arguments: -x"}},
		{[]string{"--r", "s.py"}, []string{"ambiguous option: --r could match --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf, --role, --run-path, --redirects"}},
		{[]string{"--standalone=yes", "s.py"}, []string{"argument --standalone: ignored explicit argument 'yes'"}},
		{[]string{"--nnodes"}, []string{"argument --nnodes: expected one argument", "no script"}},
		{[]string{"--max-restarts", "a\x1b[1m'", "s.py"}, []string{`argument --max-restarts/--max_restarts: invalid int value: 'a\x1b[1m\''`}},
		{[]string{"--max-restarts", "99999999999999999999", "s.py"}, []string{"argument --max-restarts/--max_restarts: int value out of range: '99999999999999999999'"}},
		{[]string{"--nproc-per-nodes", "2", "--rdzv", "x", "--max-restarts=x", "--bad", "2", "--tee"}, []string{
			"unrecognized arguments: --nproc-per-nodes (did you mean --nproc-per-node?)",
			"ambiguous option: --rdzv could match --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf",
			"unrecognized arguments: --bad", // what follows may be the script
			"argument --max-restarts/--max_restarts: invalid int value: 'x'",
		}},
		{[]string{"-r", "--bad", "--max-restarts=x", "--numa-binding=near"}, []string{
			"argument -r/--redirects: expected one argument",
			"unrecognized arguments: --bad",
			"argument --max-restarts/--max_restarts: invalid int value: 'x'",
			"argument --numa-binding/--numa_binding: invalid choice: 'near' (choose from 'node', 'socket', 'exclusive', 'core-complex')",
		}},
	}
	for _, tt := range tests {
		_, err := dests(sample{Args: tt.args})
		if err == nil {
			t.Errorf("%q was accepted", tt.args)
			continue
		}
		if diff := cmp.Diff(tt.want, strings.Split(err.Error(), "\n")); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.args, diff)
		}
	}
}

func TestBadVariables(t *testing.T) {
	for _, tt := range []struct{ name, value, want string }{
		{"PET_MAX_RESTARTS", "x", "argument --max-restarts/--max_restarts: invalid int value: 'x' (from PET_MAX_RESTARTS)"},
		{"PET_STANDALONE", "true", "argument --standalone: invalid int value: 'true'; want 1 or 0 (from PET_STANDALONE)"},
		{"MUSTER_EXIT_CODE", "x", "argument --exit-code/--exit_code: invalid choice: 'x' (choose from 'torchrun', 'worker') (from MUSTER_EXIT_CODE)"},
	} {
		_, err := dests(sample{Env: map[string]string{tt.name: tt.value}, Args: []string{"s.py"}})
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s=%s: error %v, want %s", tt.name, tt.value, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range samples {
		f.Add(strings.Join(s.Args, "\x00"))
	}
	f.Fuzz(func(t *testing.T, joined string) {
		argv := strings.Split(joined, "\x00")
		l, errs := parseLine(argv)
		v, _ := weigh(l, func(string) (string, bool) { return "", false })
		if l.hasScript {
			// What follows the script is the end of the line, untouched.
			rest := argv[len(argv)-len(l.args):]
			if !slices.Equal(rest, l.args) {
				t.Errorf("%q: script arguments %q", argv, l.args)
			}
			if !slices.Contains(argv, l.script) {
				t.Errorf("%q: script %q", argv, l.script)
			}
		}
		for _, err := range errs {
			if strings.ContainsFunc(err.Error(), unicode.IsControl) {
				t.Errorf("%q: the message %q would reach a terminal", argv, err)
			}
		}
		for name := range v {
			if byName(name) == nil {
				t.Errorf("a value for %q", name)
			}
		}
	})
}
