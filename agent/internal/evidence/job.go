package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/wait/parallel"
)

// How agents find out what the workers of all hosts do, when some of one host hang: the
// first that wants to know puts its group rank at keyPrefix and a number, by
// compare-and-set. It asks the others for their evidence (Answer), while it examines its own
// workers, sets what all of them do at the same key and "/all", and counts the number up at
// countKey. An agent that is asked, or finds that another was first, waits for that.

// Kind is the kind of request that asks an agent for evidence, a request as JSON. The answer is a Report in brief.
const Kind = "evidence"

// A request asks an agent what its workers do. The outcome is going to be at keyPrefix and Number.
type request struct {
	Number int64  `json:"number"`
	Reason string `json:"reason"`
}

const (
	// keyPrefix + a number, in the store of the round: the group rank of the node that asks all others; the same with
	// "/all": what it has found. countKey: the next number.
	keyPrefix = "muster/autopsy/"
	countKey  = "muster/autopsies"

	maxEvidence = 4 << 20 // of all hosts, in bytes
	maxReason   = 1000    // characters of why somebody asks
	asksAtOnce  = 1024    // all hosts of a large job: soon their workers are killed
)

// evidenceOfHost is how many bytes the evidence of one of some hosts should have, and may have at most: less in a
// large job, since the agent that asks has it of all at once.
func evidenceOfHost(hosts int) (should, most int) {
	should = min(maxEvidence, 64<<20/hosts)
	return should, max(should, 256<<10)
}

// errNone is the answer of an agent whose Config.Timeout is 0.
var errNone = errors.New("this host collects no evidence (--autopsy-timeout 0)")

// Now returns what this host's workers do at the moment, as JSON, for a person or a program; no failure is to be read
// from that. The error says why there is no evidence.
func (c *Collector) Now(ctx context.Context, reason string) ([]byte, error) {
	if c.cfg.Timeout <= 0 {
		return nil, errNone
	}
	c.onDemand.Lock() // so that a failure waits for one examination at most
	defer c.onDemand.Unlock()
	c.examining.Lock()
	defer c.examining.Unlock()
	r := c.examine(ctx, text.Line(reason, maxReason), c.workers.Processes())
	if c.alone() {
		r.Judge()
	}
	return c.pack(r)
}

// pack is what other hosts get of a report.
func (c *Collector) pack(r *autopsy.Report) ([]byte, error) {
	return r.Brief().Pack(evidenceOfHost(c.workers.Round().WorldSize))
}

// Answer answers a request of Kind. The outcome becomes this host's evidence, too: Answer calls later with a function
// that waits for it, and kills the culprits of this host; later reports whether it runs that.
func (c *Collector) Answer(ctx context.Context, body []byte, later func(func(life context.Context)) bool) ([]byte, error) {
	if c.cfg.Timeout <= 0 {
		return nil, errNone
	}
	var asked request
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, fmt.Errorf("a request for evidence that cannot be read: %w", err)
	}
	since, first := c.JustNow(), c.wholeJob.TryLock() // else this agent waits already, for the same failure
	if first {
		since = time.Now()
	}
	r := c.examineForFailure(ctx, since, text.Line(asked.Reason, maxReason), c.workers.Working())
	if first && !later(func(life context.Context) {
		defer c.wholeJob.Unlock()
		ctx, cancel := context.WithTimeout(life, c.cfg.Timeout)
		defer cancel()
		all, blame := c.outcome(ctx, keyPrefix+strconv.FormatInt(asked.Number, 10), r)
		if c.keep(all, blame); blame && all.Certain() {
			c.KillCulprits()
		}
	}) {
		c.wholeJob.Unlock()
	}
	return c.pack(r)
}

