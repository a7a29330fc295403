package node

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/muster-run/muster/rendezvous"
)

// What the election waits for is a waiting line's only while this node looks for the one that is elected. Later it is
// a warning: workers may train.
func TestElectionLacks(t *testing.T) {
	var log strings.Builder
	told := 0
	h, err := Elected("quorum", rendezvous.Spec{RunID: "job1", MinNodes: 2, MaxNodes: 2, LocalWorldSize: 1,
		OnWaiting: func(rendezvous.Waiting) { told++ }, Logger: slog.New(slog.NewTextHandler(&log, nil))}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := h.(*Node)
	e := n.endpoint.(*elected)
	e.lacks("etcd has no leader")
	if log.Len() > 0 || e.lacking() != "etcd has no leader" {
		t.Errorf("while it looks: lacks %q, log %s", e.lacking(), &log)
	}
	n.protocol = &session{}
	e.lacks("")
	e.lacks("etcd has no leader")
	if n := strings.Count(log.String(), "perhaps no other can be elected"); n != 1 || told > 0 || !strings.Contains(log.String(), "etcd has no leader") {
		t.Errorf("in a round: %d warnings, %d waiting lines, log %s", n, told, &log)
	}
}
