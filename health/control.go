package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/wire/http10"
	"github.com/muster-run/muster/rendezvous"
)

// A Control changes the job on this host. Its methods are called from any goroutine. An error
// says why nothing was done.
type Control interface {
	// Stop returns what begins to stop this host's workers for good, as SIGTERM to the agent
	// does; it returns at once, and is called in any case. by names the host that asks for it, ""
	// for this one. With wholeJob this host closes the rendezvous once its workers have ended:
	// spares hear of it by that.
	Stop(by string, wholeJob bool) (stop func())
	// Restart begins a new round with new workers on all hosts. No restart is counted.
	Restart(by string) error
	// Signal sends a signal to the workers of this host, or to that of one global rank if
	// rank is not negative. It returns those that have got it.
	Signal(sig syscall.Signal, rank int) ([]agent.Worker, error)
	// Autopsy returns what this host's workers do at the moment, as JSON.
	Autopsy(ctx context.Context, reason string) ([]byte, error)
}

// Done says what a request to change the job has done.
type Done struct {
	// Hosts are the group ranks of the other hosts that have done it, Missing says why
	// others have not.
	Hosts   []int     `json:"hosts,omitempty"`
	Missing []Missing `json:"missing,omitempty"`
	// Workers are those that have got a signal.
	Workers []Signaled `json:"workers,omitempty"`
	// Reports are what the workers of the other hosts do.
	Reports []json.RawMessage `json:"reports,omitempty"`
}

// Missing is a host that was not reached.
type Missing struct {
	GroupRank int    `json:"group_rank"`
	Why       string `json:"why"`
}

// Signaled is a worker that a signal was sent to.
type Signaled struct {
	Rank int    `json:"rank"`
	PID  int    `json:"pid"`
	Host string `json:"host,omitempty"`
}

const (
	stopPath = "/v1/stop"
	stopTime = 5 * time.Second // that other hosts have to answer it
	// autopsyTime is how long other hosts may take for their evidence.
	autopsyTime = 8 * time.Second
	maxReason   = 1000 // characters of why it is asked for
)

// control answers a request to change the job, or to look at its workers: on all hosts, with
// scope=host on this one alone.
func (s *Server) control(r *http.Request) reply {
	switch r.URL.Path {
	case "/v1/restart":
		return doneReply(&Done{}, s.restart(r))
	case stopPath:
		s.stops.Add(1)
		defer s.stops.Add(-1)
		r = r.WithContext(s.shown.life) // also if the client is gone meanwhile: a part of the job would continue
		by := text.Line(r.URL.Query().Get("by"), 100)
		// Each closes the rendezvous, as the one that was asked may be the last to get so far.
		stop := s.cfg.Control.Stop(by, s.wholeJob(r) || by != "")
		done := &Done{}
		s.onOthers(r, done, url.Values{"by": {s.shown.hostName(r.Context())}}, stopTime, func([]byte) error { return nil })
		stop()
		return doneReply(done, nil)
	case "/v1/signal":
		return s.signal(r)
	case "/v1/autopsy":
		return s.autopsy(r)
	}
	return textReply(http.StatusNotFound, "there is no %.200q to POST to; there are /v1/stop, /v1/restart, "+
		"/v1/signal and /v1/autopsy", r.URL.Path)
}

// restart asks for new workers. A host that has none, since it waits for a place, asks one that has.
func (s *Server) restart(r *http.Request) error {
	by := text.Line(r.URL.Query().Get("by"), 100)
	err := s.cfg.Control.Restart(by)
	if err == nil || !s.wholeJob(r) {
		return err
	}
	by = url.QueryEscape(s.shown.hostName(r.Context()))
	for _, rank := range s.shown.otherRanks(r.Context()) {
		if _, asked := s.shown.ask(r.Context(), rank, http.MethodPost, "/v1/restart?scope=host&by="+by, askTime); asked == nil {
			return nil
		}
	}
	return err
}

func doneReply(done *Done, err error) reply {
	if err != nil {
		return textReply(http.StatusConflict, "%v", err)
	}
	body, _ := json.Marshal(done)
	return reply{http.StatusOK, "application/json", append(body, '\n')}
}

