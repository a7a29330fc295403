package evidence

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/job/flight"
	"github.com/muster-run/muster/internal/wait/parallel"
	"github.com/muster-run/muster/process"
)

// lastWords is how long workers have to say that: one that prints why it ends may need it on a busy machine.
const lastWords = time.Second

// MayBeCollective reports whether a collective may have ended a worker: PyTorch's libraries abort the process, or
// what is raised names them. Otherwise the others need not be asked, and are stopped at once.
func MayBeCollective(exit process.Exit, stderr []byte) bool {
	if exit.Code == -int(syscall.SIGABRT) {
		return true
	}
	said := strings.ToLower(string(stderr))
	return slices.ContainsFunc([]string{"gloo", "nccl", "distributed_c10d", "processgroup", "distbackenderror"},
		func(part string) bool { return strings.Contains(said, part) })
}

// AskBeforeStop asks workers how far they are, and where, before they are stopped: they may be what others that have
// failed had waited for. Those that have failed have left that by themselves (witness.Server.Left). If the job is to
// stop, life has ended, and nobody is asked.
func (c *Collector) AskBeforeStop(life context.Context, pids map[int]int) {
	ranks := slices.Sorted(maps.Keys(pids))
	for i, body := range ask(life, lastWords, c.cfg.Witness.Everything, ranks, pids) {
		c.mu.Lock()
		c.asked[ranks[i]] = said{body, time.Now()}
		c.mu.Unlock()
	}
}

// ask asks the workers of some local ranks at once, for a time. There is nil of those that do not answer.
func ask(ctx context.Context, limit time.Duration, question func(context.Context, int) ([]byte, error), ranks []int,
	pids map[int]int) [][]byte {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return parallel.Map(len(ranks), len(ranks), func(i int) []byte {
		body, err := question(ctx, pids[ranks[i]])
		if err != nil {
			return nil
		}
		return body
	})
}

// A said is what a worker said of itself, and when.
type said struct {
	body []byte
	at   time.Time
}

// longWait is how long a worker must have been in a collective to have waited there for others that did not come.
const longWait = 8 * time.Second

// collectivesOf says how far a worker was in each process group at a time. A worker that has ended may have failed in
// its last collective, which gloo's recorder then has as if it were complete.
func collectivesOf(dumps []*flight.Dump, where string, at time.Time, ended bool) (all []failure.Collective) {
	for _, d := range dumps {
		for _, p := range d.Positions() {
			c := failure.Collective{Group: fmt.Sprintf("%s(%s)", p.Group.Name, p.Group.Desc), Enqueued: int(p.Last),
				Last: p.What, At: where}
			if p.Op == "" && p.What != "" && ended {
				p.Op, _, _ = strings.Cut(p.What, " ")
				p.Seq = p.Last
			}
			if waited := at.Sub(p.Since); p.Op != "" && waited >= longWait {
				c.Op, c.Seq, c.Waited = p.Op, int(p.Seq), int(waited.Milliseconds())
			}
			all = append(all, c)
		}
	}
	return all
}

// Said is what a worker that has ended said before it was stopped or, left, as it ended, and when; nil if nothing. The
// workers began at a time.
func (c *Collector) Said(localRank int, began time.Time) (body []byte, at time.Time, left bool) {
	c.mu.Lock()
	s := c.asked[localRank]
	c.mu.Unlock()
	if left = s.body == nil && c.cfg.Witness != nil; left {
		s.body, s.at, _ = c.cfg.Witness.Left(localRank, began)
	}
	return s.body, s.at, left
}

// Waits is how far a worker that has ended was: by what it said, or by the file that NCCL's flight recorder writes at
// its time limit. The workers began at a time.
func (c *Collector) Waits(localRank int, began time.Time) []failure.Collective {
	if c.cfg.Witness == nil {
		return nil
	}
	body, at, left := c.Said(localRank, began)
	if dumps, where := autopsy.Testimony(body); dumps != nil {
		return collectivesOf(dumps, where, at, left)
	}
	path := fmt.Sprint(c.workers.RunDir(), autopsy.FlightName, c.workers.Rank(localRank))
	info, err := os.Stat(path)
	if err != nil || info.ModTime().Before(began) {
		return nil
	}
	data, err := autopsy.ReadFlight(path, os.Geteuid())
	var d *flight.Dump
	if err == nil {
		d, err = new(flight.Reader).Read(data)
	}
	if err != nil {
		c.cfg.Log.Warn("cannot read what NCCL's flight recorder has written", "file", path, "error", err)
		return nil
	}
	return collectivesOf([]*flight.Dump{d}, "", info.ModTime(), false)
}

// answerTime is how long a worker has to say how far its process groups are, before it is left out.
const answerTime = 200 * time.Millisecond

// works asks the workers how far their process groups are.
func (c *Collector) works(pids map[int]int, v map[int]vital) {
	if c.cfg.Witness == nil {
		return
	}
	ranks := slices.Sorted(maps.Keys(v))
	for i, body := range ask(context.Background(), answerTime, c.cfg.Witness.Status, ranks, pids) {
		n := v[ranks[i]]
		n.works, n.waits = autopsy.Progress(body)
		v[ranks[i]] = n
	}
}
