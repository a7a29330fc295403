package runline

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/launch"
)

// configured reads a command line with a config file.
func configured(t *testing.T, config string, env []string, args ...string) (reader, launch.Config, []error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l, errs := parseLine(append([]string{"--config", file}, args...))
	r, cfg, bad := Program{Name: "muster run"}.read(l, launch.Config{Env: append(env, "PATH=/usr/bin:/bin")})
	for i, err := range append(errs, bad...) {
		bad = append(bad[:i], fmt.Errorf("%s", strings.ReplaceAll(console.Plain(err), file, "job.yaml")))
	}
	return r, cfg, bad
}

const everyForm = `
# a comment
nnodes: 1:1
nproc-per-node: 2
max_restarts: 7
standalone: true
run_path: false
no-python: true
rdzv_id: 007
rdzv_conf: {join_timeout: 60, bind: "::1"}
log_dir: logs
redirects: 0:3,1:2
duplicate_stdout_filters: [loss, "a,b"]
local_ranks_filter: [0, 1]
hang_timeout: 10m
hang_action: notify
preemption_signals: [SIGTERM, USR1]
env:
  A: 1
  HERE:
  B: x=y,z
training_script: "true"
training_script_args: [--lr, 1e-4, "", 'a b']
`

func TestConfigFile(t *testing.T) {
	r, cfg, errs := configured(t, everyForm, []string{"HERE=there", "PET_MAX_RESTARTS=5"}, "--hang-timeout", "3", "--env", "B=2")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	from := map[string]string{}
	for _, s := range r.settings(&cfg) {
		from[s.name] = s.value + " " + filepath.Base(s.from)
	}
	for name, want := range map[string]string{
		"nproc-per-node": "2 job.yaml:4", "max-restarts": "5 PET_MAX_RESTARTS", "rdzv-id": "007 job.yaml:9", "run-path": "no job.yaml:7", "tee": "0 default",
		"hang-timeout": "3 command line", "env": "A=1 HERE B=x=y,z B=2 job.yaml:19",
	} {
		if from[name] != want {
			t.Errorf("%s: %s, want %s", name, from[name], want)
		}
	}
	got := map[string]any{}
	for name, value := range r.values {
		if r.isGiven(name) && name != "config" {
			got[name] = value
		}
	}
	wantValues := map[string]any{
		"nnodes": "1:1", "nproc-per-node": "2", "max-restarts": 5, "standalone": true, "run-path": false, "no-python": true, "rdzv-id": "007",
		"rdzv-conf": "join_timeout=60,bind=::1", "log-dir": "logs", "redirects": "0:3,1:2", "duplicate-stdout-filters": []string{"loss", "a,b"},
		"local-ranks-filter": "0,1", "hang-timeout": 3.0, "hang-action": "notify", "preemption-signals": "SIGTERM,USR1",
		"env": []string{"A=1", "HERE", "B=x=y,z", "B=2"},
	}
	if diff := cmp.Diff(wantValues, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"--lr", "1e-4", "", "a b"}, cfg.Workers.Args); diff != "" || cfg.Workers.Entrypoint != "true" {
		t.Errorf("%s %s", cfg.Workers.Entrypoint, diff)
	}
	if diff := cmp.Diff([]string{"A=1", "HERE=there", "B=x=y,z", "B=2"}, cfg.Env[len(cfg.Env)-4:]); diff != "" {
		t.Error(diff)
	}
	if r, _, _ := configured(t, everyForm, nil, "--no-python", "echo"); r.script != "echo" || len(r.args) > 0 {
		t.Errorf("%s %q, want the command line's script without the file's arguments", r.script, r.args)
	}
}

