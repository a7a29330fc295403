package agent

import (
	"slices"
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	p := &pace{}
	var got []time.Duration
	for range 11 {
		got = append(got, p.pause(time.Second, false))
	}
	ms := time.Millisecond
	want := []time.Duration{0, 0, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, mostPause, mostPause}
	if !slices.Equal(got, want) {
		t.Errorf("pauses %v, want %v", got, want)
	}
	for range 1 << 10 {
		if got := p.pause(0, false); got != mostPause {
			t.Fatalf("then %v", got)
		}
	}
	if got := p.pause(0, true); got != 0 {
		t.Errorf("%v after a restart that was counted", got)
	}
	p.quick = 100
	if got := p.pause(quickRound, false); got != 0 {
		t.Errorf("%v after a long round", got)
	}
}
