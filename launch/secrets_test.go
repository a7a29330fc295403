package launch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWithoutSecrets(t *testing.T) {
	got := withoutSecrets([]string{"A=1", "MUSTER_TOKEN=secret", "PET_RDZV_CONF=user=u, password =secret", "MUSTER_TOKENS=kept", "PET_NNODES=2"})
	if diff := cmp.Diff([]string{"A=1", "MUSTER_TOKENS=kept", "PET_NNODES=2"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	kept := []string{"PET_RDZV_CONF=user=u,password_file=/f"}
	if diff := cmp.Diff(kept, withoutSecrets(kept)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, conf := range []string{"token=secret", "user=u,Passwd=secret", "tokenfile=secret", "client_secret=secret", "token:secret"} {
		if got := withoutSecrets([]string{"PET_RDZV_CONF=" + conf}); len(got) > 0 {
			t.Errorf("workers get %s", got)
		}
	}
	t.Setenv("MUSTER_TOKEN", "secret")
	for _, entry := range withoutSecrets(nil) {
		if strings.Contains(entry, "secret") {
			t.Errorf("of this process: %s", entry)
		}
	}
}

func TestSettings(t *testing.T) {
	cfg := Config{Env: []string{"MUSTER_TOKEN=of the environment\n"}}
	if s, err := cfg.Settings(); err != nil || s.Token != "of the environment" {
		t.Errorf("%q, %v", s.Token, err)
	}
	for _, empty := range []string{"", "\n"} {
		cfg.Env = []string{"MUSTER_TOKEN=" + empty}
		if _, err := cfg.Settings(); err == nil || !strings.Contains(err.Error(), "MUSTER_TOKEN is set but empty") {
			t.Errorf("token %q: %v, want an error", empty, err)
		}
	}
	cfg.Rendezvous.Conf = map[string]string{"token_file": "/f"}
	if s, err := cfg.Settings(); err != nil || s.Token != "" || s.TokenFile != "/f" {
		t.Errorf("a file beside the variable: %q, %q, %v", s.Token, s.TokenFile, err)
	}
}
