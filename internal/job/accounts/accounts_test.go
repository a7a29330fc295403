package accounts_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/job/accounts"
)

// at is a moment, in milliseconds after the start.
func at(ms int64) time.Time { return time.UnixMilli(1_795_000_000_000 + ms) }

// Whatever the marks are, each worker's accounts add up to its wall clock.
func TestSumIsTheWallClock(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r := accounts.Record{Workers: 1 + rng.IntN(3)}
		for range rng.IntN(40) {
			m := accounts.Mark{At: rng.Int64N(3000) - 1000, Account: accounts.All[rng.IntN(len(accounts.All))]}
			if i := rng.IntN(4); i < 3 && rng.IntN(3) == 0 {
				m.LocalRank = &i
			}
			if rng.IntN(5) == 0 {
				m.Attempt = fmt.Sprint("attempt_", rng.IntN(4))
			}
			r.Marks = append(r.Marks, m)
		}
		workers, prices := r.Sum(0, 1000)
		all, priced := int64(0), int64(0)
		for i := range workers {
			if sum := workers[i].Sum(); sum != 1000 {
				t.Fatalf("seed %d: worker %d: %d", seed, i, sum)
			}
			all += 1000
		}
		for i := range prices {
			priced += prices[i].Spent.Sum()
		}
		if priced > all {
			t.Fatalf("seed %d: the prices are %d of %d", seed, priced, all)
		}
	}
}

