package evidence

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/job/flight"
	"github.com/muster-run/muster/internal/wait/parallel"
)

// How the agent knows which rank a worker waited for before it gave up: PyTorch has a time limit of its own, after
// which workers fail, and their flight recorders are gone. When collectives have been under way for longWait
// and none has begun or ended, the agent asks its workers for all, and keeps that until they have gone on
// for goneOn.
const (
	collectivesEvery = 2 * time.Second
	longWait         = 8 * time.Second
	goneOn           = 3 * collectivesEvery
)

// WatchCollectives keeps what workers wait for. It returns when the workers have ended, or life.
func (c *Collector) WatchCollectives(life context.Context, ended <-chan struct{}) {
	select {
	case <-c.cfg.Answers:
	case <-ended:
		return
	case <-life.Done():
		return
	}
	ticker := time.NewTicker(collectivesEvery)
	defer ticker.Stop()
	last, since, kept := map[int]vital{}, time.Now(), false
	var held holding
	for {
		select {
		case <-ticker.C:
		case <-ended:
			return
		case <-life.Done():
			return
		}
		pids, v := c.workers.Working(), map[int]vital{}
		for i := range pids {
			v[i] = vital{}
		}
		c.works(pids, v)
		waits, moved := false, len(v) != len(last)
		for i, n := range v {
			if n.works == "" { // it has not answered
				n = last[i]
				v[i] = n
			}
			waits, moved = waits || n.waits, moved || n.works != last[i].works
		}
		last = v
		switch now := time.Now(); {
		case moved || !waits:
			if since, kept = now, false; now.Sub(held.last) > goneOn {
				held = holding{}
			}
		case kept:
			held.last = now
		case now.Sub(since) >= longWait:
			kept, held = true, holding{c.positions(pids), now, now}
		}
		c.mu.Lock()
		c.held = held
		c.mu.Unlock()
	}
}

// holding is how far workers were, by local rank, when they were asked, and when that was last so.
type holding struct {
	at          map[int][]failure.Collective
	asked, last time.Time
}

// positions asks the workers how far they are, and where.
func (c *Collector) positions(pids map[int]int) map[int][]failure.Collective {
	ctx, cancel := context.WithTimeout(context.Background(), collectivesEvery)
	defer cancel()
	ranks := slices.Sorted(maps.Keys(pids))
	all := map[int][]failure.Collective{}
	for i, found := range parallel.Map(len(ranks), len(ranks), func(i int) []failure.Collective {
		body, _ := c.cfg.Witness.Everything(ctx, pids[ranks[i]]) // without an answer there are no dumps
		dumps, where := autopsy.Testimony(body)
		return collectivesOf(dumps, where)
	}) {
		all[ranks[i]] = found
	}
	return all
}

// collectivesOf says how far a worker is in each process group.
func collectivesOf(dumps []*flight.Dump, where string) (all []failure.Collective) {
	for _, d := range dumps {
		for _, p := range d.Positions() {
			c := failure.Collective{Group: fmt.Sprintf("%s(%s)", p.Group.Name, p.Group.Desc), Op: p.Op, Seq: int(p.Seq),
				Enqueued: int(p.Last), At: where}
			if p.Op != "" {
				c.Waited = int(time.Since(p.Since).Milliseconds())
			}
			all = append(all, c)
		}
	}
	return all
}

// Waits is how far a worker that has ended was: by what the Collector keeps, or by the file that NCCL's flight
// recorder writes at its time limit. The workers began at a time.
func (c *Collector) Waits(localRank int, began time.Time) []failure.Collective {
	c.mu.Lock()
	held := c.held
	c.mu.Unlock()
	if found := slices.Clone(held.at[localRank]); found != nil || c.cfg.Witness == nil {
		for i := range found {
			if found[i].Op != "" {
				found[i].Waited += int(time.Since(held.asked).Milliseconds())
			}
		}
		return found
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
	return collectivesOf([]*flight.Dump{d}, "")
}

// answerTime is how long a worker has to say how far its process groups are, before it is left out.
const answerTime = 200 * time.Millisecond

// works asks the workers how far their process groups are.
func (c *Collector) works(pids map[int]int, v map[int]vital) {
	if c.cfg.Witness == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	ranks := slices.Sorted(maps.Keys(v))
	for i, body := range parallel.Map(len(ranks), len(ranks), func(i int) []byte {
		body, _ := c.cfg.Witness.Status(ctx, pids[ranks[i]])
		return body
	}) {
		n := v[ranks[i]]
		n.works, n.waits = autopsy.Progress(body)
		v[ranks[i]] = n
	}
}
