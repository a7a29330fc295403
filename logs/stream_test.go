//go:build linux

package logs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/logs"
)

// A collected stream is what Follow has emitted, by rank and stream.
type collected struct {
	text   map[string]string
	pieces map[string]int
	came   chan string // each key, as it comes
}

func collect() *collected {
	return &collected{map[string]string{}, map[string]int{}, make(chan string, 10000)}
}

func (c *collected) emit(k *logs.Chunk) error {
	key := fmt.Sprintf("%d %v", k.Worker.Rank, k.Stderr)
	if int64(len(c.text[key])) != k.Offset && c.text[key] != "" {
		return fmt.Errorf("%s: offset %d after %d bytes", key, k.Offset, len(c.text[key]))
	}
	c.text[key] += string(k.Data)
	c.pieces[key]++
	c.came <- key
	return nil
}

// Follow tells what comes while it comes, in whole lines, and ends with the workers. A line
// without an end comes last, a long one in pieces.
func TestFollow(t *testing.T) {
	j := newJob(t, logs.Config{Redirects: logs.StdSpec{All: logs.StdAll}})
	a, workers := j.begin(2)
	c, over := collect(), make(chan error)
	go func() {
		over <- a.Follow(t.Context(), logs.FollowConfig{Stdout: true, Stderr: true, Lines: -1}, c.emit)
	}()
	for i := range 100 {
		fmt.Fprintf(workers[i%2].out, "line %d\nbegun ", i)
		if key := <-c.came; key != fmt.Sprintf("%d false", 10+i%2) {
			t.Fatalf("a line of %s after one of worker %d", key, i%2)
		}
	}
	long := strings.Repeat("x", 700_000)
	fmt.Fprintf(workers[1].err, "%s\nend", long)
	for _, w := range workers {
		w.close()
	}
	finish(t, a)
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	for rank := range 2 {
		var want strings.Builder
		for i := rank; i < 100; i += 2 {
			fmt.Fprintf(&want, "line %d\nbegun ", i)
		}
		if diff := cmp.Diff(want.String(), c.text[fmt.Sprintf("%d false", 10+rank)]); diff != "" {
			t.Errorf("worker %d, -want +got:\n%s", rank, diff)
		}
	}
	if got := c.text["11 true"]; got != long+"\nend" || c.pieces["11 true"] < 3 {
		t.Errorf("%d bytes in %d pieces", len(got), c.pieces["11 true"])
	}
	for name, tt := range map[string]struct {
		cfg  logs.FollowConfig
		want map[string]string
	}{
		"nothing":      {logs.FollowConfig{Lines: -1}, map[string]string{}},
		"last lines":   {logs.FollowConfig{Stdout: true, Lines: 2}, map[string]string{"10 false": "begun line 98\nbegun ", "11 false": "begun line 99\nbegun "}},
		"one worker":   {logs.FollowConfig{Stdout: true, Lines: 1, Want: func(w logs.Worker) bool { return w.Rank == 11 }}, map[string]string{"11 false": "begun "}},
		"from a place": {logs.FollowConfig{Stdout: true, Lines: 0, From: func(w logs.Worker, _ bool) (int64, bool) { return int64(len(c.text["10 false"]) - 3), w.Rank == 10 }}, map[string]string{"10 false": "un ", "11 false": ""}},
	} {
		again := &collected{map[string]string{}, map[string]int{}, make(chan string, 100)}
		if err := a.Follow(t.Context(), tt.cfg, func(k *logs.Chunk) error {
			again.text[fmt.Sprintf("%d %v", k.Worker.Rank, k.Stderr)] += string(k.Data)
			return nil
		}); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(tt.want, again.text); diff != "" {
			t.Errorf("%s, -want +got:\n%s", name, diff)
		}
	}
}

