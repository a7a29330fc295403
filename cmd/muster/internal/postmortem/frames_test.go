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
	in := "attempt 0 0 host0 attempt_0\n" + frame("err", 0, 1, 0, "oh\n") + frame("out", 0, 0, 0, "one\nbegun") + frame("out", 0, 0, 0, " here\nhalf") +
		"gone 1 it is away\nattempt 1 0 host0 attempt_1\n" + frame("out", 1, 0, 7, "two\n") + frame("err", 0, 1, 0, "oh, late\n") + "end\n"
	var out strings.Builder
	var notes []string
	err := postmortem.PrintFrames(bufio.NewReader(strings.NewReader(in)), to(&out, func(ranks string, stderr bool) string { return fmt.Sprintf("[%s %v]: ", ranks, stderr) }), false,
		func(what string) { notes = append(notes, what) })
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff("[1 true]: oh\n[0 false]: one\n[0 false]: begun here\n[0 false]: half\n[0 false]: two\n[1 true attempt_0]: oh, late\n", out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	want := []string{"nothing more from the host with group rank 1: it is away", "attempt_1", "7 B of stdout of rank 0 are missing: their segments are gone"}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("notes, -want +got:\n%s", diff)
	}
	notes = nil
	err = postmortem.PrintFrames(bufio.NewReader(strings.NewReader("out 0 0 0 0 2 9\na\nout 0 0 2 0 2 10\nb\nerr 0 0 0 0 2 4\nc\n")), to(&out, byRank), false, func(what string) { notes = append(notes, what) })
	if diff := cmp.Diff([]string{"the connection to the agent broke off; 8 B of lines that were written before are missing, and all that was written since"}, notes); diff != "" || err != nil {
		t.Errorf("%v, notes, -want +got:\n%s", err, diff)
	}
	if err := postmortem.PrintFrames(bufio.NewReader(strings.NewReader("new 1\n")), to(&out, nil), false, nil); err == nil {
		t.Error("a frame of a later release is taken")
	}
}

// Equal lines of ranks on several hosts are printed once.
func TestPrintFramesCollapsed(t *testing.T) {
	in := "attempt 0 0 host0 attempt_0\n"
	for rank := range 4 {
		in += fmt.Sprintf("out 0 %d 0 0 12\nsame\nrank %d\nerr 0 %d 0 0 5\nsame\n", rank, rank, rank)
	}
	var out strings.Builder
	cfg := to(&out, byRank)
	cfg.Collapse = true
	if err := postmortem.PrintFrames(bufio.NewReader(strings.NewReader(in+"end\n")), cfg, false, nil); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff("[0-3]:same\n[0]:rank 0\n[1]:rank 1\n[2]:rank 2\n[3]:rank 3\n[0-3e]:same\n", out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
