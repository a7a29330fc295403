package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/autopsy"
	"github.com/muster-run/muster/internal/parallel"
	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/rendezvous"
)

// How agents find out what the workers of all hosts do, when some of one host hang: the
// first that wants to know puts its group rank at autopsyPrefix and a number, by
// compare-and-set. It asks the others for their evidence (answerEvidence), while it looks at its own
// workers, sets what all of them do at the same key and "/all", and counts the number up at
// autopsiesKey. An agent that is asked, or finds that another was first, waits for that.

// evidenceKind is the kind of an evidenceRequest. The answer is a Report in brief.
const evidenceKind = "evidence"

// An evidenceRequest asks an agent what its workers do. The outcome is going to be at autopsyPrefix and Number.
type evidenceRequest struct {
	Number int64  `json:"number"`
	Reason string `json:"reason"`
}

const (
	maxEvidence = 4 << 20 // what the hosts may have to say, in bytes
	maxReason   = 1000    // characters of why somebody asks
	callsAtOnce = 1024    // all hosts of a large job: soon their workers are killed
)

// evidenceOfHost is what one of some hosts should say, and the most that it may, in bytes: less in a
// large job, as whoever asks has it of all at once.
func evidenceOfHost(hosts int) (should, most int) {
	should = min(maxEvidence, 64<<20/hosts)
	return should, max(should, 256<<10)
}

// errNoAutopsy is the answer of an agent whose AutopsyTimeout is 0.
var errNoAutopsy = errors.New("this host collects no evidence (--autopsy-timeout 0)")

// Autopsy returns what this host's workers do at the moment, as JSON, for a person or a program; no failure is
// to be read from that. The error says why there is no evidence.
func (a *Agent) Autopsy(ctx context.Context, reason string) ([]byte, error) {
	at, group, err := a.examinable()
	if err != nil {
		return nil, err
	}
	at.onDemand.Lock() // so that a failure waits for one look at most
	defer at.onDemand.Unlock()
	at.autopsies.Lock()
	defer at.autopsies.Unlock()
	r := a.lookAt(ctx, at, text.Line(reason, maxReason), group.PIDs())
	if at.alone() {
		r.Judge()
	}
	return r.Brief().Pack(evidenceOfHost(at.round.WorldSize))
}

// examinable returns the workers of which there can be evidence.
func (a *Agent) examinable() (*attempt, Group, error) {
	p := &a.published
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.group == nil:
		return nil, nil, errNoWorkers
	case a.cfg.AutopsyTimeout <= 0:
		return nil, nil, errNoAutopsy
	}
	return p.at, p.group, nil
}

// answerEvidence answers an evidenceRequest. This agent keeps the outcome, too, for which it waits.
func (a *Agent) answerEvidence(ctx context.Context, request []byte) ([]byte, error) {
	var asked evidenceRequest
	if err := json.Unmarshal(request, &asked); err != nil {
		return nil, fmt.Errorf("a request for evidence that cannot be read: %w", err)
	}
	at, group, err := a.examinable()
	if err != nil {
		return nil, err
	}
	since, first := a.justNow(), at.wholeJob.TryLock() // else this agent waits already, for the same failure
	if first {
		since = time.Now()
	}
	r := a.lookForFailure(ctx, at, since, text.Line(asked.Reason, maxReason), a.working(group))
	p := &a.published
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case first && p.over:
		at.wholeJob.Unlock()
	case first:
		p.looks.Go(func() {
			defer at.wholeJob.Unlock()
			ctx, cancel := context.WithTimeout(at.life, a.cfg.AutopsyTimeout)
			defer cancel()
			all, blame := a.evidenceFrom(ctx, at, autopsyPrefix+strconv.FormatInt(asked.Number, 10), r)
			if a.keep(at, all, blame); blame && all.Certain() {
				a.blameSelf(at, group)
			}
		})
	}
	return r.Brief().Pack(evidenceOfHost(at.round.WorldSize))
}

// autopsyOfJob keeps evidence of the workers of all hosts, in which pids are this host's, unless
// there is some of a failure since a time. It takes no longer than Config.AutopsyTimeout.
//
// With blame, workers will be killed for it: those of other hosts that differ are to be killed there.
func (a *Agent) autopsyOfJob(ctx context.Context, at *attempt, since time.Time, reason string,
	pids map[int]int, blame bool) {
	if a.cfg.AutopsyTimeout <= 0 || at.alone() || a.caller == nil {
		a.autopsy(ctx, at, reason, pids, blame)
		return
	}
	at.wholeJob.Lock()
	defer at.wholeJob.Unlock()
	since, lacks := at.lacks(since, blame)
	if !lacks {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.AutopsyTimeout)
	defer cancel()
	looked := make(chan *autopsy.Report, 1)
	go func() { looked <- a.lookForFailure(ctx, at, since, reason, pids) }() // at once: the store may not answer
	a.keep(at, a.evidenceOfJob(ctx, at, reason, looked, blame), blame)
}

// blameTime is how long the host whose workers differ has to say that they have failed.
const blameTime = 2 * time.Second

