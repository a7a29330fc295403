package agent

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/autopsy"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// bomb is a Report of 300,000 workers in 900 KB.
var bomb = `{"workers":[{}` + strings.Repeat(",{}", 300_000) + `]}`

// A peer is another agent that answers with what it has.
type peer struct {
	rendezvous.Caller
	body string
}

func (p peer) Call(context.Context, int) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		if _, err := http.ReadRequest(bufio.NewReader(theirs)); err == nil {
			fmt.Fprintf(theirs, "HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(p.body), p.body)
		}
	}()
	return ours, nil
}

// Evidence of another host that would take much memory is not decoded, whether that host is asked
// or has set it in the store, and it counts as missing.
func TestEvidenceTooLarge(t *testing.T) {
	r, err := askForEvidence(t.Context(), peer{body: bomb}, new(autopsy.Peers), 1, "a test", 1)
	if r != nil || err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("asked: %v", err)
	}
	s := store.NewMemory()
	if err := s.Set(t.Context(), "key/all", []byte(bomb)); err != nil {
		t.Fatal(err)
	}
	at := newAttempt(t.Context())
	defer at.close()
	at.round = &rendezvous.Info{Store: s}
	all, blame := new(Agent).evidenceFrom(t.Context(), at, "key", &autopsy.Report{Workers: []autopsy.Worker{{Rank: 1}}})
	if blame || len(all.Workers) != 1 || len(all.Missing) != 1 || !strings.Contains(all.Missing[0], "too large") {
		t.Errorf("from the store: %d workers, missing %q, blame %v", len(all.Workers), all.Missing, blame)
	}
}
