package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/autopsy"
	"github.com/muster-run/muster/internal/flight"
	"github.com/muster-run/muster/internal/parallel"
)

// How the agent knows for whom a worker waited that has given up: PyTorch has a time limit of its own, after
// which workers fail, and their flight recorders are gone. When collectives have been under way for longWait
// and none has begun or ended, the agent asks its workers for all, and keeps that until they have gone on
// for goneOn.
const (
	collectivesEvery = 2 * time.Second
	longWait         = 8 * time.Second
	goneOn           = 3 * collectivesEvery
)

// watchCollectives keeps what workers wait for.
func (a *Agent) watchCollectives(at *attempt) {
	ticker := time.NewTicker(collectivesEvery)
	defer ticker.Stop()
	last, since, kept := map[int]vital{}, time.Now(), false
	var held holding
	for {
		select {
		case <-ticker.C:
		case <-at.ended:
			return
		case <-at.life.Done():
			return
		}
		pids, v := a.working(at.group), map[int]vital{}
		for i := range pids {
			v[i] = vital{}
		}
		a.works(at.life, pids, v)
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
			kept, held = true, holding{a.positions(at, pids), now, now}
		}
		at.mu.Lock()
		at.holding = held
		at.mu.Unlock()
	}
}

// holding is how far workers were, by local rank, when they were asked, and when that was last so.
type holding struct {
	at          map[int][]failure.Collective
	asked, last time.Time
}

// positions asks the workers how far they are, and where.
func (a *Agent) positions(at *attempt, pids map[int]int) map[int][]failure.Collective {
	ctx, cancel := context.WithTimeout(at.life, collectivesEvery)
	defer cancel()
	ranks := slices.Sorted(maps.Keys(pids))
	all := map[int][]failure.Collective{}
	for i, found := range parallel.Map(len(ranks), len(ranks), func(i int) []failure.Collective {
		body, err := a.witness.Everything(ctx, pids[ranks[i]])
		if err != nil {
			return nil
		}
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

// waits is how far a worker that has ended was: by what the agent keeps, or by the file that NCCL's flight
// recorder writes at its time limit.
func (a *Agent) waits(at *attempt, localRank int) []failure.Collective {
	at.mu.Lock()
	held := at.holding
	at.mu.Unlock()
	if found := slices.Clone(held.at[localRank]); found != nil || a.witness == nil {
		for i := range found {
			if found[i].Op != "" {
				found[i].Waited += int(time.Since(held.asked).Milliseconds())
			}
		}
		return found
	}
	path := fmt.Sprint(a.cfg.Logs.Dir(), autopsy.FlightName, at.rank(localRank))
	info, err := os.Stat(path)
	if err != nil || info.ModTime().Before(at.began) {
		return nil
	}
	data, err := autopsy.ReadFlight(path, os.Geteuid())
	var d *flight.Dump
	if err == nil {
		d, err = new(flight.Reader).Read(data)
	}
	if err != nil {
		a.log.Warn("cannot read what NCCL's flight recorder has written", "file", path, "error", err)
		return nil
	}
	return collectivesOf([]*flight.Dump{d}, "")
}
