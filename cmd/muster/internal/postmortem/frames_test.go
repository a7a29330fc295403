package postmortem_test

import (
	"bufio"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
)

// A line that an attempt has not ended is no part of the next one's; what comes of an attempt after
// another has begun says so; what else there is to say
// goes elsewhere.
func TestPrintFrames(t *testing.T) {
	frame := func(kind string, round, rank, lost int, text string) string {
		return fmt.Sprintf("%s %d %d 0 %d %d\n%s", kind, round, rank, lost, len(text), text)
	}
	in := "attempt 0 0 host0 attempt_0\n" + frame("out", 0, 0, 0, "one\nbegun") + frame("err", 0, 1, 0, "oh\n") + frame("out", 0, 0, 0, " here\nhalf") +
		"gone 1 it is away\nattempt 1 0 host0 attempt_1\n" + frame("out", 1, 0, 7, "two\n") + frame("err", 0, 1, 0, "oh, late\n") + "end\n"
	var out strings.Builder
	var notes []string
	err := postmortem.PrintFrames(bufio.NewReader(strings.NewReader(in)), &out, func(rank int, stderr bool) string { return fmt.Sprintf("[%d %v]: ", rank, stderr) },
		func(what string) { notes = append(notes, what) })
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff("[0 false]: one\n[1 true]: oh\n[0 false]: begun here\n[0 false attempt_0]: half\n[0 false]: two\n[1 true attempt_0]: oh, late\n", out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	want := []string{"nothing more from the host with group rank 1: it is away", "attempt_1", "7 B of stdout of rank 0 are missing: their segments are gone"}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("notes, -want +got:\n%s", diff)
	}
	if err := postmortem.PrintFrames(bufio.NewReader(strings.NewReader("new 1\n")), &out, nil, nil); err == nil {
		t.Error("a frame of a later release is taken")
	}
}
