//go:build linux

package logs_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/logs"
)

func chunk(rank int, text string) *logs.Chunk {
	return &logs.Chunk{Worker: logs.Worker{Rank: rank}, Data: []byte(text)}
}

// Lines of all hosts come out with rank and host, each once, in each worker's order, and whole:
// also those that come in pieces.
func TestGather(t *testing.T) {
	j := newJob(t, logs.Config{Tee: logs.StdSpec{All: logs.StdAll}, Gather: true})
	g := j.Gather(4)
	var putting sync.WaitGroup
	for rank := range 4 {
		putting.Go(func() {
			for i := range 1000 {
				if err := g.Put(fmt.Sprint("h", rank/2), chunk(rank, fmt.Sprintf("line %d of %d\n", i, rank))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	putting.Wait()
	long := strings.Repeat("x", 100_000)
	for _, text := range []string{long, long + "\nand a bar\r 10%\r 20%\nno", " end"} {
		_ = g.Put("h1", chunk(3, text))
	}
	g.End(3, false)
	_ = g.Put("h0", &logs.Chunk{Worker: logs.Worker{Rank: 0}, Stderr: true, Lost: 5, Data: []byte("an error\n")})
	if err := g.Put("h9", chunk(4, "x\n")); err == nil {
		t.Error("a rank that there is not is taken")
	}
	stats, err := g.Close(t.Context())
	if err != nil || stats.LostBytes != 0 || stats.Lines != 4000+7 {
		t.Errorf("%+v, %v", stats, err)
	}
	out := content(t, j.stdout)
	for rank := range 4 {
		var want, got []string
		for i := range 1000 {
			want = append(want, fmt.Sprintf("[%d h%d]:line %d of %d", rank, rank/2, i, rank))
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, fmt.Sprintf("[%d ", rank)) && strings.Contains(line, "]:line ") {
				got = append(got, strings.TrimSuffix(line, "\n"))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rank %d, -want +got:\n%s", rank, diff)
		}
	}
	if want := "[3 h1]:" + long + long + "\n[3 h1]:and a bar\r[3 h1]: 10%\r[3 h1]: 20%\n[3 h1]:no end\n"; !strings.HasSuffix(out, want) {
		t.Errorf("ends with %q", out[len(out)-200:])
	}
	if got, want := content(t, j.stderr), "[0 h0]:(muster: 5 B of this worker's output are missing)\n[0 h0]:an error\n"; got != want {
		t.Errorf("stderr: %q, want %q", got, want)
	}
}

// What comes out when another attempt has begun says of which it is.
func TestGatherLate(t *testing.T) {
	for template, want := range map[string]string{"": "[0 h]:early\n[0 h attempt_0]:late\n", "${rank}: ": "0: early\n0: [attempt_0]:late\n"} {
		j := newJob(t, logs.Config{Tee: logs.StdSpec{All: logs.StdAll}, Gather: true, LinePrefixTemplate: template})
		g := j.Gather(1)
		g.Late("")
		_ = g.Put("h", chunk(0, "early\n"))
		for g.Progress() < int64(len("early\n")) {
			runtime.Gosched()
		}
		g.Late("attempt_0")
		_ = g.Put("h", chunk(0, "late\n"))
		if _, err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, content(t, j.stdout)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// The console shows the ranks of its filter only.
func TestGatherFiltered(t *testing.T) {
	j := newJob(t, logs.Config{Tee: logs.StdSpec{All: logs.StdAll}, Gather: true, RanksFilter: [][2]int{{0, 0}, {2, 3}}})
	g := j.Gather(5)
	for rank := range 5 {
		if err := g.Put("h", chunk(rank, "a\n")); err != nil {
			t.Error(err)
		}
	}
	if _, err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff("[0 h]:a\n[2 h]:a\n[3 h]:a\n", content(t, j.stdout)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Equal lines of all ranks come out once. No line waits too long for the others: time stands still.
func TestGatherCollapsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, logs.Config{Tee: logs.StdSpec{All: logs.StdAll}, Gather: true, Collapse: true})
		g := j.Gather(8)
		for i := range 100 {
			for rank := range 8 {
				text := fmt.Sprintf("epoch %d\n", i)
				if rank == 5 && i == 50 {
					text = "another\n"
				}
				_ = g.Put(fmt.Sprint("h", rank/4), chunk(rank, text))
			}
		}
		if stats, err := g.Close(t.Context()); err != nil || stats.LostBytes != 0 || stats.Lines != 800 {
			t.Errorf("%+v, %v", stats, err)
		}
		var want []string
		for i := range 100 {
			ranks := "0-7"
			if i == 50 {
				ranks = "0-4,6-7"
				want = append(want, "[5 h1]:another")
			}
			want = append(want, fmt.Sprintf("[%s]:epoch %d", ranks, i))
		}
		got := strings.Split(strings.TrimSpace(content(t, j.stdout)), "\n")
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// A console that nobody reads holds Put up, within a bound, until Close gives up and counts.
func TestGatherStuck(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	j := newJob(t, logs.Config{Tee: logs.StdSpec{All: logs.StdAll}, Gather: true, Stdout: w})
	g := j.Gather(1)
	block := strings.Repeat(strings.Repeat("y", 99)+"\n", 10_000)
	put, stuck := 0, make(chan int)
	go func() {
		for range 100 {
			put += len(block)
			_ = g.Put("h", chunk(0, block))
			stuck <- put
		}
		close(stuck)
	}()
	for n := range stuck {
		if n >= 16<<20 {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stats, err := g.Close(ctx)
	for range stuck { // Put returns at once
	}
	if err == nil || stats.LostBytes < 15<<20 || stats.LostBytes > 20<<20 {
		t.Errorf("%+v, %v", stats, err)
	}
}
