package postmortem_test

import (
	"bufio"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
)

// A line that an attempt has not ended is not a part of the next one's; what comes of an attempt after
// another has begun says so; what else there is to say
// goes elsewhere.
func TestPrintFrames(t *testing.T) {
	frame := func(kind string, round, rank int, text string) string {
		return fmt.Sprintf(`{"kind":%q,"round":%d,"rank":%d,"bytes":%d}`+"\n%s", kind, round, rank, len(text), text)
	}
	attempt := func(round int) string {
		return fmt.Sprintf(`{"kind":"attempt","round":%d,"host":"host0","attempt":"attempt_%d"}`+"\n", round, round)
	}
	in := attempt(0) + frame("err", 0, 1, "oh\n") + frame("out", 0, 0, "one\nbegun") + frame("out", 0, 0, " here\nhalf") +
		`{"kind":"gone","rank":1,"why":"it is away"}` + "\n" + attempt(1) + frame("out", 1, 0, "two\n") + frame("err", 0, 1, "oh, late\n") + `{"kind":"end"}` + "\n"
	var out strings.Builder
	var notes []string
	printed, err := postmortem.PrintFrames(bufio.NewReader(strings.NewReader(in)), to(&out, func(ranks string, stderr bool) string { return fmt.Sprintf("[%s %v]: ", ranks, stderr) }), false,
		func(what string) { notes = append(notes, what) })
	if err != nil || !printed {
		t.Errorf("printed %v, %v", printed, err)
	}
	if diff := cmp.Diff("[1 true]: oh\n[0 false]: one\n[0 false]: begun here\n[0 false]: half\n[0 false]: two\n[1 true attempt_0]: oh, late\n", out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	want := []string{"nothing more from the host with group rank 1: it is away", "attempt_1"}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("notes, -want +got:\n%s", diff)
	}
	notes = nil
	_, err = postmortem.PrintFrames(bufio.NewReader(strings.NewReader(`{"kind":"out","size":9,"bytes":2}
a
{"kind":"out","offset":2,"size":10,"bytes":2}
b
{"kind":"err","size":4,"bytes":2}
c
`)), to(&out, byRank), false, func(what string) { notes = append(notes, what) })
	if diff := cmp.Diff([]string{"the connection to the agent broke off; 8 B of lines that were written before are missing, and all that was written since"}, notes); diff != "" || err != nil {
		t.Errorf("%v, notes, -want +got:\n%s", err, diff)
	}
	if printed, err := postmortem.PrintFrames(bufio.NewReader(strings.NewReader(`{"kind":"out"}`+"\n"+`{"kind":"end"}`+"\n")), to(&out, byRank), false, nil); printed || err != nil {
		t.Errorf("without lines: printed %v, %v", printed, err)
	}
	if _, err := postmortem.PrintFrames(bufio.NewReader(strings.NewReader(`{"kind":"new"}`+"\n")), to(&out, nil), false, nil); err == nil {
		t.Error("a frame of a later release is taken")
	}
}

// Equal lines of ranks on several hosts are printed once.
func TestPrintFramesCollapsed(t *testing.T) {
	in := `{"kind":"attempt","host":"host0","attempt":"attempt_0"}` + "\n"
	for rank := range 4 {
		in += fmt.Sprintf(`{"kind":"out","rank":%d,"bytes":12}
same
rank %d
{"kind":"err","rank":%d,"bytes":5}
same
`, rank, rank, rank)
	}
	var out strings.Builder
	cfg := to(&out, byRank)
	cfg.Collapse = true
	if _, err := postmortem.PrintFrames(bufio.NewReader(strings.NewReader(in+`{"kind":"end"}`+"\n")), cfg, false, nil); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff("[0-3]:same\n[0]:rank 0\n[1]:rank 1\n[2]:rank 2\n[3]:rank 3\n[0-3e]:same\n", out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
