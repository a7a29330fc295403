package election_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/wire/pipe"
	"github.com/muster-run/muster/rendezvous/internal/election"
)

// failure is how an election that cannot be ends.
func failure(t *testing.T, cfg election.Config) error {
	t.Helper()
	e, err := election.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(context.Background(), false)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err = e.Leader(ctx)
	return err
}

func TestConfigErrors(t *testing.T) {
	t.Setenv("PATH", "")
	for _, tt := range []struct {
		name string
		cfg  election.Config
		want []string
	}{
		{"all at once", election.Config{Elect: pipe.Elect{Cert: "c", User: "u"}}, []string{"certificate and its key", "user and a password"}},
		{"no program", election.Config{Elect: pipe.Elect{RunID: "r", Addr: "a:1", Endpoints: []string{"e"}}},
			[]string{"need the program muster-quorum", "neither beside", "nor in PATH", "copy it there"}},
		{"program that is not there", election.Config{Elect: pipe.Elect{RunID: "r", Addr: "a:1", Endpoints: []string{"e"}}, Program: "/nowhere/muster-quorum"},
			[]string{"/nowhere/muster-quorum"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := election.Start(t.Context(), tt.cfg)
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
		})
	}
}

// Settings that muster-quorum refuses end the election with its words.
func TestRefusedSettings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, endpoint, ca, want string }{
		{"endpoint", "ftp://h:1", "", `endpoint "ftp://h:1": want http:// or https://`},
		{"no file", "h:1", "/nowhere/ca.pem", "cacert: open /nowhere/ca.pem"},
		{"not PEM", "h:1", os.Args[0], "has no certificate in PEM"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := failure(t, election.Config{Elect: pipe.Elect{RunID: "r", Addr: "a:1", Endpoints: []string{tt.endpoint}, CACert: tt.ca}, Program: muster})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}

// A bridge that dies over and over is not started for ever.
func TestBridgeDiesAgainAndAgain(t *testing.T) {
	t.Parallel()
	err := failure(t, election.Config{Elect: pipe.Elect{RunID: "r", Addr: "a:1", Endpoints: []string{"h:1"}}, Program: "false", Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "muster-quorum elect died 5 times within a minute, the last time with: exit status 1") {
		t.Errorf("got %v", err)
	}
}
