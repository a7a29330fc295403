package runline

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-run/muster/launch"
)

// Whatever is wrong with a variable, the message names it, and nothing is said of it
// where the command line has the value.
func TestSourceIsNamed(t *testing.T) {
	for entry, flag := range map[string]string{
		"PET_MAX_RESTARTS=x": "--max-restarts=0", "PET_MAX_RESTARTS=-1": "--max-restarts=0", "PET_STANDALONE=yes": "--standalone",
		"PET_NNODES=x": "--nnodes=1", "PET_NNODES=2:1": "--nnodes=1", "PET_NPROC_PER_NODE=x": "--nproc-per-node=1", "PET_NPROC_PER_NODE=0": "--nproc-per-node=1",
		"PET_TEE=9": "--tee=0", "PET_SHUTDOWN_TIMEOUT=-1": "--shutdown-timeout=1", "PET_RDZV_BACKEND=zoo": "--rdzv-backend=c10d",
		"PET_RDZV_ENDPOINT=a:99999": "--rdzv-endpoint=localhost:0", "PET_MASTER_PORT=99999": "--master-port=0", "PET_LOG_DIR=/etc/passwd": "--log-dir=/dev/null",
		"MUSTER_DEVICES=x": "--devices=0", "MUSTER_HANG_ACTION=x": "--hang-action=kill", "MUSTER_HANG_TIMEOUT=x": "--hang-timeout=0",
		"MUSTER_PREEMPTION_SIGNALS=SIGFOO":   "--preemption-signals=TERM",
		"MUSTER_RESTART_POLICY=/nosuch.yaml": "--restart-policy=",
	} {
		name, _, _ := strings.Cut(entry, "=")
		for _, hidden := range []bool{false, true} {
			args := []string{"--no-python", "true"}
			if hidden {
				args = append([]string{flag}, args...)
			}
			l, errs := parseLine(args)
			_, _, bad := Program{Name: "muster run"}.read(l, launch.Config{Env: []string{"PATH=/usr/bin:/bin", entry}})
			text := fmt.Sprint(append(errs, bad...))
			if hidden != (text == "[]") || hidden == strings.Contains(text, name) {
				t.Errorf("%s, hidden %t: %s", entry, hidden, text)
			}
		}
	}
}

func TestUnknownVariable(t *testing.T) {
	for entry, want := range map[string]string{
		"MUSTER_HANG_TIMOUT=60":           "unknown variable MUSTER_HANG_TIMOUT; did you mean MUSTER_HANG_TIMEOUT?",
		"MUSTER_MAX_RESTARTS=3":           "unknown variable MUSTER_MAX_RESTARTS; did you mean PET_MAX_RESTARTS?",
		"MUSTER_HANG_TIMEOUT=60":          "",
		"MUSTER_TOKN=t":                   "unknown variable MUSTER_TOKN; put the job's token into MUSTER_TOKEN, or name its file with token_file=PATH in --rdzv-conf (muster store: --token-file PATH)",
		"MUSTER_TOKEN_FILE=/f":            "unknown variable MUSTER_TOKEN_FILE; put the job's token into MUSTER_TOKEN, or name its file with token_file=PATH in --rdzv-conf (muster store: --token-file PATH)",
		"MUSTER_NNODES=2":                 "",
		"MUSTER_WORKER=1":                 "",
		"MUSTER_PORT_29400_TCP=tcp://x":   "",
		"MUSTER_SERVICE_HOST=10.0.0.1":    "",
		"MUSTER_MASTER_PORT=1":            "unknown variable MUSTER_MASTER_PORT; did you mean PET_MASTER_PORT?",
		"MUSTER_WATCHDOG=60":              "unknown variable MUSTER_WATCHDOG; unset it, or find the one you mean in `muster help run`",
		"MUSTER_PORT=tcp://x":             "",
		"MUSTER_HEAD_SERVICE_PORT_RDZV=1": "",
		"MUSTER_HEAD_PORT_1_TCP_ADDR=x":   "",
		"MUSTER_=1":                       "unknown variable MUSTER_; unset it, or find the one you mean in `muster help run`",
		"MUSTER_E2E_TAG=1":                "",
		"MUSTER_PYTHON=/usr/bin/python3":  "",
		"MUSTER_TIMER_SOCKET=/run/timers": "",
		"HANG_TIMOUT=1":                   "",
	} {
		got := ""
		for _, err := range UnknownVariables([]string{"A=b", entry}) {
			got += err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", entry, got, want)
		}
	}
}

// A job does not start open because one place hides what another says.
func TestHiddenGuard(t *testing.T) {
	for _, tt := range []struct{ env, conf, want string }{
		{"token_file=/t", "join_timeout=3", "without its token_file"},
		{"token_file=/t", "token_file=/other", ""},
		{"join_timeout=3", "timeout=3", ""},
		{"allow=::1", "bind=::1", "without its allow"},
		{"", "allow=10.0.0.0/8,join_timeout=3,allow=0.0.0.0/0", "the option 'allow' is given twice"},
		{"token_file=/a,token_file=/b", "", "the option 'token_file' is given twice"},
		{"", "join_timeout=3,join_timeout=4", ""},
	} {
		var env []string
		if tt.env != "" {
			env = []string{"PET_RDZV_CONF=" + tt.env}
		}
		args := []string{"train.py"}
		if tt.conf != "" {
			args = append([]string{"--rdzv-conf", tt.conf}, args...)
		}
		l, errs := parseLine(args)
		_, _, bad := Program{Name: "muster run"}.read(l, launch.Config{Env: append(env, "PATH=/usr/bin:/bin")})
		if got := fmt.Sprint(append(errs, bad...)); tt.want == "" && strings.Contains(got, "rdzv") || !strings.Contains(got, tt.want) {
			t.Errorf("PET_RDZV_CONF=%s --rdzv-conf %s: %q, want %q", tt.env, tt.conf, got, tt.want)
		}
	}
}
