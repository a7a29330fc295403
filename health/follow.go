package health

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/internal/wire/http10"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/rendezvous"
)

// A Follower follows what the workers of a host write: an agent.Agent.
type Follower interface {
	FollowLogs(ctx context.Context, cfg logs.FollowConfig, round int,
		begin func(round, groupRank int, attempt string) error, emit func(*logs.Chunk) error) error
}

// A LogFrame is one part of the answer to /v1/logs?follow: a line of JSON, and Data after it. Its
// Kind is one of
//
//	attempt  a host's workers begin to write, in this directory
//	out      bytes of a stdout: whole lines
//	err      the same of a stderr
//	gone     nothing more comes from a host, or not at once
//	end      nothing more comes at all; without it the stream broke off
type LogFrame struct {
	Kind    string `json:"kind"`
	Round   int    `json:"round,omitempty"`
	Rank    int    `json:"rank"` // of a worker, or the group rank of a host
	Host    string `json:"host,omitempty"`
	Attempt string `json:"attempt,omitempty"`
	Why     string `json:"why,omitempty"`
	Offset  int64  `json:"offset,omitempty"` // of Data: see logs.Chunk
	Size    int64  `json:"size,omitempty"`   // of the stream then
	Bytes   int    `json:"bytes,omitempty"`  // how long Data is
	Data    []byte `json:"-"`
}

const (
	maxFrame   = 1 << 20 // data of a frame, in bytes
	maxStreams = 1 << 16 // streams of one host
	// Clients that follow the logs of the whole job, and the calls to other hosts that they have
	// together, one to each; some may follow a job of any size.
	minFollowing, maxFollowing, maxFollowed = 4, 32, 512
)