// CollectOfJob collects evidence of the workers of all hosts, in which pids are this host's, unless
// there is some of a failure since a time. It takes no longer than Config.Timeout.
//
// With blame, workers will be killed for it: the culprits of other hosts are to be killed there.
func (c *Collector) CollectOfJob(ctx context.Context, since time.Time, reason string, pids map[int]int, blame bool) {
	if c.cfg.Timeout <= 0 {
		return
	}
	if c.alone() {
		c.Collect(ctx, reason, pids, blame)
		return
	}
	c.wholeJob.Lock()
	defer c.wholeJob.Unlock()
	since, lacks := c.lacks(since, blame)
	if !lacks { // whoever had the lock before has found it
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	examined := make(chan *autopsy.Report, 1)
	go func() { examined <- c.examineForFailure(ctx, since, reason, pids) }() // at once: the store may not answer
	c.keep(c.ofJob(ctx, reason, examined, blame), blame)
}

// alone reports whether there is no other agent to ask.
func (c *Collector) alone() bool { return c.workers.Round().WorldSize == 1 }

// culpritTime is how long the host of the culprits has to announce that they have failed.
const culpritTime = 2 * time.Second

// WaitForCulprit waits for another host that has all culprits to announce that they have failed, which sets a key in
// the store of the round. It returns false if there is none, or it does not in time.
func (c *Collector) WaitForCulprit(ctx context.Context, key string) bool {
	e := c.Last()
	if e == nil || !e.Report.Certain() || c.alone() {
		return false
	}
	culprits := e.culprits()
	for i := range c.workers.Working() {
		if slices.Contains(culprits, c.workers.Rank(i)) {
			return false
		}
	}
	if len(culprits) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, culpritTime)
	defer cancel()
	_, err := c.workers.Round().Store.Get(ctx, key)
	return err == nil
}

// ofJob adds to this host's evidence, which comes on own, that of all others.
func (c *Collector) ofJob(ctx context.Context, reason string, own <-chan *autopsy.Report, blame bool) *autopsy.Report {
	s := c.workers.Round().Store
	mine := []byte(strconv.Itoa(c.workers.Round().Rank))
	number, err := s.Add(ctx, countKey, 0)
	key := keyPrefix + strconv.FormatInt(number, 10)
	var first []byte
	if err == nil {
		first, err = s.CompareAndSet(ctx, key, nil, mine)
	}
	if err != nil {
		return (<-own).With(nil, []string{fmt.Sprintf("the other hosts (%v)", err)})
	}
	if string(first) != string(mine) {
		all, _ := c.outcome(ctx, key, <-own)
		return all
	}
	others, missing := c.askOthers(ctx, reason, number)
	all := (<-own).With(others, missing)
	all.Judge()
	brief := all.Brief()
	brief.Blame = blame
	found, err := brief.Pack(maxEvidence, maxEvidence)
	if err != nil { // the others have to know that, too, and not to wait for more
		found, _ = (&autopsy.Report{Reason: all.Reason,
			Missing: []string{fmt.Sprintf("the other hosts (%v)", err)}}).Pack(maxEvidence, maxEvidence)
	}
	err = s.Set(ctx, key+"/all", found)
	if err == nil {
		_, err = s.Add(ctx, countKey, 1)
	}
	if err != nil {
		c.cfg.Log.Warn("cannot tell the other hosts what the workers are doing", "error", err)
	}
	return all
}

// askOthers asks all other agents for their evidence, and returns what is missing, too.
func (c *Collector) askOthers(ctx context.Context, reason string, number int64) (others []*autopsy.Report, missing []string) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout*9/10) // so that the others have the outcome in time
	defer cancel()
	body, _ := json.Marshal(request{number, text.Line(c.cfg.Host+": "+reason, maxReason)})
	round := c.workers.Round()
	_, most := evidenceOfHost(round.WorldSize)
	var peers autopsy.Peers
	reports := make([]*autopsy.Report, round.WorldSize)
	errs := parallel.Map(round.WorldSize, asksAtOnce, func(rank int) error {
		if rank == round.Rank {
			return nil
		}
		answer, err := c.cfg.Caller.Ask(ctx, rank, Kind, body, most)
		if err == nil {
			reports[rank], err = peers.Read(answer)
		}
		return err
	})
	for rank, err := range errs {
		if err != nil {
			missing = append(missing, fmt.Sprintf("group rank %d (%v)", rank, err))
		} else if rank != round.Rank {
			others = append(others, reports[rank])
		}
	}
	return others, missing
}

// outcome adds to own what the agent that asks all others finds.
// With blame, workers will be killed for it.
func (c *Collector) outcome(ctx context.Context, key string, own *autopsy.Report) (_ *autopsy.Report, blame bool) {
	var all *autopsy.Report
	found, err := c.workers.Round().Store.Get(ctx, key+"/all")
	if err == nil {
		all, err = new(autopsy.Peers).Read(found[:min(len(found), maxEvidence)])
	}
	if err != nil {
		return own.With(nil, []string{fmt.Sprintf("the other hosts (the agent that asks them does not say: %v)", err)}), false
	}
	return own.With([]*autopsy.Report{all}, all.Missing), all.Blame
}