// The price of a failure ends with the first step of the next attempt, once recorders have told when that was.
func TestPriceUntilSteps(t *testing.T) {
	local := 0
	r := accounts.Record{Workers: 1, Marks: []accounts.Mark{
		{At: 0, Account: accounts.Start, Attempt: "attempt_0"}, {At: 10, Account: accounts.Running}, {At: 10, Account: accounts.Start, LocalRank: &local},
		{At: 40, Account: accounts.FirstStep, LocalRank: &local}, {At: 50, Account: accounts.Steps, LocalRank: &local},
		{At: 100, Account: accounts.Stop, Cause: "NaN"}, {At: 101, Account: accounts.Start, Attempt: "attempt_1"}, {At: 102, Account: accounts.Running},
		{At: 102, Account: accounts.Start, LocalRank: &local}, {At: 132, Account: accounts.FirstStep, LocalRank: &local}, {At: 150, Account: accounts.Steps, LocalRank: &local},
	}}
	_, prices := r.Sum(0, 200)
	want := []accounts.Price{
		{Workers: 1, Spent: accounts.Spent{accounts.Start: 40, accounts.FirstStep: 10}},
		{Attempt: "attempt_0", Cause: "NaN", Workers: 1, Spent: accounts.Spent{accounts.Stop: 1, accounts.Start: 31, accounts.FirstStep: 18}},
	}
	for i := range prices {
		maps.DeleteFunc(prices[i].Spent, func(_ accounts.Account, ms int64) bool { return ms == 0 })
	}
	if diff := cmp.Diff(want, prices); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A failure has a price of its own, too, where no worker had made a step before.
func TestPriceOfFirstStep(t *testing.T) {
	var marks []accounts.Mark
	for i, at := range []int64{0, 100, 200} {
		marks = append(marks, accounts.Mark{At: at, Account: accounts.Start, Attempt: fmt.Sprint("attempt_", i)}, accounts.Mark{At: at + 20, Account: accounts.FirstStep})
		if i < 2 {
			marks = append(marks, accounts.Mark{At: at + 50, Account: accounts.Stop}, accounts.Mark{At: at + 60, Account: accounts.Restart, Cause: fmt.Sprint("failure ", i)})
		}
	}
	r := accounts.Record{Workers: 1, Marks: append(marks, accounts.Mark{At: 250, Account: accounts.Steps})}
	_, prices := r.Sum(0, 400)
	want := []accounts.Price{
		{Workers: 1, Spent: accounts.Spent{accounts.Start: 20, accounts.FirstStep: 30}},
		{Attempt: "attempt_0", Cause: "failure 0", Workers: 1, Spent: accounts.Spent{accounts.Stop: 10, accounts.Restart: 40, accounts.Start: 20, accounts.FirstStep: 30}},
		{Attempt: "attempt_1", Cause: "failure 1", Workers: 1, Spent: accounts.Spent{accounts.Stop: 10, accounts.Restart: 40, accounts.Start: 20, accounts.FirstStep: 30}},
	}
	for i := range prices {
		maps.DeleteFunc(prices[i].Spent, func(_ accounts.Account, ms int64) bool { return ms == 0 })
	}
	if diff := cmp.Diff(want, prices); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Where the clock is set back, each failure still has its name and its cause.
func TestClockSetBack(t *testing.T) {
	r := accounts.Record{Workers: 1, Marks: []accounts.Mark{
		{At: 0, Account: accounts.Start, Attempt: "attempt_0"}, {At: 10, Account: accounts.Running}, {At: 100, Account: accounts.Stop},
		{At: 105, Account: accounts.Stop, Cause: "first"}, {At: 95, Account: accounts.Restart}, {At: 110, Account: accounts.Start, Attempt: "attempt_1"},
		{At: 108, Account: accounts.Running}, {At: 150, Account: accounts.Slow, Cause: "rank 3"}, {At: 140, Account: accounts.Running},
		{At: 160, Account: accounts.Stop, Cause: "second"}, {At: 170, Account: accounts.Agent},
	}}
	workers, prices := r.Sum(0, 200)
	want := []accounts.Price{
		{Workers: 1, Spent: accounts.Spent{accounts.Start: 10}},
		{Attempt: "attempt_0", Cause: "first", Workers: 1, Spent: accounts.Spent{accounts.Restart: 13}},
		{Attempt: "attempt_1", Cause: "second", Workers: 1, Spent: accounts.Spent{accounts.Stop: 10}},
	}
	for i := range prices {
		maps.DeleteFunc(prices[i].Spent, func(_ accounts.Account, ms int64) bool { return ms == 0 })
	}
	if diff := cmp.Diff(want, prices); diff != "" || workers[0].Sum() != 200 {
		t.Errorf("%v; -want +got:\n%s", workers, diff)
	}
}

// A host whose agent has ended, and comes back while others run, is one host, and was away in between.
func TestReportOfHostThatComesBack(t *testing.T) {
	run := func(host string, from, to int64) accounts.Run {
		return accounts.Run{Dir: "/" + host, Host: host, Started: at(from), Ended: at(to), Record: accounts.Record{Workers: 2, Marks: []accounts.Mark{
			{At: at(from).UnixMilli(), Account: accounts.Start, Attempt: "attempt_0"}, {At: at(from + 10).UnixMilli(), Account: accounts.Running}}}}
	}
	for _, tt := range []struct {
		name                   string
		runs                   []accounts.Run
		hosts, number          int
		sum, between, startups int64
	}{
		{"in the first run", []accounts.Run{run("a", 0, 1000), run("b", 0, 400), run("b", 600, 1000)}, 2, 1, 4 * 1000, 2 * 200, 3},
		{"in the second run", []accounts.Run{run("a", 0, 1000), run("b", 0, 1000), run("a", 1100, 2000), run("b", 1100, 1400), run("b", 1600, 2000)},
			2, 2, 4 * 2000, 4*100 + 2*200, 5},
		{"two agents of a host at once", []accounts.Run{run("a", 0, 1000), run("a", 0, 1000)}, 2, 1, 4 * 1000, 0, 2},
	} {
		r := accounts.NewReport("job7", tt.runs)
		if r.Hosts != tt.hosts || r.Workers != 2*tt.hosts || r.Runs[len(r.Runs)-1].Run != tt.number || r.Spent.Sum() != tt.sum ||
			r.Spent[accounts.Requeue] != tt.between || r.Spent[accounts.Start] != 2*10*tt.startups {
			t.Errorf("%s: %d hosts, %d workers, %v", tt.name, r.Hosts, r.Workers, r.Spent)
		}
	}
}

// The file has how long an agent has lived at least, which changes no account.
func TestLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, ctx := t.TempDir(), t.Context()
		r := accounts.Create(dir, 2, slog.Default())
		ctx, end := context.WithCancel(ctx)
		lived := make(chan struct{})
		go func() { r.Live(ctx); close(lived) }()
		began, other := time.Now().UnixMilli(), 1
		time.Sleep(90 * time.Second) // nothing is known yet
		for _, m := range []accounts.Mark{{At: began + 90_000, Account: accounts.Start, Attempt: "attempt_0"}, {At: began + 90_000, Account: accounts.Running},
			{At: began + 91_000, Account: accounts.FirstStep, LocalRank: &other}} {
			r.Put(m)
		}
		time.Sleep(10 * time.Minute)
		now := time.Now().UnixMilli()
		want := r.Sum(now)
		end()
		<-lived
		r.Close(true)
		got, err := accounts.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		sum := accounts.Spent{}
		workers, _ := got.Sum(began+90_000, now)
		for _, spent := range workers {
			for a, ms := range spent {
				sum[a] += ms
			}
		}
		maps.DeleteFunc(sum, func(_ accounts.Account, ms int64) bool { return ms == 0 })
		maps.DeleteFunc(want, func(_ accounts.Account, ms int64) bool { return ms == 0 })
		if last := got.Marks[len(got.Marks)-1]; now-last.At > 60_000 || len(got.Marks) != 13 || !maps.Equal(sum, want) {
			t.Errorf("%d marks, the last one at %d of %d; %v, want %v", len(got.Marks), last.At-began, now-began, sum, want)
		}
	})
}