// ReadLogFrame reads a frame into f, whose Data is used again. The error is io.EOF at the end
// of a stream, another one where it breaks off or is none.
func ReadLogFrame(r *bufio.Reader, f *LogFrame) error {
	line, err := r.ReadSlice('\n')
	if err == io.EOF && len(line) > 0 {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	data := f.Data[:0]
	*f = LogFrame{Data: data}
	if err := json.Unmarshal(line, f); err != nil {
		return fmt.Errorf("this is not a stream of logs: %w", err)
	}
	switch f.Host, f.Attempt, f.Why = text.Line(f.Host, 255), text.Line(f.Attempt, 255), text.Line(f.Why, 400); {
	case !slices.Contains([]string{"attempt", "out", "err", "gone", "end"}, f.Kind):
		return fmt.Errorf("this is not a stream of logs: a frame '%s', perhaps of a later release", text.Line(f.Kind, 20))
	case f.Bytes < 0 || f.Bytes > maxFrame || f.Offset < 0:
		return fmt.Errorf("this is not a stream of logs: %d bytes at %d", f.Bytes, f.Offset)
	}
	f.Data = slices.Grow(data, f.Bytes)[:f.Bytes]
	if _, err := io.ReadFull(r, f.Data); err != nil {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// write writes a frame.
func (f *LogFrame) write(w io.Writer) error {
	one := *f
	one.Bytes = len(f.Data)
	one.Host, one.Attempt, one.Why = text.Line(f.Host, 255), text.Line(f.Attempt, 255), text.Line(f.Why, 400)
	line, _ := json.Marshal(&one) // texts and numbers
	_, err := w.Write(append(line, '\n'))
	if err == nil && len(f.Data) > 0 {
		_, err = w.Write(f.Data)
	}
	return err
}

// LogQuery is what /v1/logs?follow is asked for, as JSON in query. What that lacks is as in allLogs.
type LogQuery struct {
	Once     bool             `json:"-"` // only what there is: follow=0
	HostOnly bool             `json:"-"` // only the workers of the host that is asked: scope=host
	Stdout   bool             `json:"stdout"`
	Stderr   bool             `json:"stderr"`
	Ranks    string           `json:"ranks,omitempty"`    // "0,5-7"; "" means all
	Lines    int              `json:"lines"`              // of each stream's past; negative means all
	Round    int              `json:"round"`              // only this one; negative means from the last one on
	Together bool             `json:"together,omitempty"` // with Once, of all hosts at a time, not host by host
	From     map[string]int64 `json:"from,omitempty"`     // where streams of the round go on: {"out:3": 1024}
}

var allLogs = LogQuery{Stdout: true, Stderr: true, Lines: -1, Round: -1}

// Path is the request's.
func (q *LogQuery) Path() string {
	query, _ := json.Marshal(q)
	v := url.Values{"follow": {"1"}, "query": {string(query)}}
	if q.Once {
		v.Set("follow", "0")
	}
	if q.HostOnly {
		v.Set("scope", "host")
	}
	return "/v1/logs?" + v.Encode()
}

// parseLogQuery reads a request's parameters.
func parseLogQuery(v url.Values) (q LogQuery, want text.RankSet, err error) {
	for name := range v {
		if name != "follow" && name != "scope" && name != "query" {
			return q, nil, fmt.Errorf(`%.20q is not for follow; ask for follow=1&query={"ranks":"0,5-7","lines":10}`, name)
		}
	}
	q = allLogs
	q.Once, q.HostOnly = v.Get("follow") == "0", v.Get("scope") == "host"
	if query := v.Get("query"); query != "" {
		in := json.NewDecoder(strings.NewReader(query))
		in.DisallowUnknownFields()
		err := in.Decode(&q)
		if err == nil && in.More() {
			err = errors.New("something follows it")
		}
		if err != nil {
			return q, nil, fmt.Errorf(`query=%.40q is not like {"ranks":"0,5-7","lines":10}: %w`, query, err)
		}
	}
	for key, at := range q.From {
		if at < 0 {
			return q, nil, fmt.Errorf("query: from %.20q is negative", key)
		}
	}
	if q.Ranks != "" {
		want, err = text.ParseRankSet(q.Ranks)
	}
	return q, want, err
}

func streamKey(kind string, rank int) string { return kind + ":" + strconv.Itoa(rank) }

// A logStream is an answer to /v1/logs?follow.
type logStream struct {
	s    *Server
	q    LogQuery
	want text.RankSet
	// rounds are those in which own begins to follow workers, for job.
	rounds chan int

	mu    sync.Mutex // guards the rest
	w     io.Writer
	flush func() error
	err   error // of writing
}

// put writes a frame.
func (l *logStream) put(f *LogFrame) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = f.write(l.w)
	}
	if l.err == nil {
		l.err = l.flush()
	}
	return l.err
}

// followLogs streams what workers write until the client or the job ends. The connection counts
// as idle, and is closed where there is no room for others.
func (s *Server) followLogs(w http.ResponseWriter, r *http.Request) {
	q, want, err := parseLogQuery(r.URL.Query())
	if err = cmp.Or(checkQuery(r.URL.Query()), err); err != nil {
		write(w, textReply(http.StatusBadRequest, "%v", err))
		return
	}
	if s.cfg.Logs == nil {
		write(w, textReply(http.StatusNotFound, "this server does not follow logs"))
		return
	}
	whole := s.wholeJob(r)
	if whole {
		defer s.following.Add(-1)
		hosts := max(1, len(s.shown.otherRanks(r.Context())))
		if s.following.Add(1) > min(maxFollowing, max(minFollowing, int64(maxFollowed/hosts))) {
			write(w, busy("too many follow the logs of this job"))
			return
		}
	}
	defer stream(r.Context())()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.shown.life, cancel)()
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Time{})
	_ = c.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	l := &logStream{s: s, q: q, want: want, w: w, flush: c.Flush}
	if whole {
		err = l.job(ctx, cancel)
	} else {
		err = l.own(ctx)
	}
	if err == nil {
		_ = l.put(&LogFrame{Kind: "end"})
	}
}

