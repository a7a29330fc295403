// Package peers is what the agents of a round tell each other through its store: their failures, their ranks, that
// they are done, and the report of the job.
//
// A Round has the agents of one. Its methods read and write keys; what follows from them is decided by package agent.
// All that comes from the store is from other hosts: its size is bounded, and what people see of it is one line.
package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/muster-run/muster/internal/format/pyjson"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// A Round is the agents of a round as this host's agent sees them. Its methods may be called from any goroutine.
type Round struct {
	*rendezvous.Info
	Host    string        // this one
	Timeout time.Duration // bounds what the agent waits for where something has gone wrong
	Log     *slog.Logger
}

// How agents tell each other of failures, through the store of the round:
//
//  1. An agent that starts its workers sets agentPrefix and waits for FailedKey (Hear).
//  2. The first agent whose worker fails puts a record at FailedKey, by compare-and-set
//     (Put). The record decides for all nodes whether another round follows, and with which
//     count of restarts. Often the other workers of that host still run then
//     (announceEarly). An agent that hears of the record stops its own workers (follow,
//     fail, stopPreempted, continueWithout, giveUp).
//  3. Where no round follows, all agents set failuresPrefix. The agent of the record gathers
//     those and sets reportKey, and the others read it (gather.go). The last one that has
//     read it sets readKey, because the store may end with the agent of the record.
//
// Every wait has a bound: agents die, too.

// Keys of our own in the store of a round. Nothing waits for an agent of
// TorchElastic to set them.
const (
	// agentPrefix + group rank: the host's name. An agent that sets it knows the other keys.
	agentPrefix = "muster/agents/"
	// FailedKey: the record of the node whose workers failed first.
	FailedKey = "muster/failed"
	// donePrefix + group rank: set once the node's workers have succeeded and it
	// is counted at the exit barrier.
	donePrefix = "muster/done/"
	// excusedPrefix + group rank: counts those that would count a node at the exit barrier which is gone.
	excusedPrefix = "muster/excused/"
	// failuresPrefix + group rank: how the node's workers failed.
	failuresPrefix = "muster/failures/"
	// reportKey: the failures of all nodes, gathered by the one of the record.
	reportKey = "muster/report"
	// readKey: set once all have read reportKey, who count themselves at readKey/count.
	readKey = "muster/read"
)

// RestartsKey is in the store of the job: how many restarts it has used.
const RestartsKey = "restarts"

// Await waits for a key beyond the store's own time limit.
func Await(ctx context.Context, s store.Store, key string) ([]byte, error) {
	for {
		text, err := s.Get(ctx, key)
		if err == nil || ctx.Err() != nil || !errors.Is(err, store.ErrTimeout) {
			return text, err
		}
	}
}

// lookUp reads a key if it is there.
func lookUp(ctx context.Context, s store.Store, key string) ([]byte, error) {
	there, err := s.Check(ctx, key)
	if err != nil || !there {
		return nil, err
	}
	return s.Get(ctx, key)
}

// HostOf is the name of a node's host; "" while its agent has not set it.
func (r *Round) HostOf(ctx context.Context, groupRank int) (string, error) {
	name, err := lookUp(ctx, r.Store, fmt.Sprint(agentPrefix, groupRank))
	return text.Line(string(name), MaxHost), err
}

// Raise sets the number at key to n unless it is that much already, and returns it.
func Raise(ctx context.Context, s store.Store, key string, n int) (have int, err error) {
	old := []byte{}
	for range 1000 {
		found, err := s.CompareAndSet(ctx, key, old, strconv.AppendInt(nil, int64(n), 10))
		if err != nil {
			return 0, err
		}
		if have, err = strconv.Atoi(string(found)); err != nil {
			return 0, fmt.Errorf("%s holds %.100q, want a number", key, found)
		} else if have >= n {
			return have, nil
		}
		old = found
	}
	return 0, fmt.Errorf("%s is changed all the time", key)
}

// Decode decodes JSON of so many bytes and elements of lists at most.
func Decode(key string, found []byte, bytes, elements int, v any) error {
	if len(found) > bytes {
		return fmt.Errorf("%s holds %d bytes, more than %d", key, len(found), bytes)
	}
	if outer, inner := pyjson.Elements(found); outer+inner > elements {
		return fmt.Errorf("%s holds lists of %d elements, more than %d", key, outer+inner, elements)
	}
	return json.Unmarshal(found, v)
}
