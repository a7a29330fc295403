package autopsy_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/job/autopsy"
)

// at is a worker whose main thread is in a function of a file.
func at(rank int, function, file string) autopsy.Worker {
	return autopsy.Worker{
		Rank: rank, PID: 100 + rank, State: "sleeping", Command: "secret words",
		Python: autopsy.Python{Threads: []autopsy.Thread{{Main: true, Frames: []autopsy.Frame{{Function: function, File: file, Line: 7}}}}},
	}
}

// The workers of several hosts are grouped as those of one, also by who gets the others' in
// brief, and the odd one's host is named, as is the host that says nothing.
func TestWith(t *testing.T) {
	here := &autopsy.Report{Host: "a", Workers: []autopsy.Worker{at(2, "step", "/x/train.py"), at(3, "load", "/x/train.py")}}
	there := &autopsy.Report{Host: "b", Workers: []autopsy.Worker{at(0, "step", "/x/train.py"), at(1, "step", "/x/train.py")}}
	const want = "3 ranks step (train.py:7), rank 3 on a load (train.py:7), nothing known of c"
	brief := func(r *autopsy.Report) *autopsy.Report {
		text, err := json.Marshal(r.Brief())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "secret") {
			t.Errorf("in brief: %s", text)
		}
		var back autopsy.Report
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		return &back
	}
	all := here.With([]*autopsy.Report{brief(there)}, []string{"c"})
	for i, r := range []*autopsy.Report{all, brief(all)} {
		if got := strings.ReplaceAll(r.Summary(), " in ", " "); got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
		var ranks []int
		for _, w := range r.Workers {
			ranks = append(ranks, w.Rank)
		}
		if diff := cmp.Diff([]int{0, 1, 2, 3}, ranks); diff != "" {
			t.Errorf("%d: ranks (-want +got)\n%s", i, diff)
		}
	}
	if got := all.Text(); !strings.Contains(got, "\n4 workers, seen from ") || !strings.Contains(got, all.Answer()) {
		t.Errorf("the text is\n%s", got)
	}
	if len(here.Workers) != 2 || here.Workers[0].Host != "" || len(here.Missing) > 0 {
		t.Errorf("With has changed what it was given: %+v", here)
	}
}
