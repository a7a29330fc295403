package launch_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/muster-run/muster/launch"
)

func TestHealthCheck(t *testing.T) {
	for _, tt := range []struct {
		name, command string
		code          int // of the error; 0 means that the check passes
		want          string
	}{
		{"passes", "echo fine", 0, ""},
		{"fails", "echo one; echo two >&2; exit 3", 3, "\"echo one; echo two >&2; exit 3\": exit status 3; this host does not join the job; last lines of the check:\n    one\n    two"},
		{"says nothing", "exit 1", 1, "exit status 1; this host does not join the job"},
		{"is killed", "kill -9 $$", -1, "signal: killed; this host"},
		{"says much", "seq 1 100000; exit 1", 1, "last lines of the check:\n    99991\n    99992\n    99993\n    99994\n    99995\n    99996\n    99997\n    99998\n    99999\n    100000"},
		{"writes for a terminal", `printf '\033[31mred\033[0m\n\n'; exit 1`, 1, "lines of the check:\n    red"},
		{"leaves something behind", "sleep 2 & echo started", 0, ""},
		{"sees the environment", `test "$LOOK" = here`, 0, ""},
		{"sees no secret", `test -z "$MUSTER_TOKEN"`, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := launch.Config{HealthCheck: tt.command, Env: []string{"PATH=/usr/bin:/bin", "LOOK=here", "MUSTER_TOKEN=secret"}}
			err := cfg.CheckHealth(t.Context())
			bad, failed := errors.AsType[*launch.HealthCheckError](err)
			switch {
			case tt.code == 0:
				if err != nil {
					t.Fatalf("got error %v, want none", err)
				}
			case !failed:
				t.Fatalf("got %T %v, want a *HealthCheckError", err, err)
			case bad.Code != tt.code || !strings.HasSuffix(err.Error(), tt.want) && !strings.Contains(err.Error(), tt.want):
				t.Errorf("got code %d and %q, want %d and …%q", bad.Code, err, tt.code, tt.want)
			}
		})
	}
}

// A signal that stops muster stops the check, and is what Run reports.
func TestHealthCheckEndsWithContext(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	cfg := launch.Config{HealthCheck: "exec sleep 60"}
	if err := cfg.CheckHealth(ctx); !errors.Is(err, stopped) {
		t.Errorf("got %v, want %v", err, stopped)
	}
}