// What is written is read, as far as it is whole.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	r := accounts.Create(dir, 2, slog.Default())
	for i, a := range []accounts.Account{accounts.Waiting, accounts.Rendezvous, accounts.Start, accounts.Running} {
		r.Put(accounts.Mark{At: at(10 * int64(i)).UnixMilli(), Account: a, Attempt: "attempt_0"})
	}
	want := r.Sum(at(100).UnixMilli())
	r.Close(true)
	path := filepath.Join(dir, accounts.FileName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := accounts.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	sums, _ := got.Sum(at(0).UnixMilli(), at(100).UnixMilli())
	for a, ms := range want {
		if sums[0][a] != ms/2 || sums[1][a] != ms/2 {
			t.Errorf("%s: %d, and read %v", a, ms, sums)
		}
	}
	for _, tt := range []struct {
		text, err string
		marks     int
	}{
		{string(whole[:len(whole)-10]), "", 3},
		{"", "the first line is none that an agent writes: EOF", 0},
		{`{"version":2,"workers":1}`, "version 2 with 1 workers; want version 1 and 1 to 4096 workers", 0},
		{`{"version":1,"workers":1000000}`, "version 1 with 1000000 workers; want version 1 and 1 to 4096 workers", 0},
		{`{"version":1,"workers":1}` + "\n" + `{"at":1,"account":"sleep"}`, `line 2: no account "sleep"`, 0},
	} {
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := accounts.Read(dir)
		if tt.err == "" && (err != nil || len(got.Marks) != tt.marks) || tt.err != "" && (err == nil || err.Error() != tt.err) {
			t.Errorf("%q: %v, %v", tt.text, got, err)
		}
	}
	again := accounts.Create(dir, 2, slog.New(slog.DiscardHandler)) // the file is there; it continues without one
	again.Put(accounts.Mark{At: 5, Account: accounts.Waiting})
	if again.Now() != accounts.Waiting {
		t.Errorf("without a file: %v", again.Now())
	}
	again.Close(false)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("another agent's file: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version":1,"workers":2}` + "\n" + `{"at":1,"account":"steps","local_rank":1,"attempt":"attempt_0","cause":"x"}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, accounts.FileName), text, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := accounts.Read(dir)
		if err != nil {
			return
		}
		workers, _ := r.Sum(0, 1000)
		for i := range workers {
			if workers[i].Sum() != 1000 {
				t.Errorf("worker %d: %v", i, workers[i])
			}
		}
	})
}

// Two runs of two hosts, and what is between them.
func TestReport(t *testing.T) {
	marks := func(from int64) []accounts.Mark {
		return []accounts.Mark{
			{At: at(from + 10).UnixMilli(), Account: accounts.Start, Attempt: "attempt_0"}, {At: at(from + 3_010).UnixMilli(), Account: accounts.Running},
			{At: at(from + 20_000).UnixMilli(), Account: accounts.Slow, Cause: "rank 3 on a"}, {At: at(from + 21_000).UnixMilli(), Account: accounts.Running},
			{At: at(from + 60_000).UnixMilli(), Account: accounts.Stop, Cause: "preempted"},
		}
	}
	run := func(host string, from, to int64) accounts.Run {
		return accounts.Run{Dir: "/" + host, Host: host, Started: at(from), Ended: at(to), Record: accounts.Record{Workers: 4, Marks: marks(from)}}
	}
	r := accounts.NewReport("job7", []accounts.Run{run("b", 100_000, 190_000), run("a", 0, 61_000), run("b", 20, 60_500), run("c", 100_500, 190_000)})
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	want := `run job7: 8 workers on 2 hosts in 2 runs, 0:03:10.000 of wall clock

  account                           worker time    share
  agent                             0:00:00.160    0.01%
  between runs                      0:05:14.000   20.69%
  start and imports                 0:00:48.000    3.16%
  running                           0:14:55.840   59.02%
  waiting for a slow rank           0:00:16.000    1.05%
  stop                              0:04:03.920   16.07%
  all, the sum of wall clocks       0:25:17.920
  slow: rank 3 on a

  until the workers worked, for each of them:
    begin of run 1      3.01 s: 3.00 of start and imports
    attempt_0 of run 1  0.740 s: 0.740 of stop
                        preempted
    begin of run 2      42.3 s: 39.2 of between runs, 3.00 of start and imports
    attempt_0 of run 2  29.8 s: 29.8 of stop
                        preempted
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if sum := int64(4*61_000 + 4*60_480 + 4*(190_000-61_000)*2); r.Spent.Sum() != sum {
		t.Errorf("the sum is %d, want %d", r.Spent.Sum(), sum)
	}
	body, err := json.Marshal(r)
	var back accounts.Report
	if err = errors.Join(err, json.Unmarshal(body, &back)); err != nil || !maps.Equal(back.Spent, r.Spent) || len(back.Runs) != 4 || !maps.Equal(back.Runs[3].Workers[3], r.Runs[3].Workers[3]) {
		t.Errorf("%v\n%s", err, body)
	}
}
