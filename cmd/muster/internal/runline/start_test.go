package runline

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/rendezvous"
)

// Where hosts are missing at the end of the wait the user hears what to do there. A run ID that nobody gave
// is not named.
func TestHostsMissing(t *testing.T) {
	const hint = "hint: start muster on the missing hosts with the same --rdzv-endpoint and --rdzv-id; run muster doctor on each host " +
		"to see what keeps them apart\n"
	for _, tt := range []struct{ runID, want string }{
		{"none", "error: rendezvous: join timed out after 7s: 1 of 2 nodes have joined (vm) [M1237]\n" + hint},
		{"job7", "error: rendezvous of run \"job7\": join timed out after 7s: 1 of 2 nodes have joined (vm) [M1147]\n" + hint},
	} {
		var out strings.Builder
		err := &rendezvous.TimeoutError{RunID: tt.runID, Phase: "join", After: 7 * time.Second,
			Waiting: rendezvous.Waiting{Joined: 1, MinNodes: 2, MaxNodes: 2, Known: []string{"vm"}}}
		if console.Complain(&out, false, []error{advise(err, launch.Config{})}, ""); out.String() != tt.want {
			t.Errorf("got %s, want %s", out.String(), tt.want)
		}
	}
}
