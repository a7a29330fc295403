package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/sleep"
	"github.com/muster-run/muster/internal/text"
)

// A drill is one line of muster chaos. Times count from the request, in seconds; those of what
// has not happened are 0.
type drill struct {
	Number      int         `json:"drill"`
	What        string      `json:"what"`
	Time        time.Time   `json:"time,omitzero"`
	Victim      drillVictim `json:"victim,omitzero"`
	Outcome     string      `json:"outcome"`
	Problem     string      `json:"problem,omitempty"` // why it was not done
	Noticed     float64     `json:"noticed_seconds,omitempty"`
	Why         string      `json:"why,omitempty"` // what the job said then
	How         string      `json:"how,omitempty"` // live change, restart, new round
	Running     float64     `json:"running_seconds,omitempty"`
	Ranks       int         `json:"ranks"` // with how many it ran again
	RanksBefore int         `json:"ranks_before"`
	Whole       float64     `json:"whole_seconds,omitempty"`
	Restarts    int         `json:"restarts"` // that were counted
	Rounds      int         `json:"rounds"`
}

// Outcomes of a drill.
const (
	drillRecovered = "recovered" // all ranks run again
	drillSmaller   = "smaller"   // fewer run
	drillDown      = "down"      // none run within the limit
	drillUnnoticed = "unnoticed" // nothing has happened within the limit
	drillEnded     = "ended"     // the job, or its part on this host
	drillNotDone   = "not done"
)