// Who has not seen a line yet learns where each stream begins, and misses none when he comes back.
func TestFollowFromNow(t *testing.T) {
	j := newJob(t, logs.Config{Redirects: logs.StdSpec{All: logs.StdAll}})
	a, workers := j.begin(1)
	fmt.Fprintln(workers[0].out, "one")
	var at int64
	gone := errors.New("the connection is gone")
	if err := a.Follow(t.Context(), logs.FollowConfig{Stdout: true}, func(k *logs.Chunk) error {
		at = k.Offset
		return gone
	}); err != gone || at != 4 {
		t.Errorf("it begins at %d, %v", at, err)
	}
	fmt.Fprintln(workers[0].out, "two")
	c := collect()
	from := func(logs.Worker, bool) (int64, bool) { return at, true }
	if err := a.Follow(t.Context(), logs.FollowConfig{Stdout: true, From: from, Once: true}, c.emit); err != nil || c.text["10 false"] != "two\n" {
		t.Errorf("%q, %v", c.text, err)
	}
	workers[0].close()
	finish(t, a)
}

// Follow ends with its context and with an error of emit. Once, it reads what there is.
func TestFollowEnds(t *testing.T) {
	j := newJob(t, logs.Config{Redirects: logs.StdSpec{All: logs.StdAll}})
	a, workers := j.begin(1)
	fmt.Fprintln(workers[0].out, "one")
	c := collect()
	if err := a.Follow(t.Context(), logs.FollowConfig{Stdout: true, Lines: -1, Once: true}, c.emit); err != nil || c.text["10 false"] != "one\n" {
		t.Errorf("once: %v, %q", err, c.text)
	}
	why := errors.New("the reader is gone")
	if err := a.Follow(t.Context(), logs.FollowConfig{Stdout: true, Lines: -1}, func(*logs.Chunk) error { return why }); err != why {
		t.Errorf("emit fails: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	c = collect()
	over := make(chan error)
	go func() { over <- a.Follow(ctx, logs.FollowConfig{Stdout: true, Lines: -1}, c.emit) }()
	<-c.came
	cancel(why)
	if err := <-over; err != why {
		t.Errorf("its context ends: %v", err)
	}
	workers[0].close()
	finish(t, a)
	if err := new(logs.Attempt).Follow(t.Context(), logs.FollowConfig{Stdout: true}, c.emit); err != nil {
		t.Errorf("an attempt without workers: %v", err)
	}
}

// A follower of a part gets the lines of that part, each line is of one part, and the next part
// has the ranks that it is said to have.
func TestFollowPart(t *testing.T) {
	j := newJob(t, logs.Config{Redirects: logs.StdSpec{All: logs.StdAll}})
	a, workers := j.begin(2)
	follow := func(p *logs.Part) (*collected, chan error) {
		c, over := collect(), make(chan error, 1)
		go func() {
			over <- a.Follow(t.Context(), logs.FollowConfig{Stdout: true, Stderr: true, Lines: -1, Part: p}, func(k *logs.Chunk) error {
				one := *k
				one.Offset = int64(len(c.text[fmt.Sprintf("%d %v", k.Worker.Rank, k.Stderr)]))
				return c.emit(&one)
			})
		}()
		return c, over
	}
	first := a.Part()
	c1, over1 := follow(first)
	fmt.Fprint(workers[0].out, "one\nbegun ")
	<-c1.came
	second := first.Next(map[int]int{0: 3})
	if err := <-over1; err != nil {
		t.Fatal(err)
	}
	c2, over2 := follow(second)
	fmt.Fprint(workers[0].out, "here, ended there\n")
	fmt.Fprint(workers[1].err, "two\n")
	<-c2.came
	<-c2.came
	third := second.Next(nil)
	if err := <-over2; err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(workers[0].out, "last")
	for _, w := range workers {
		w.close()
	}
	finish(t, a)
	late1, over1 := follow(first)
	late2, over2 := follow(second)
	c3, over3 := follow(third)
	for _, over := range []chan error{over1, over2, over3} {
		if err := <-over; err != nil {
			t.Fatal(err)
		}
	}
	begin, middle := map[string]string{"10 false": "one\n"}, map[string]string{"3 false": "begun here, ended there\n", "11 true": "two\n"}
	for i, tt := range []struct {
		c    *collected
		want map[string]string
	}{{c1, begin}, {c2, middle}, {late1, begin}, {late2, middle}, {c3, map[string]string{"10 false": "last"}}} {
		if diff := cmp.Diff(tt.want, tt.c.text); diff != "" {
			t.Errorf("%d, -want +got:\n%s", i, diff)
		}
	}
}
