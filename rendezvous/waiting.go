package rendezvous

import (
	"fmt"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

// Waiting says how far the round is that a node waits for. Host names are those
// of the first few nodes, sorted.
type Waiting struct {
	Joined     int           `json:"joined"`                // nodes that have joined it, or wait to
	MinNodes   int           `json:"min_nodes"`             // that it needs
	MaxNodes   int           `json:"max_nodes"`             // that it may have
	LastCall   time.Duration `json:"last_call,omitempty"`   // left of it; 0 if it has not begun
	Running    int           `json:"running,omitempty"`     // nodes still in the round before
	Spare      int           `json:"spare,omitempty"`       // nodes on the redundancy list
	Known      []string      `json:"known,omitempty"`       // that have joined
	Missing    []string      `json:"missing,omitempty"`     // that were in the last round and are not back
	NumMissing int           `json:"num_missing,omitempty"` // all of those
	Strangers  int           `json:"-"`                     // clients of a static job's store that are not known as agents
	Suspended  bool          `json:"suspended,omitempty"`   // fewer than MinNodes may be elsewhere, see Suspended
	Left       time.Duration `json:"-"`                     // until this node gives up; 0: it does not
	Note       string        `json:"-"`                     // what it waits for, instead of all that
}

// String says it in one line that is fit for a terminal, whatever other hosts have said.
func (w Waiting) String() string {
	if w.Note != "" {
		return text.Line(w.Note, 1000)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %s nodes have joined", w.Joined, w.nodes())
	if len(w.Known) > 0 {
		fmt.Fprintf(&b, " (%s)", names(w.Known, w.Joined))
	}
	if len(w.Missing) > 0 {
		fmt.Fprintf(&b, ", missing %s", names(w.Missing, w.NumMissing))
	} else if w.NumMissing > 0 {
		fmt.Fprintf(&b, ", %d missing", w.NumMissing)
	}
	if w.Running > 0 {
		fmt.Fprintf(&b, ", %d still in the round before", w.Running)
	}
	if w.Spare > 0 {
		fmt.Fprintf(&b, ", %d spare", w.Spare)
	}
	if w.Strangers > 0 {
		fmt.Fprintf(&b, "; clients not known as agents of this job: %d; does another job use this port?", w.Strangers)
	}
	if w.Suspended {
		fmt.Fprintf(&b, "; while etcd does not answer, fewer than %d may be elsewhere", w.MinNodes)
	}
	if w.LastCall > 0 {
		fmt.Fprintf(&b, "; last call ends in %v", ceil(w.LastCall))
	}
	if w.Left > 0 {
		fmt.Fprintf(&b, "; giving up in %v", ceil(w.Left))
	}
	return b.String()
}

func (w Waiting) nodes() string {
	if w.MinNodes == w.MaxNodes {
		return fmt.Sprint(w.MaxNodes)
	}
	return fmt.Sprintf("%d to %d", w.MinNodes, w.MaxNodes)
}

func names(some []string, all int) string {
	clean := make([]string, 0, len(some))
	for _, name := range some {
		clean = append(clean, text.Line(name, 253))
	}
	text := strings.Join(clean, ", ")
	if more := all - len(some); more > 0 {
		text = fmt.Sprintf("%s and %d more", text, more)
	}
	return text
}

func ceil(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }
