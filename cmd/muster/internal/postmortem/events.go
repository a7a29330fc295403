package postmortem

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/files/safeopen"
)

// maxEventLine is the longest line of events that is read, in bytes.
const maxEventLine = 1 << 20

// told is what the events say of one attempt.
type told struct {
	started, ended time.Time
	workers        map[int]toldWorker  // by local rank
	outcome        Outcome             // "" if the agent did not say
	preempted      *failure.Preemption // nil if the agent did not say
}

type toldWorker struct{ rank, pid int }

// An event is the part of a line of events.jsonl that counts.
type event struct {
	Name      string `json:"name"`
	Source    string `json:"source"`
	Timestamp int64  `json:"timestamp"` // milliseconds since 1970
	Metadata  struct {
		RunID    string `json:"run_id"`
		Hostname string `json:"hostname"`
		State    string `json:"state"`
		Rank     *int   `json:"global_rank"`
		PID      string `json:"worker_id"`
		Restarts int    `json:"agent_restarts"`
		Inner    string `json:"metadata"`
		// Of a job that is preempted.
		Host       string         `json:"signalled_host"`
		Signal     failure.Signal `json:"signal"`
		SignalTime int64          `json:"signal_time"`
	} `json:"metadata"`
}

// events reads events.jsonl, as far as there is one.
func (rd *reader) events(run *Run, path string) map[number]*told {
	f, info, err := safeopen.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	run.Events = path
	if err != nil {
		run.problem("%s: %v", path, err)
		return nil
	}
	defer f.Close()
	size := info.Size()
	if size > maxEvents {
		run.problem("%s has %d bytes, of which the first %d are read", path, size, maxEvents)
	}
	if rd.budget -= min(size, maxEvents); rd.budget < 0 {
		run.problem("%s: %v", path, errBudget)
		return nil
	}
	h := history{run: run, told: map[number]*told{}}
	bad, err := h.read(io.LimitReader(f, maxEvents))
	if err != nil {
		run.problem("%s: %v", path, err)
	}
	if bad > 0 {
		run.problem("%s: %d lines are not events", path, bad)
	}
	return h.told
}

// A history makes attempts of events.
type history struct {
	run     *Run
	told    map[number]*told
	current number
	open    bool    // workers of current have started
	last    Outcome // of the agent; "" if it has not said
}

// read takes in lines and returns how many made no sense.
func (h *history) read(from io.Reader) (bad int, err error) {
	in := bufio.NewReaderSize(from, 64<<10)
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) <= maxEventLine {
			line = append(line, part...)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if len(line) > 1 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				bad++
			} else {
				h.take(&e)
			}
		}
		line = line[:0]
		if err == io.EOF {
			return bad, nil
		}
		if err != nil {
			return bad, err
		}
	}
}

// take takes in one event.
func (h *history) take(e *event) {
	m := &e.Metadata
	at := milliseconds(e.Timestamp)
	if e.Source == "" || m.Restarts < 0 || at.IsZero() {
		return // a step of the rendezvous, or nonsense
	}
	if m.RunID != "" {
		h.run.RunID, h.run.Host = clean(m.RunID), clean(m.Hostname)
	}
	if e.Source == "AGENT" && (m.State == "FAILED" || m.State == "SUCCEEDED") {
		h.last = Outcome(strings.ToLower(m.State))
	}
	t := h.told[h.current]
	switch {
	case e.Name == events.Preempted:
		if t != nil {
			t.preempted = &failure.Preemption{Host: clean(m.Host), Signal: m.Signal, Time: milliseconds(m.SignalTime),
				ExitStatus: failure.PreemptedStatus}
		}
	case e.Source == "WORKER" && m.State == "START":
		h.start(e, at)
	case t == nil || m.Restarts != h.current.restart && m.State != "RENDEZVOUS":
	case e.Source == "WORKER", m.State == "RENDEZVOUS":
		if h.open {
			t.ended = at
		}
		h.open = h.open && m.State != "RENDEZVOUS"
	case m.State == "FAILED":
		t.ended, t.outcome = at, Failed
	case m.State == "SUCCEEDED":
		t.ended, t.outcome = at, Succeeded
	}
}

// milliseconds is a time of an event; zero if it is none that JSON has a form for.
func milliseconds(n int64) time.Time {
	if n <= 0 || n > 253402300799999 {
		return time.Time{}
	}
	return time.UnixMilli(n)
}

// start takes in the start of a worker. One that has started before belongs to
// another attempt.
func (h *history) start(e *event, at time.Time) {
	m := &e.Metadata
	var in struct { // the metadata in the metadata
		LocalRank *int `json:"local_rank"`
	}
	if json.Unmarshal([]byte(m.Inner), &in) != nil || in.LocalRank == nil || *in.LocalRank < 0 || m.Rank == nil {
		return
	}
	t := h.told[h.current]
	if t == nil || m.Restarts != h.current.restart || !h.open {
		h.current = number{restart: m.Restarts}
		for h.told[h.current] != nil {
			h.current.again++
		}
		if len(h.told) >= maxEntries {
			return
		}
		t = &told{started: at, workers: map[int]toldWorker{}}
		h.told[h.current], h.open = t, true
	}
	if len(t.workers) < maxWorkers {
		pid, _ := strconv.Atoi(m.PID)
		t.workers[*in.LocalRank] = toldWorker{*m.Rank, max(0, pid)}
	}
}

func (run *Run) problem(format string, args ...any) {
	run.Problems = append(run.Problems, clean(fmt.Sprintf(format, args...)))
}
