package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/policy"
)

// A Record says whose failure ended a round, and what follows.
type Record struct {
	Node     int    `json:"node"` // group rank
	Rank     int    `json:"rank"` // of the worker; -1 where there is none
	Host     string `json:"host"`
	Restarts int    `json:"restarts"` // the job's, after this
	Round    int    `json:"round"`    // that it ended; the rounds of a job with PyTorch's agents may share a store
	Final    bool   `json:"final"`    // there will be no further round
	Cause    string `json:"cause"`
	// Signal is set if the node did not fail: it received this signal, with which
	// the whole job is to stop. Time is when, by the clock of the job.
	Signal int `json:"signal,omitempty"`
	// Asked is set if no worker has failed: somebody wants new ones (Agent.Restart).
	Asked bool `json:"asked,omitempty"`
	// Live is set if the workers of the other nodes continue. At is the step before which they come
	// to rest; negative: at once. Fruitless is how many such changes without a loss have followed each
	// other with this one, if there is no other reason for it.
	Live      bool      `json:"live,omitempty"`
	At        int64     `json:"at,omitempty"`
	Fruitless int       `json:"futile,omitempty"`
	Time      time.Time `json:"time,omitzero"`
	// Decision is what the node's policy says; nil where it says nothing. A node whose
	// policy drains it leaves, and the others continue without counting a restart.
	Decision *policy.Decision `json:"decision,omitempty"`
	// Failures is a list of one, the host's first, as failure.Encode has it.
	Failures json.RawMessage `json:"failures,omitempty"`
}

// MostRestarts is the highest count of restarts that another host is believed: counting
// continues from it.
const MostRestarts = math.MaxInt32

// Bounds of what other agents write of themselves, in characters.
const (
	MaxHost = 255
	MaxText = 1000 // of a record
)

// ParseRecord reads what another agent wrote. Its texts end up in logs and pages.
func ParseRecord(body []byte) (*Record, error) {
	if len(body) > maxRecord {
		return nil, fmt.Errorf("%s holds %d bytes, more than %d", FailedKey, len(body), maxRecord)
	}
	r := Record{Node: -1, Rank: -1}
	if err := json.Unmarshal(body, &r); err != nil || r.Node < 0 || r.Restarts < 0 || r.Restarts > MostRestarts ||
		r.Signal < 0 || r.Signal > 64 || r.Decision != nil && !r.Decision.Valid() {
		return nil, fmt.Errorf("%s holds %.100q, want an agent's record of a failure", FailedKey, body)
	}
	r.Host, r.Cause = text.Line(r.Host, MaxHost), text.Line(r.Cause, MaxText)
	if d := r.Decision; d != nil {
		d.Rule, d.Source, d.Why = text.Line(d.Rule, MaxText), text.Line(d.Source, MaxText), text.Line(d.Why, MaxText)
	}
	return &r, nil
}

// SetRoot makes a failure that of the record. offset is Info.ClockOffset.
func (r *Record) SetRoot(root *failure.ProcessFailure, offset time.Duration) {
	r.Rank, r.Cause = root.Rank, root.Cause
	r.Failures, _ = failure.Encode([]*failure.ProcessFailure{root}, offset, rootLimit)
}

// LostHost says that the record stops the job because a host was lost.
func (r *Record) LostHost() bool {
	return r.Final && r.Rank < 0 && r.Decision != nil && r.Failures == nil
}

// Leaves says that the node of the record is drained: it leaves, and the others continue.
func (r *Record) Leaves() bool { return r.Decision != nil && r.Decision.Action == policy.Drain }

// Who is the record's cause with the worker that it is about.
func (r *Record) Who() string {
	if r.Rank < 0 {
		return r.Cause
	}
	return fmt.Sprintf("rank %d on %s: %s", r.Rank, r.Host, r.Cause)
}

// Put writes a record, and counts its restart for the whole job. It returns the record that decides: rec, or another
// node's that was first; nil where that cannot be read, or where rec, of a signal, has replaced it. The error says that
// the store has not taken it.
func (r *Round) Put(ctx context.Context, rec *Record) (first *Record, err error) {
	if !rec.Final {
		if _, err := Raise(ctx, r.JobStore, RestartsKey, rec.Restarts); err != nil {
			r.Log.Warn("cannot count the restart for the whole job", "error", err)
		}
	}
	if r.WorldSize == 1 {
		return rec, nil
	}
	rec.Round = r.Round
	text, err := json.Marshal(rec)
	if err != nil {
		return nil, err
	}
	found, err := r.Store.CompareAndSet(ctx, FailedKey, nil, text)
	if first, bad := ParseRecord(found); err == nil && bad == nil && first.Round < r.Round { // of a round that has passed
		found, err = r.Store.CompareAndSet(ctx, FailedKey, found, text)
	}
	if err != nil || string(found) == string(text) {
		return rec, err
	}
	first, bad := ParseRecord(found)
	if bad == nil && rec.Signal != 0 && !first.Final {
		// There will be no such round. An agent that waits for it looks again once the job is closed.
		if _, err := r.Store.CompareAndSet(ctx, FailedKey, found, text); err != nil {
			r.Log.Warn("cannot tell the other nodes about the failure", "error", err)
		}
		return nil, nil
	}
	if bad != nil {
		r.Log.Warn("cannot read another host's record of the failure", "error", bad)
	}
	return first, nil
}

// Hear waits for another node's record, and returns it; nil where there is none, or life has ended. It also tells the
// others that this agent knows the keys of muster.
func (r *Round) Hear(life context.Context) *Record {
	err := r.Store.Set(life, fmt.Sprint(agentPrefix, r.Rank), []byte(r.Host))
	var text []byte
	if err == nil {
		text, err = Await(life, r.Store, FailedKey)
	}
	var rec *Record
	if err == nil {
		rec, err = ParseRecord(text)
	}
	for err == nil && rec.Round < r.Round && sleep.For(life, time.Second) == nil { // this node has left that round
		if text, err = r.Store.Get(life, FailedKey); err == nil {
			rec, err = ParseRecord(text)
		}
	}
	if life.Err() != nil {
		return nil
	}
	if err != nil {
		if sleep.For(life, r.Timeout) == nil { // else the loss of the rendezvous was news of its own
			r.Log.Warn("cannot learn about failures on other hosts in this round", "round", r.Round, "error", err)
		}
		return nil
	}
	if rec.Node == r.Rank {
		return nil
	}
	return rec
}

// Find returns the record that ended the round, or a later one; nil if there is none.
func (r *Round) Find(ctx context.Context) *Record {
	text, err := lookUp(ctx, r.Store, FailedKey)
	if err != nil || text == nil {
		return nil
	}
	rec, err := ParseRecord(text)
	if err != nil || rec.Round < r.Round {
		return nil
	}
	return rec
}