// blameSelf kills workers of this host that are to blame for a hang, and with them all others of this
// host, so that they are the root cause in the record of the failure. It returns false if there
// are none.
func (a *Agent) blameSelf(at *attempt, group Group) (blamed bool) {
	e, why := at.lastEvidence(), "it differs from the ranks that wait"
	if e.named() {
		why = e.report.Collectives.Text
	}
	for i := range a.working(group) {
		if slices.Contains(e.odd(), at.rank(i)) && !a.cfg.HangNotify {
			at.accuse(i, failure.HangPrefix+why+foundOn(e.report.Reason))
			blamed = true
		}
	}
	if blamed {
		group.Kill()
	}
	return blamed
}

// foundOn is the host that begins the reason for which another agent has asked.
func foundOn(reason string) string {
	if host, _, ok := strings.Cut(reason, ": hang: "); ok && host != "" {
		return "; " + host + " has found that the workers hang"
	}
	return ""
}

// yield lets another host, whose workers alone are to blame, say that they have failed. It
// returns false if there is none, or it does not in time.
func (a *Agent) yield(ctx context.Context, at *attempt, group Group) bool {
	e := at.lastEvidence()
	if e == nil || !e.report.Certain() {
		return false
	}
	odd := e.odd()
	for i := range a.working(group) {
		odd = slices.DeleteFunc(odd, func(rank int) bool { return rank == at.rank(i) })
	}
	if at.alone() || len(odd) == 0 || len(odd) < len(e.odd()) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, blameTime)
	defer cancel()
	_, err := at.round.Store.Get(ctx, failedKey)
	return err == nil
}

// evidenceOfJob adds to this host's evidence, which comes on own, that of all others.
func (a *Agent) evidenceOfJob(ctx context.Context, at *attempt, reason string,
	own <-chan *autopsy.Report, blame bool) *autopsy.Report {
	s := at.round.Store
	mine := []byte(strconv.Itoa(at.round.Rank))
	number, err := s.Add(ctx, autopsiesKey, 0)
	key := autopsyPrefix + strconv.FormatInt(number, 10)
	var first []byte
	if err == nil {
		first, err = s.CompareAndSet(ctx, key, nil, mine)
	}
	if err != nil {
		return (<-own).With(nil, []string{fmt.Sprintf("the other hosts (%v)", err)})
	}
	if string(first) != string(mine) {
		all, _ := a.evidenceFrom(ctx, at, key, <-own)
		return all
	}
	others, missing := a.askOthers(ctx, at, reason, number)
	all := (<-own).With(others, missing)
	all.Judge()
	brief := all.Brief()
	brief.Blame = blame
	found, err := brief.Pack(maxEvidence, maxEvidence)
	if err != nil { // which they are to hear, too, and not to wait for more
		found, _ = (&autopsy.Report{Reason: all.Reason,
			Missing: []string{fmt.Sprintf("the other hosts (%v)", err)}}).Pack(maxEvidence, maxEvidence)
	}
	err = s.Set(ctx, key+"/all", found)
	if err == nil {
		_, err = s.Add(ctx, autopsiesKey, 1)
	}
	if err != nil {
		a.log.Warn("cannot tell the other hosts what the workers are doing", "error", err)
	}
	return all
}

// askOthers asks all other agents for their evidence, and returns what they have not said, too.
func (a *Agent) askOthers(ctx context.Context, at *attempt, reason string,
	number int64) (others []*autopsy.Report, missing []string) {
	request, _ := json.Marshal(evidenceRequest{number, text.Line(a.cfg.Host+": "+reason, maxReason)})
	asked, cancel := context.WithTimeout(ctx, a.cfg.AutopsyTimeout*9/10) // so that the others hear of it in time
	defer cancel()
	var peers autopsy.Peers
	_, most := evidenceOfHost(at.round.WorldSize)
	reports := make([]*autopsy.Report, at.round.WorldSize)
	errs := parallel.Map(at.round.WorldSize, callsAtOnce, func(rank int) (err error) {
		if rank != at.round.Rank {
			reports[rank], err = askForEvidence(asked, a.caller, &peers, rank, request, most)
		}
		return err
	})
	for rank, err := range errs {
		if err != nil {
			missing = append(missing, fmt.Sprintf("group rank %d (%v)", rank, err))
		} else if rank != at.round.Rank {
			others = append(others, reports[rank])
		}
	}
	return others, missing
}

// evidenceFrom adds to own what the agent that asks all others finds.
// With blame, workers will be killed for it.
func (a *Agent) evidenceFrom(ctx context.Context, at *attempt, key string,
	own *autopsy.Report) (_ *autopsy.Report, blame bool) {
	var all *autopsy.Report
	found, err := at.round.Store.Get(ctx, key+"/all")
	if err == nil {
		all, err = new(autopsy.Peers).Read(found[:min(len(found), maxEvidence)])
	}
	if err != nil {
		return own.With(nil, []string{fmt.Sprintf("the other hosts (the agent that asks them does not say: %v)", err)}), false
	}
	return own.With([]*autopsy.Report{all}, all.Missing), all.Blame
}

// askForEvidence asks the agent with a group rank.
func askForEvidence(ctx context.Context, caller rendezvous.Caller, peers *autopsy.Peers, rank int, request []byte,
	limit int) (*autopsy.Report, error) {
	answer, err := caller.Ask(ctx, rank, evidenceKind, request, limit)
	if err != nil {
		return nil, err
	}
	return peers.Read(answer)
}
