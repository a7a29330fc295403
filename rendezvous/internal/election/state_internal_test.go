package election

import (
	"io"
	"log/slog"
	"slices"
	"testing"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// What the bridge lacks is told also where this host's member was stopped before it could say that it serves.
func TestMemberStopsBeforeItIsReady(t *testing.T) {
	const joins, outage = "3 of 3 members of the quorum are up", "etcd has no leader, as 1 of 3 members answer"
	waiting := func(text string) *pipe.Report { return &pipe.Report{Waiting: &text} }
	var told []string
	e := &Election{member: &minder{}, bridge: &minder{}, reports: make(chan report), lease: make(chan bool, 1), changed: make(chan struct{}),
		logger: slog.New(slog.NewTextHandler(io.Discard, nil)), cfg: Config{OnWaiting: func(text string) { told = append(told, text) }}}
	ended := make(chan struct{})
	go func() { e.listen(); close(ended) }()
	e.reports <- report{from: e.bridge, said: waiting("no member of etcd answers")} // no news: the member knows best
	e.reports <- report{from: e.member, said: waiting(joins)}
	e.reports <- report{from: e.bridge, said: waiting("")}
	e.reports <- report{from: e.bridge, said: &pipe.Report{Leader: &pipe.Leader{Addr: "host1:1", Term: 1}}}
	e.reports <- report{from: e.bridge, said: waiting(outage)}
	close(e.reports)
	<-ended
	if want := []string{joins, "", outage}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
