package rendezvous_test

import (
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-run/muster/rendezvous"
)

func TestParseSettings(t *testing.T) {
	yes := true
	want := rendezvous.Settings{}.WithDefaults()
	want.Join = 20 * time.Second
	want.LastCall = time.Second
	want.KeepAliveMaxAttempt = 7
	want.CASBackoffMax = 1500 * time.Millisecond
	want.IsHost = &yes
	want.Bind, want.OpenWorkersStore = "10.0.0.1", true
	want.Allow = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("fd00::/64")}
	want.TLS.CACert, want.TLS.Cert, want.TLS.Key, want.Etcd.User, want.Etcd.Password, want.DataDir = "ca.pem", "c.pem", "k.pem", "u", "p", "/d"
	want.Unknown = map[string]string{"colour": ""}
	got, err := rendezvous.ParseSettings("", map[string]string{
		"join_timeout": "20", "last_call_timeout": "1", "keep_alive_max_attempt": "7",
		"cas_backoff_max_seconds": "1.5", "is_host": "Yes", "colour": "blue", "store_type": "TCP", "rank": "0",
		"bind": "10.0.0.1", "allow": "10.0.0.0/8, 192.0.2.7,fd00::1/64", "cacert": "ca.pem", "cert": "c.pem", "key": "k.pem",
		"user": "u", "password": "p", "data_dir": "/d", "open_workers_store": "true",
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("ParseSettings (-want +got):\n%s", diff)
	}
}

func TestParseSettingsReportsEveryProblem(t *testing.T) {
	_, err := rendezvous.ParseSettings("", map[string]string{
		"join_timeout": "0", "last_call_timeout": "soon", "close_timeout": "-1", "read_timeout": "9223372036854775807",
		"keep_alive_max_attempt": "0", "cas_backoff_max_seconds": "nan", "is_host": "maybe", "store_type": "etcd", "bind": "host1", "allow": "10.0.0.0/40", "open_workers_store": "perhaps",
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"join_timeout=0", "last_call_timeout=soon", "close_timeout=-1", "read_timeout=9223372036854775807",
		"keep_alive_max_attempt=0", "cas_backoff_max_seconds=nan", "is_host=maybe", "store_type=etcd", "bind=host1", "allow=10.0.0.0/40", "open_workers_store=perhaps"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s:\n%v", want, err)
		}
	}
}

// A guard without a value, as from an empty variable in a program that makes the settings,
// must not leave the job open.
func TestEmptyGuard(t *testing.T) {
	for _, key := range []string{"bind", "allow", "cacert", "cert", "key", "token_file"} {
		for _, value := range []string{"", " "} {
			if s, err := rendezvous.ParseSettings("c10d", map[string]string{key: value}); err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s=%q: %+v, %v; want an error", key, value, s, err)
			}
		}
	}
}

func TestKeepAliveLimit(t *testing.T) {
	s, err := rendezvous.ParseSettings("c10d", map[string]string{"keep_alive_interval": "9000000000", "keep_alive_max_attempt": "2147483647"})
	if err != nil || s.KeepAliveLimit() < s.KeepAliveInterval {
		t.Errorf("%v is less than the interval; %v", s.KeepAliveLimit(), err)
	}
	if s := (rendezvous.Settings{}).WithDefaults(); s.KeepAliveLimit() != 15*time.Second {
		t.Errorf("by default: %v", s.KeepAliveLimit())
	}
}

// Values that the backend does not read are not looked at. Source:
// test_elastic_launch.py has a timeout of c10d in quotes.
func TestParseSettingsOfABackend(t *testing.T) {
	for _, tt := range []struct {
		backend, key, value string
		suggest             string // "read": the backend reads the key, and the value is bad
	}{
		{"c10d", "timeout", "5'", "join_timeout"}, {"static", "timeout", "5'", "read"}, {"static", "join_timeout", "soon", "timeout"},
		{"quorum", "join_timeout", "soon", "read"}, {"etcd-v2", "join_timeout", "0", "read"}, {"etcd", "store_type", "disk", ""},
		{"c10d", "join_timeot", "x", "join_timeout"}, {"c10d", "'join_timeout", "5", "join_timeout"}, {"c10d", "keep_alive", "5", ""},
		{"c10d", "colour", "blue", ""}, {"quorum", "datadir", "/d", "data_dir"}, {"c10d", "data_dir", "/d", ""},
	} {
		s, err := rendezvous.ParseSettings(tt.backend, map[string]string{tt.key: tt.value})
		if tt.suggest == "read" {
			if err == nil || s.Unknown != nil {
				t.Errorf("%s, %s=%s: %v, unknown %q", tt.backend, tt.key, tt.value, err, s.Unknown)
			}
			continue
		}
		if err != nil || !maps.Equal(s.Unknown, map[string]string{tt.key: tt.suggest}) {
			t.Errorf("%s, %s=%s: %v, unknown %q, want a suggestion of %q", tt.backend, tt.key, tt.value, err, s.Unknown, tt.suggest)
		}
	}
}

// A job whose guard is misspelt must not start without it.
func TestMisspeltGuard(t *testing.T) {
	for key, meant := range map[string]string{"token": "token_file", "tokenfile": "token_file", "token_fle": "token_file", "ca-cert": "cacert", "alow": "allow",
		"token_path": "token_file", "secret_file": "token_file", "tls_ca": "cacert", "allow_from": "allow", "bindaddr": "bind", "private_key": "key", "listen": "bind"} {
		for _, backend := range []string{"c10d", "static", "etcd", "quorum"} {
			if _, err := rendezvous.ParseSettings(backend, map[string]string{key: "x"}); err == nil || !strings.Contains(err.Error(), "without "+meant) {
				t.Errorf("%s, %s: %v, want an error that names %s", backend, key, err, meant)
			}
		}
	}
	for _, backend := range []string{"c10d", "static", "etcd", "quorum"} {
		conf := map[string]string{"cacert": "ca", "cert": "c", "key": "k", "token_file": "t", "bind": "::1", "allow": "::1"}
		s, err := rendezvous.ParseSettings(backend, conf)
		if err != nil || s.Unknown != nil || s.TLS.CACert != "ca" || s.TLS.Cert != "c" || s.TLS.Key != "k" || s.TokenFile != "t" || s.Bind == "" || s.Allow == nil {
			t.Errorf("%s reads %+v, %v", backend, s, err)
		}
	}
}

// What is wrong with a key is said without its value, which may be the secret itself.
func TestSecretUnderAnotherKey(t *testing.T) {
	for _, key := range []string{
		"password", "PASSWORD", "passwd", "pass", "password_", "etcd_password",
		"token", "tokenfile", "Token_file", "secret", "client_secret", " 'token'",
	} {
		for _, backend := range []string{"c10d", "static", "etcd", "quorum", ""} {
			if _, err := rendezvous.ParseSettings(backend, map[string]string{key: "S3cret"}); err != nil && (strings.Contains(err.Error(), "S3cret") || !strings.Contains(err.Error(), key)) {
				t.Errorf("%s: %v", backend, err)
			}
		}
	}
	_, err := rendezvous.ParseSettings("c10d", map[string]string{"auth": "S3cret"})
	if want := "rendezvous configuration auth: there is no such key, and without token_file the job would be open; did you mean that?"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