func TestConfigErrors(t *testing.T) {
	for _, tt := range []struct {
		config string
		want   []string
	}{
		{"nprocs: 2\ndry_run: true\nconfig: a\n", []string{
			`job.yaml:1: a config file has no key "nprocs"; see muster help run`,
			`job.yaml:2: a config file has no key "dry_run"; see muster help run`,
			`job.yaml:3: a config file has no key "config"; see muster help run`}},
		{"tee: 1\nt-ee: 2", []string{`job.yaml:2: a config file has no key "t-ee"; see muster help run`}},
		{"log_dir: a\nlog-dir: b", []string{"job.yaml:2: a config file has log-dir twice; the first is in line 1"}},
		{"- nnodes", []string{"job.yaml:1: a list is not a mapping"}},
		{"nnodes: {a: 1}\nmax_restarts:\nmodule: yes", []string{
			"job.yaml:1: --nnodes has a mapping as its value; give a text or a number", "job.yaml:2: --max-restarts has nothing as its value; give a text or a number", `job.yaml:3: --module: "yes" is not a choice; give true or false`}},
		{"env: [A=1, B C=2, 'export X=1']\nrdzv_conf: {password: 'a,b=c', allow: '::1,10.0.0.0/8'}", []string{
			"job.yaml:1: --env: 'B C' is not a variable name; want KEY=VALUE", "job.yaml:1: --env: 'export X' is not a variable name; leave export out",
			"job.yaml:2: --rdzv-conf: the value of 'password' has a comma, which it cannot have; leave it out"}},
		{"log_dir: \"a\\0b\"", []string{"job.yaml:1: --log-dir: a NUL byte, which no argument can have; leave it out"}},
		{"signals_to_handle: []", []string{"job.yaml:1: --signals-to-handle: the list is empty; leave the option out"}},
		{"training_script_args: x", []string{"job.yaml:1: training_script_args without a training_script; name the script, too", "job.yaml:1: training_script_args is \"x\" and not a list; give one, such as [a, 90]"}},
		{"max_restarts: x\nhang_action: kil\nstart_method: thread\nlive_timeout: -1\nshutdown_timeout: -1\nrdzv_backend: zoo", []string{
			"job.yaml:1: --max-restarts: 'x' is not a whole number; write --max-restarts N", "job.yaml:2: --hang-action: 'kil' is not a choice; give kill or notify",
			"job.yaml:3: --start-method: 'thread' is not a choice; give spawn, fork or forkserver", "job.yaml:4: --live-timeout: must be a number of seconds > 0 and at most 3153600000, got -1; give seconds, or a time such as 90s, 10m or 1h30m",
			"job.yaml:5: --shutdown-timeout must be non-negative and at most 3153600000, got -1; give seconds, or a time such as 90s, 10m or 1h30m",
			`job.yaml:6: rendezvous backend "zoo" is not known, and Python plug-ins cannot be loaded; want static, c10d, etcd or quorum`}},
		{"", nil}, {"# nothing\n", nil}, {"env: []\n", nil},
	} {
		_, _, errs := configured(t, tt.config, nil, "--no-python", "true")
		var got []string
		for _, err := range errs {
			got = append(got, err.Error())
		}
		if diff := cmp.Diff(sorted(tt.want), sorted(got)); diff != "" {
			t.Errorf("%q: -want +got:\n%s", tt.config, diff)
		}
	}
}

// What closes the job to others is not lost because another place says something else.
func TestConfigGuard(t *testing.T) {
	for _, tt := range []struct {
		env  []string
		args []string
		want string
	}{
		{nil, []string{"--rdzv-conf", "join_timeout=3"}, "--rdzv-conf replaces all of job.yaml:1, and so the job would be without its token_file; give that with --rdzv-conf, too"},
		{[]string{"PET_RDZV_CONF=join_timeout=3"}, nil, "PET_RDZV_CONF replaces all of job.yaml:1, and so the job would be without its token_file; give that with PET_RDZV_CONF, too"},
	} {
		_, _, errs := configured(t, "rdzv_conf: {token_file: /t}", tt.env, append(tt.args, "--no-python", "true")...)
		if got := fmt.Sprint(errs); !strings.Contains(got, tt.want) {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
}

// An option of muster's that has got behind the script.
func TestStray(t *testing.T) {
	for line, want := range map[string]string{
		"ok --nproc-per-node 2":                         "--nproc-per-node after the script goes to the script; if it is for muster, write it before ok; if not, write -- after ok",
		"ok x --nproc_per_node=2 --nnodes 2":            "--nproc-per-node after the script",
		"--nproc-per-node 1 ok --nproc-per-node 2":      "",
		"--no-python ok --nproc-per-node 2":             "",
		"ok -- --nproc-per-node 2":                      "",
		"ok --config c --env e --log-dir d --role r -r": "",
		"ok --nproc 2 nproc-per-node -nnodes":           "",
	} {
		l, _ := parseLine(strings.Fields(line))
		r, _, _ := Program{Name: "muster run"}.read(l, launch.Config{Env: []string{"PATH=/usr/bin:/bin", "PYTHON_EXEC=/bin/sh"}})
		got := strings.Join(r.warnings, "\n")
		if !strings.Contains(got, want) || want == "" && strings.Contains(got, "after the script") || strings.Count(got, "after the script") > 1 {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// No warning where the option counts already, nor where torchrun gives none.
func TestNotStray(t *testing.T) {
	env := []string{"PATH=/usr/bin:/bin", "PYTHON_EXEC=/bin/sh"}
	l, _ := parseLine(strings.Fields("ok --nproc-per-node 2"))
	set, _, _ := Program{Name: "muster run"}.read(l, launch.Config{Env: append(env, "PET_NPROC_PER_NODE=2")})
	torchrun, _, _ := Program{Name: Torchrun}.read(l, launch.Config{Env: env})
	if got := strings.Join(append(set.warnings, torchrun.warnings...), "\n"); strings.Contains(got, "after the script") {
		t.Error(got)
	}
}

func sorted(s []string) []string { slices.Sort(s); return s }