// hostName is what this host is called.
func (v *jobView) hostName(ctx context.Context) string {
	if snap, _ := v.state.get(ctx, v.patience); snap != nil {
		return snap.source.Host.Name
	}
	return ""
}

// onOthers asks the other hosts what this one was asked, if the request is about all of them: with
// the parameters q alone, for a client's may mean more to them than to this server. A host that
// refuses has nothing to do.
func (s *Server) onOthers(r *http.Request, done *Done, q url.Values, limit time.Duration,
	said func(body []byte) error) {
	if !s.wholeJob(r) {
		return
	}
	q.Set("scope", "host")
	s.shown.askEach(r.Context(), s.shown.otherRanks(r.Context()), r.Method, r.URL.Path+"?"+q.Encode(), limit,
		func(rank int, body []byte, err error) {
			if err == nil {
				err = said(body)
			}
			if refused, ok := errors.AsType[*http10.StatusError](err); ok && refused.Status == strconv.Itoa(http.StatusConflict) {
				return
			}
			if left, ok := errors.AsType[*rendezvous.CallError](err); ok && left.Gone && r.URL.Path == stopPath {
				err = nil // it may have heard already that the job ends
			}
			if err != nil {
				done.Missing = append(done.Missing, Missing{rank, err.Error()})
				return
			}
			done.Hosts = append(done.Hosts, rank)
		})
	slices.Sort(done.Hosts)
	slices.SortFunc(done.Missing, func(a, b Missing) int { return a.GroupRank - b.GroupRank })
}

// signal sends a signal to workers.
func (s *Server) signal(r *http.Request) reply {
	q := r.URL.Query()
	sig := text.ParseSignal(q.Get("signal"))
	if sig <= 0 {
		return textReply(http.StatusBadRequest, "signal %q is none; ask for /v1/signal?signal=SIGUSR1&rank=0",
			q.Get("signal"))
	}
	rank := -1
	if v := q.Get("rank"); v != "" {
		var err error
		if rank, err = strconv.Atoi(v); err != nil || rank < 0 {
			return textReply(http.StatusBadRequest, "rank %q is not a number, 0 or more", v)
		}
	}
	done, host := &Done{}, s.shown.hostName(r.Context())
	workers, err := s.cfg.Control.Signal(sig, rank)
	for _, w := range workers {
		done.Workers = append(done.Workers, Signaled{w.Rank, w.PID, host})
	}
	if rank < 0 || err != nil {
		s.onOthers(r, done, url.Values{"signal": {q.Get("signal")}, "rank": {q.Get("rank")}}, askTime,
			func(body []byte) error {
				var theirs Done
				err := json.Unmarshal(body, &theirs)
				done.Workers = append(done.Workers, theirs.Workers...)
				return err
			})
	}
	switch {
	case len(done.Workers) > 0:
		err = nil
	case rank >= 0 && s.wholeJob(r):
		err = fmt.Errorf("rank %d runs on no host that answers", rank)
	}
	slices.SortFunc(done.Workers, func(a, b Signaled) int { return a.Rank - b.Rank })
	return doneReply(done, err)
}

// autopsy returns what the workers of this host do or, for the whole job, those of all others: the
// agent that asks for the whole job examines its own workers itself.
func (s *Server) autopsy(r *http.Request) reply {
	q := r.URL.Query()
	if s.wholeJob(r) {
		var peers autopsy.Peers
		done := &Done{}
		s.onOthers(r, done, url.Values{"reason": {text.Line(q.Get("reason"), maxReason)}}, autopsyTime,
			func(body []byte) error {
				err := peers.Admit(body)
				if err == nil {
					done.Reports = append(done.Reports, body)
				}
				return err
			})
		return doneReply(done, nil)
	}
	body, err := s.cfg.Control.Autopsy(r.Context(), q.Get("reason"))
	if err != nil {
		return textReply(http.StatusConflict, "%v", err)
	}
	return reply{http.StatusOK, "application/json", body}
}
