package health

import (
	"encoding/json"
	"net/http"
	"strconv"
	"syscall"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/text"
)

// A Control changes the job. Its methods are called from any goroutine. An error says why
// nothing was done.
type Control interface {
	// Stop begins to stop this host's workers for good, as SIGTERM to the agent does, and
	// returns at once.
	Stop()
	// Restart begins a new round with new workers on all hosts. No restart is counted.
	Restart() error
	// Signal sends a signal to the workers of this host, or to that of one global rank if
	// rank is not negative. It returns those that have got it.
	Signal(sig syscall.Signal, rank int) ([]agent.Worker, error)
}

// Signaled is a worker that a signal was sent to.
type Signaled struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
}

// control answers a request to change the job.
func control(c Control, r *http.Request) reply {
	var err error
	done := struct {
		Workers []Signaled `json:"workers,omitempty"`
	}{}
	switch r.URL.Path {
	case "/v1/stop":
		c.Stop()
	case "/v1/restart":
		err = c.Restart()
	case "/v1/signal":
		q := r.URL.Query()
		sig := text.ParseSignal(q.Get("signal"))
		if sig <= 0 {
			return textReply(http.StatusBadRequest, "signal %q is none; ask for /v1/signal?signal=SIGUSR1&rank=0", q.Get("signal"))
		}
		rank := -1
		if v := q.Get("rank"); v != "" {
			if rank, err = strconv.Atoi(v); err != nil || rank < 0 {
				return textReply(http.StatusBadRequest, "rank %q is not a number, 0 or more", v)
			}
		}
		var workers []agent.Worker
		workers, err = c.Signal(sig, rank)
		for _, w := range workers {
			done.Workers = append(done.Workers, Signaled{w.Rank, w.PID})
		}
	default:
		return textReply(http.StatusNotFound, "there is no %q to POST to; there are /v1/stop, /v1/restart and /v1/signal", r.URL.Path)
	}
	if err != nil {
		return textReply(http.StatusConflict, "%v", err)
	}
	body, _ := json.Marshal(done)
	return reply{http.StatusOK, "application/json", append(body, '\n')}
}