// A drillVictim is a worker, or a host with a Rank of nil.
type drillVictim struct {
	Rank      *int   `json:"rank,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Host      string `json:"host,omitempty"`
	GroupRank int    `json:"group_rank"`
}

func (v drillVictim) String() string {
	host := text.Line(v.Host, 40)
	switch {
	case v == drillVictim{}:
		return ""
	case v.Rank == nil:
		return fmt.Sprintf("group rank %d (%s)", v.GroupRank, host)
	}
	return fmt.Sprintf("rank %d (%s)", *v.Rank, host)
}

// drillPause is the time between two looks at the job.
const drillPause = 50 * time.Millisecond

// drillPatience is how long the victim's host may give no answer.
const drillPatience = 10 * time.Second

// errEnded says that there is no agent left to ask.
var errEnded = errors.New("the job has ended, or its part on this host")

// run does the drill and waits for what the job does.
func (d *drill) run(ctx context.Context, req *chaosRequest, kind drillKind, random *rand.Rand) {
	j, before, err := d.begin(ctx, req, kind, random)
	if j != nil && kind.what == "stop-rank" {
		// Also if nobody has answered: the worker may have stopped. A new one with its rank does not mind.
		defer j.ask(context.WithoutCancel(ctx), "POST", "/v1/signal?signal=CONT&rank="+strconv.Itoa(*d.Victim.Rank))
	}
	if err != nil {
		d.Outcome, d.Problem = cmp.Or(d.Outcome, drillNotDone), err.Error()
		return
	}
	healed, limit := d.Time, d.Time.Add(req.limit)
	if kind.what == "cut-host" {
		healed = d.Time.Add(req.silent)
	}
	for {
		s, err := j.look(ctx)
		if err != nil {
			d.Outcome = drillEnded
			return
		}
		d.see(s, before)
		if now := time.Now(); now.After(healed) && (d.Outcome == drillRecovered || now.After(limit)) || sleep.For(ctx, drillPause) != nil {
			break
		}
	}
}

// look returns what the job's agent knows. It waits for an agent that does not answer.
func (j *job) look(ctx context.Context) (*health.State, error) {
	for {
		j.fetch(ctx, stateOf{host: true})
		if s := j.state; s != nil {
			if s.Job.Phase == "ended" {
				return nil, errEnded
			}
			return s, nil
		}
		conn, err := j.Dial(ctx)
		switch {
		case err == nil:
			conn.Close()
		case ended(err):
			return nil, errEnded
		}
		if err := sleep.For(ctx, drillPause); err != nil {
			return nil, err
		}
	}
}

// begin waits until the job runs, picks a victim, and has it fail. It returns the agent to ask what
// becomes of the job, and its state before.
func (d *drill) begin(ctx context.Context, req *chaosRequest, kind drillKind, random *rand.Rand) (*job, *health.State, error) {
	jobs, err := theJob(ctx, req.job, false)
	if err != nil {
		d.Outcome = drillEnded
		return nil, nil, err
	}
	for deadline := time.Now().Add(req.limit); ; {
		s, err := jobs[0].look(ctx)
		if err == nil && ranksOf(s) > 0 {
			break
		}
		if err != nil {
			d.Outcome = drillEnded
		} else if time.Now().After(deadline) {
			err = fmt.Errorf("the job's workers do not run for %v; its phase is %s", req.limit, s.Job.Phase)
		}
		if err = cmp.Or(err, sleep.For(ctx, drillPause)); err != nil {
			return nil, nil, err
		}
	}
	whole := jobs[0]
	for deadline := time.Now().Add(min(req.limit, drillPatience)); ; {
		local := map[int]*job{}
		for i := len(jobs) - 1; i >= 0; i-- {
			if jobs[i].fetch(ctx, stateOf{host: true}); jobs[i].state != nil {
				local[jobs[i].state.Host.GroupRank] = &jobs[i]
			}
		}
		if whole.fetch(ctx, stateOf{}); whole.state == nil {
			return nil, nil, whole.err
		}
		comes := true
		if s := jobs[0].state; s == nil || ranksOf(s) == 0 || ranksOf(whole.state) == 0 {
			err = errors.New("the job's workers do not run")
		} else if d.Victim, err = pick(whole.state, local, kind, random); err == nil {
			break
		} else {
			comes = slices.ContainsFunc(whole.state.Hosts, func(h health.Host) bool {
				return h.Problem != "" && (kind.ofRank() || h.Name == "" || kind.means(h.GroupRank, h.Name))
			})
		}
		if !comes || time.Now().After(deadline) || sleep.For(ctx, drillPause) != nil {
			return nil, nil, err
		}
	}
	j := &jobs[0]
	for i := range jobs { // rather one that is not next to the victim
		if s := jobs[i].state; s != nil && s.Host.GroupRank != d.Victim.GroupRank && ranksOf(s) > 0 {
			j = &jobs[i]
			break
		}
	}
	before := j.state
	d.RanksBefore, d.Time = ranksOf(before), time.Now()
	path := "/v1/chaos?" + url.Values{"do": {kind.what}, "group_rank": {strconv.Itoa(d.Victim.GroupRank)}, "for": {req.silent.String()}}.Encode()
	switch kind.what {
	case "kill-rank":
		path = fmt.Sprintf("/v1/signal?signal=KILL&rank=%d", *d.Victim.Rank)
	case "stop-rank":
		path = fmt.Sprintf("/v1/signal?signal=STOP&rank=%d", *d.Victim.Rank)
	default:
		d.Time = d.Time.Add(health.DrillDelay)
	}
	_, err = j.ask(ctx, "POST", path)
	return j, before, err
}

// pick returns the victim: the one that is named, or any. local are the agents on this host: who
// is left has to be asked what the job does.
func pick(s *health.State, local map[int]*job, kind drillKind, random *rand.Rand) (v drillVictim, err error) {
	var all []drillVictim
	if kind.ofRank() {
		for i := range s.Workers {
			w := &s.Workers[i]
			if w.Exit == nil && kind.means(w.Rank, "") {
				all = append(all, drillVictim{&w.Rank, w.PID, w.Host, w.GroupRank})
			}
		}
	}
	problem := ""
	for _, h := range s.Hosts {
		switch {
		case kind.ofRank() || !kind.means(h.GroupRank, h.Name):
		case h.Problem != "":
			problem = h.Problem
		default:
			all = append(all, drillVictim{nil, 0, h.Name, h.GroupRank})
		}
	}
	all = slices.DeleteFunc(all, func(v drillVictim) bool { return v.Rank == nil && local[v.GroupRank] != nil && len(local) == 1 })
	if len(all) > 0 {
		return all[random.IntN(len(all))], nil
	}
	switch {
	case kind.ofRank() && kind.victim != "":
		return v, fmt.Errorf("no worker that can be reached has rank %s; `muster top` shows the ranks", kind.victim)
	case kind.ofRank():
		return v, errors.New("the job has no workers now")
	case kind.victim != "" && problem != "":
		return v, fmt.Errorf("the agent of host %s cannot be reached: %s; `muster top` shows the hosts", quote(kind.victim), text.Line(problem, 300))
	case kind.victim != "":
		return v, fmt.Errorf("no agent that can be reached, but for the one that this command asks, is of host %s; `muster top` shows the hosts", quote(kind.victim))
	}
	return v, errors.New("the job has no agent that can be reached but the one that this command asks; run this on another host of a job of several hosts")
}

// ranksOf is how many ranks run; 0 while not all that are to do.
func ranksOf(s *health.State) int {
	for _, m := range slices.Backward(s.Timeline) {
		if m.Ranks > 0 && s.Job.Runs() {
			return m.Ranks
		}
		if m.Phase != "" || m.IsLive() {
			break
		}
	}
	return 0
}

// see takes from a state what has happened since the drill began.
func (d *drill) see(s, before *health.State) {
	d.Restarts, d.Rounds = s.Job.Restarts-before.Job.Restarts, s.Job.Round-before.Job.Round
	d.Outcome = drillUnnoticed
	for i := range s.Timeline {
		m := &s.Timeline[i]
		if m.Time.Before(d.Time) {
			continue
		}
		at := m.Time.Sub(d.Time).Round(time.Microsecond).Seconds()
		if d.Noticed == 0 {
			d.Noticed, d.Why = at, m.Sentence()
		}
		d.Outcome = drillDown
		if m.Ranks == 0 {
			continue
		}
		if d.Running == 0 {
			d.Running, d.Ranks, d.How = at, m.Ranks, "new round"
			if m.Stayed > 0 {
				d.How = "live change"
			} else if d.Restarts > 0 {
				d.How = "restart"
			}
		}
		if d.Whole == 0 && m.Ranks >= d.RanksBefore {
			d.Whole = at
		}
	}
	if n := ranksOf(s); n >= d.RanksBefore && d.Whole > 0 {
		d.Outcome = drillRecovered
	} else if n > 0 && d.Running > 0 {
		d.Outcome = drillSmaller
	}
}