// own streams what the workers of this host write.
func (l *logStream) own(ctx context.Context) error {
	host := "" // whose lines they are matters more than that they come at once
	if snap, _ := l.s.shown.state.get(ctx, l.s.cfg.Timeout); snap != nil {
		host = snap.source.Host.Name
	}
	round := -1
	cfg := logs.FollowConfig{
		Stdout: l.q.Stdout, Stderr: l.q.Stderr, Lines: l.q.Lines, Once: l.q.Once,
		Want: func(w logs.Worker) bool { return l.want.Has(w.Rank) },
		From: func(w logs.Worker, stderr bool) (int64, bool) {
			at, ok := l.q.From[streamKey(kindOf(stderr), w.Rank)]
			return at, ok && round == l.q.Round
		},
	}
	return l.s.cfg.Logs.FollowLogs(ctx, cfg, l.q.Round, func(r, groupRank int, attempt string) error {
		round = r
		if l.rounds != nil {
			select {
			case l.rounds <- r:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return l.put(&LogFrame{Kind: "attempt", Round: r, Rank: groupRank, Host: host, Attempt: attempt})
	}, func(c *logs.Chunk) error {
		return l.put(&LogFrame{
			Kind: kindOf(c.Stderr), Round: round, Rank: c.Worker.Rank, Offset: c.Offset, Size: c.Size, Data: c.Data,
		})
	})
}

func kindOf(stderr bool) string {
	if stderr {
		return "err"
	}
	return "out"
}

// job streams what the workers of all hosts write. It looks for hosts that join once a second.
func (l *logStream) job(ctx context.Context, cancel context.CancelFunc) error {
	own, _ := l.s.shown.state.get(ctx, l.s.shown.patience)
	if own == nil { // without it this host's lines would be left out in silence
		return errors.New("the state of this host cannot be had in time")
	}
	if l.q.Once {
		return l.jobOnce(ctx, own)
	}
	var following sync.WaitGroup
	ended := make(chan struct{})
	l.rounds = make(chan int, 64)
	var ownErr error
	following.Go(func() {
		defer close(ended)
		ownErr = l.own(ctx)
	})
	defer func() { // nobody may write to a response that is over
		cancel()
		following.Wait()
	}()
	tick := time.Tick(othersFresh)
	followed, lines := map[int]int{}, l.q.Lines // by host, the last round that is followed
	follow := func(round int, ranks iter.Seq[int]) {
		for rank := range ranks {
			if since, ok := followed[rank]; ok && since >= round {
				continue
			}
			followed[rank] = round
			lines := lines
			following.Go(func() { l.other(ctx, rank, round, lines) })
		}
		lines = -1
	}
	for {
		if o, _ := l.s.shown.others.get(ctx, l.s.shown.patience+firstWait); o != nil {
			follow(o.round, maps.Keys(o.Heard))
		}
		select {
		case <-tick:
		case round := <-l.rounds: // it may be over before the next tick
			follow(round, slices.Values(l.s.shown.otherRanks(ctx)))
		case <-ended: // the job has, or this host's part
			if own.source.Host.GroupRank < 0 {
				ended = nil // it has not been in it
				continue
			}
			following.Wait()
			return ownErr
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// jobOnce streams what the workers of all hosts have written: host by host, in the order of their
// ranks, or together.
func (l *logStream) jobOnce(ctx context.Context, own *snapshot) error {
	ranks, here := l.s.shown.otherRanks(ctx), -1
	if own.source.Host.GroupRank >= 0 {
		here = own.source.Host.GroupRank
		ranks = append(ranks, here)
		slices.Sort(ranks)
	}
	var err error
	var all sync.WaitGroup
	for _, rank := range ranks {
		all.Go(func() {
			if rank == here {
				err = l.own(ctx)
			} else {
				l.other(ctx, rank, -1, l.q.Lines)
			}
		})
		if !l.q.Together {
			if all.Wait(); err != nil {
				return err
			}
		}
	}
	all.Wait()
	return err
}

// other passes on what the workers of another host write in one round, the last one if it is
// negative.
func (l *logStream) other(ctx context.Context, rank, round, lines int) {
	q := l.q
	q.HostOnly, q.Round, q.Lines = true, round, lines
	if !l.s.dialing.wait(ctx) {
		_ = l.put(&LogFrame{Kind: "gone", Rank: rank, Why: "too many follow the logs of this job; try again later"})
		return
	}
	if err := FollowHost(ctx, l.s.cfg.CallToRead, rank, q, l.put); err != nil && ctx.Err() == nil {
		_ = l.put(&LogFrame{Kind: "gone", Rank: rank, Why: err.Error()})
	}
}

const (
	// attempts is how often in a row FollowHost calls a host before it says that it does not
	// reach it, or gives it up.
	attempts = 3
	// mostPause is the longest time between two calls.
	mostPause = 5 * time.Second
)

// FollowHost asks the agent with a group rank for a stream of its host's logs, over call, and
// emits its frames. It ends with the stream, or with the round. A connection that breaks is made
// again, and the stream continues where it broke off. Where that takes more than a moment, a frame
// gone says so. A host that has not answered yet is called a few times. The error is ctx's, emit's,
// or says why the host cannot be reached, and how much of what it has written is missing.
func FollowHost(ctx context.Context, call func(context.Context, int) (net.Conn, error), rank int, q LogQuery,
	emit func(*LogFrame) error) error {
	h := &hostStream{call: call, rank: rank, q: q, at: map[string]int64{}, size: map[string]int64{}, emit: emit}
	for ; ; h.failed++ {
		err := h.pass(ctx)
		status, refused := errors.AsType[*http10.StatusError](err)
		refused = refused && status.Status != strconv.Itoa(http.StatusServiceUnavailable)
		why, gone := errors.AsType[*rendezvous.CallError](err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case h.emitting != nil:
			return h.emitting
		case refused, gone && why.Final, q.Once:
			return h.missing(err)
		case h.failed+1 < attempts:
		case gone || h.host == "":
			return h.missing(err)
		case h.failed+1 == attempts:
			if err := emit(&LogFrame{Kind: "gone", Rank: rank, Why: err.Error()}); err != nil {
				return err
			}
		}
		h.q.From = h.at
		if err := sleep.For(ctx, min(time.Duration(max(1, h.failed+2-attempts))*othersFresh, mostPause)); err != nil {
			return err
		}
	}
}

// A hostStream is one call of FollowHost.
type hostStream struct {
	call     func(context.Context, int) (net.Conn, error)
	rank     int
	q        LogQuery
	at       map[string]int64 // where each stream continues
	size     map[string]int64 // how long each is, as far as that was told
	failed   int              // how many calls before this one have failed since the last frame
	host     string           // its name; "" before the first frame
	emit     func(*LogFrame) error
	emitting error // its error
}

// missing adds to the end of a stream what will not come. Nobody but the host knows what it wrote
// after it was heard last.
func (h *hostStream) missing(err error) error {
	if h.host == "" {
		return err
	}
	n := int64(0)
	for key, size := range h.size {
		n += max(0, size-h.at[key])
	}
	return fmt.Errorf("%w; %s of its lines are known to be missing, and what it wrote after it was heard last is not "+
		"counted", err, text.Size(n))
}

// pass emits what comes over one connection.
func (h *hostStream) pass(ctx context.Context) error {
	calling, cancel := context.WithTimeoutCause(ctx, askTime, fmt.Errorf("no answer within %v", askTime))
	defer cancel()
	conn, err := h.call(calling, h.rank)
	if err != nil || conn == nil {
		return cmp.Or(err, errNoConn)
	}
	defer conn.Close()
	in, stop, err := http10.Stream(ctx, conn, h.q.Path())
	defer stop()
	if err != nil {
		return err
	}
	left := &rendezvous.CallError{Reason: fmt.Sprintf("host %s has left the job, or has no more of its lines", h.host)}
	if h.host == "" {
		left.Reason = "it has left the job: another host has its rank"
	}
	for f, again := (LogFrame{}), h.host == "" && h.failed == 0; ; {
		if err := ReadLogFrame(in, &f); err == io.EOF {
			return io.ErrUnexpectedEOF
		} else if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) && (f.Kind == "out" || f.Kind == "err") { // in the midst of it
				h.size[streamKey(f.Kind, f.Rank)] = max(f.Size, f.Offset+int64(len(f.Data)))
			}
			return err
		}
		switch f.Kind {
		case "end":
			if !again {
				return left
			}
			return nil
		case "attempt":
			if h.q.Round >= 0 && f.Round != h.q.Round {
				return nil // of a later round, in which it may be another host
			}
			if h.host != "" && f.Host != h.host || h.q.Round >= 0 && f.Rank != h.rank {
				return left
			}
			h.q.Round, h.host, h.failed, again = f.Round, f.Host, 0, true
		case "out", "err":
			key := streamKey(f.Kind, f.Rank)
			h.size[key] = f.Size
			if h.at[key] = f.Offset + int64(len(f.Data)); len(h.at) > maxStreams {
				return fmt.Errorf("the host sends more than %d streams", maxStreams)
			}
		}
		if h.emitting = h.emit(&f); h.emitting != nil {
			return h.emitting
		}
	}
}
