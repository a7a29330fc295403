//go:build linux

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"

	"github.com/muster-run/muster/internal/test/testproc"
)

// The loss of the holder costs no worker of another host, also while that one waits in a round for
// a third, which pauses late.
func TestLiveHolderLostInChange(t *testing.T) {
	t.Parallel()
	env := append(testproc.Env(nil, testproc.NewGate(t), ""), "LOGLEVEL=INFO")
	l := newLive(t, backend(t, "quorum"), nil, []int{1, 1, 1}, env, "--no-python --live-timeout 600", worker("live", "hang")...)
	g := l.whole(func(now *liveGroup) bool { return now.world == 3 })
	at := map[int]liveID{}
	for _, id := range g.ranks {
		at[id.host] = id
	}
	holder := l.holds(0)
	waits, slow := at[(holder+1)%3], at[(holder+2)%3]
	signal := func(id liveID, name string) {
		must(l.lab.Host(id.host).Command(context.Background(), "kill", "-"+name, fmt.Sprint(id.pid)).Run())
	}
	signal(slow, "STOP")
	l.kill(at[holder])
	for _, j := range l.agents {
		j.awaitErrs("rendezvous complete", 2)
	}
	l.cut[holder] = true
	l.agents[holder].signal(syscall.SIGKILL)
	l.agents[waits.host].awaitErrs("live: the workers pause", 2)
	signal(slow, "CONT")
	now := l.whole(func(now *liveGroup) bool { return now.uuid > g.uuid && now.world >= 2 })
	if all := slices.Collect(maps.Values(now.ranks)); !slices.Contains(all, waits) || !slices.Contains(all, slow) {
		l.fatalf("%v, not %v and %v, are left of %v", all, waits, slow, g)
	}
	l.agents[slow.host].signal(syscall.SIGTERM)
}
