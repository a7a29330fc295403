package health

import (
	"bufio"
	"cmp"
	"context"
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

	"github.com/muster-run/muster/internal/http10"
	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/rendezvous"
)

// A Follower follows what the workers of a host write: an agent.Agent.
type Follower interface {
	FollowLogs(ctx context.Context, cfg logs.FollowConfig, round int, begin func(round, groupRank int, attempt string) error, emit func(*logs.Chunk) error) error
}

// A LogFrame is one part of the answer to /v1/logs?follow. In the answer it is a line of words,
// and Data after it:
//
//	attempt ROUND GROUP_RANK HOST NAME   a host's workers begin to write, in this directory
//	out ROUND RANK OFFSET LOST LENGTH SIZE    bytes of a stdout: whole lines; SIZE only if asked for
//	err ROUND RANK OFFSET LOST LENGTH SIZE    the same of a stderr
//	gone GROUP_RANK WHY                  nothing more comes from a host, or not at once
//	end                                  nothing more comes at all; without it the stream broke off
type LogFrame struct {
	Kind          string // attempt, out, err, gone, end
	Round, Rank   int    // Rank is a worker's, or a host's group rank
	Host, Attempt string
	Why           string
	Offset, Lost  int64 // of Data: see logs.Chunk
	Size          int64 // of the stream then; 0: not told
	Data          []byte
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
	switch {
	case err == io.EOF && len(line) == 0:
		return io.EOF
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	}
	words := strings.SplitN(string(line[:len(line)-1]), " ", 7)
	*f = LogFrame{Kind: words[0], Data: f.Data[:0]}
	number := func(i int) (n int64) {
		if i >= len(words) {
			err = errors.New("a word is missing")
		} else if err == nil {
			n, err = strconv.ParseInt(words[i], 10, 64)
		}
		return n
	}
	switch f.Kind {
	case "attempt":
		f.Round, f.Rank = int(number(1)), int(number(2))
		if len(words) < 5 {
			return errors.New("no stream of logs: a word is missing")
		}
		f.Host, f.Attempt = text.Line(words[3], 255), text.Line(words[4], 255)
	case "end":
	case "gone":
		f.Rank = int(number(1))
		f.Why = strings.Join(words[min(2, len(words)):], " ")
	case "out", "err":
		f.Round, f.Rank, f.Offset, f.Lost = int(number(1)), int(number(2)), number(3), number(4)
		n := number(5)
		if len(words) > 6 {
			f.Size = number(6)
		}
		if err == nil && (n < 0 || n > maxFrame || f.Offset < 0 || f.Lost < 0) {
			err = fmt.Errorf("%d bytes at %d", n, f.Offset)
		}
		if err == nil {
			f.Data = slices.Grow(f.Data, int(n))[:n]
			if _, err = io.ReadFull(r, f.Data); err != nil {
				return io.ErrUnexpectedEOF
			}
		}
	default:
		err = fmt.Errorf("a frame '%s', perhaps of a later release", text.Line(f.Kind, 20))
	}
	if err != nil {
		return fmt.Errorf("no stream of logs: %w", err)
	}
	return nil
}

// write writes a frame.
func (f *LogFrame) write(w io.Writer) error {
	var err error
	switch f.Kind {
	case "attempt":
		_, err = fmt.Fprintf(w, "attempt %d %d %s %s\n", f.Round, f.Rank, oneWord(f.Host), oneWord(f.Attempt))
	case "end":
		_, err = io.WriteString(w, "end\n")
	case "gone":
		_, err = fmt.Fprintf(w, "gone %d %s\n", f.Rank, text.Line(f.Why, 400))
	default:
		line := fmt.Appendf(nil, "%s %d %d %d %d %d", f.Kind, f.Round, f.Rank, f.Offset, f.Lost, len(f.Data))
		if f.Size > 0 {
			line = fmt.Appendf(line, " %d", f.Size)
		}
		if _, err = w.Write(append(line, '\n')); err == nil {
			_, err = w.Write(f.Data)
		}
	}
	return err
}

// oneWord is a name as one word of a frame's line.
func oneWord(name string) string {
	return strings.ReplaceAll(text.Line(name, 400), " ", "_")
}

// LogQuery is what /v1/logs?follow is asked for.
type LogQuery struct {
	Stdout, Stderr bool
	Ranks          string // "0,5-7"; "" means all
	Gather         bool   // only what tee copies to the console; a server that ends waits for it
	Taken          bool   // no lines: those of the round are all there, so it need not wait
	Lines          int    // of each stream's past; negative means all
	Round          int    // only this one; negative means from the last one on
	Once           bool   // only what there is
	Together       bool   // of all hosts at a time then, not host by host
	HostOnly       bool   // only the workers of the host that is asked
	Sizes          bool   // frames tell the sizes of streams
	From           string // where streams of the round go on: "out:3:1024,…"
}

// Path is the request's.
func (q *LogQuery) Path() string {
	v := url.Values{"follow": {"1"}, "lines": {strconv.Itoa(q.Lines)}, "round": {strconv.Itoa(q.Round)}}
	set := func(name, value string, if_ bool) {
		if if_ {
			v.Set(name, value)
		}
	}
	set("follow", "0", q.Once)
	set("stream", "stdout", !q.Stderr)
	set("stream", "stderr", !q.Stdout)
	set("rank", q.Ranks, q.Ranks != "")
	set("gather", "1", q.Gather)
	set("taken", "1", q.Taken)
	set("together", "1", q.Together)
	set("sizes", "1", q.Sizes)
	set("scope", "host", q.HostOnly)
	set("from", q.From, q.From != "")
	return "/v1/logs?" + v.Encode()
}

// parseLogQuery reads a request's parameters.
func parseLogQuery(v url.Values) (q LogQuery, want text.RankSet, from map[string]int64, err error) {
	q = LogQuery{
		Stdout: v.Get("stream") != "stderr", Stderr: v.Get("stream") != "stdout", Ranks: v.Get("rank"), Gather: v.Get("gather") == "1", Taken: v.Get("taken") == "1",
		Lines: -1, Round: -1, Once: v.Get("follow") == "0", Together: v.Get("together") == "1", Sizes: v.Get("sizes") == "1", HostOnly: v.Get("scope") == "host", From: v.Get("from"),
	}
	for name, to := range map[string]*int{"lines": &q.Lines, "round": &q.Round} {
		if s := v.Get(name); s != "" {
			if *to, err = strconv.Atoi(s); err != nil {
				return q, nil, nil, fmt.Errorf("%s=%q is not a number", name, s)
			}
		}
	}
	if v.Has("follow") && v.Has("contains") {
		return q, nil, nil, errors.New("follow and contains exclude each other; leave one of them out")
	}
	if s := v.Get("stream"); s != "" && s != "stdout" && s != "stderr" {
		return q, nil, nil, fmt.Errorf("stream %q is neither stdout nor stderr", s)
	}
	if q.Ranks != "" {
		if want, err = text.ParseRankSet(q.Ranks); err != nil {
			return q, nil, nil, err
		}
	}
	from = map[string]int64{}
	for part := range strings.SplitSeq(q.From, ",") {
		if at := strings.LastIndexByte(part, ':'); at >= 0 {
			if from[part[:at]], err = strconv.ParseInt(part[at+1:], 10, 64); err != nil || from[part[:at]] < 0 {
				return q, nil, nil, fmt.Errorf("from=%q is not like out:3:1024", part)
			}
		}
	}
	return q, want, from, nil
}

func streamKey(kind string, rank int) string { return kind + ":" + strconv.Itoa(rank) }

// A logStream is an answer to /v1/logs?follow.
type logStream struct {
	s    *Server
	q    LogQuery
	want text.RankSet
	from map[string]int64
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
		one := *f
		if !l.q.Sizes {
			one.Size = 0
		}
		l.err = one.write(l.w)
	}
	if l.err == nil {
		l.err = l.flush()
	}
	if l.q.Gather {
		l.s.gathered.Add(1)
	}
	return l.err
}

// callFor returns what connects to another agent that is to be asked for a path.
func (s *Server) callFor(path string) func(context.Context, int) (net.Conn, error) {
	if strings.HasPrefix(path, "/v1/logs?") {
		return s.cfg.CallToRead
	}
	return s.cfg.Call
}

// followLogs streams what workers write until the client or the job ends. The connection counts
// as idle, and is closed where there is no room for others, unless an agent of the job gathers.
func (s *Server) followLogs(w http.ResponseWriter, r *http.Request) {
	q, want, from, err := parseLogQuery(r.URL.Query())
	if err = cmp.Or(checkQuery(r.URL.Query()), err); err != nil {
		write(w, textReply(http.StatusBadRequest, "%v", err))
		return
	}
	if s.cfg.Logs == nil {
		write(w, textReply(http.StatusNotFound, "this server does not follow logs"))
		return
	}
	whole := s.wholeJob(r)
	if q.Gather = q.Gather && s.cfg.Control != nil && !whole; q.Gather {
		if !s.cfg.Gathered {
			write(w, textReply(http.StatusConflict, "this host runs without --gather, and prints its lines itself"))
			return
		}
		defer keep(r.Context())()
		s.gathering.Add(1)
		defer func() { s.gathered.Add(1); s.gathering.Add(-1) }()
	}
	if whole {
		defer s.following.Add(-1)
		hosts := max(1, len(s.otherRanks(r.Context())))
		if s.following.Add(1) > min(maxFollowing, max(minFollowing, int64(maxFollowed/hosts))) {
			write(w, busy("too many follow the logs of this job"))
			return
		}
	}
	defer stream(r.Context())()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Time{})
	_ = c.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	l := &logStream{s: s, q: q, want: want, from: from, w: w, flush: c.Flush}
	switch {
	case q.Gather && q.Taken:
		s.gatheredTo.Store(max(s.gatheredTo.Load(), int64(q.Round)+1))
	case whole:
		err = l.job(ctx, cancel)
	default:
		err = l.own(ctx)
	}
	if err == nil && l.put(&LogFrame{Kind: "end"}) == nil && q.Gather && !q.Taken {
		<-ctx.Done() // some of it may be on its way
	}
}

// own streams what the workers of this host write.
func (l *logStream) own(ctx context.Context) error {
	host := "" // whose lines they are matters more than that they come at once
	if snap, _ := l.s.state.get(ctx, l.s.cfg.Timeout); snap != nil {
		host = snap.source.Host.Name
	}
	round := -1
	cfg := logs.FollowConfig{
		Stdout: l.q.Stdout, Stderr: l.q.Stderr, Teed: l.q.Gather, Lines: l.q.Lines, Once: l.q.Once,
		Want: func(w logs.Worker) bool { return l.want.Has(w.Rank) },
		From: func(w logs.Worker, stderr bool) (int64, bool) {
			at, ok := l.from[streamKey(kindOf(stderr), w.Rank)]
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
		return l.put(&LogFrame{Kind: kindOf(c.Stderr), Round: round, Rank: c.Worker.Rank, Offset: c.Offset, Lost: c.Lost, Size: c.Size, Data: c.Data})
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
	own, _ := l.s.state.get(ctx, l.s.patience)
	if l.q.Once { // host by host, in the order of their ranks, or together
		ranks := l.s.otherRanks(ctx)
		if own != nil && own.source.Host.GroupRank >= 0 {
			ranks = append(ranks, own.source.Host.GroupRank)
			slices.Sort(ranks)
		}
		var err error
		var all sync.WaitGroup
		for _, rank := range ranks {
			all.Go(func() {
				if own == nil || rank != own.source.Host.GroupRank {
					l.other(ctx, rank, -1, l.q.Lines)
				} else {
					err = l.own(ctx)
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
	ticker := time.NewTicker(othersFresh)
	defer ticker.Stop()
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
		if o, _ := l.s.others.get(ctx, l.s.patience+firstWait); o != nil {
			follow(o.round, maps.Keys(o.heard))
		}
		select {
		case <-ticker.C:
		case round := <-l.rounds: // it may be over before the next tick
			follow(round, slices.Values(l.s.otherRanks(ctx)))
		case <-ended: // the job has, or this host's part
			if own == nil || own.source.Host.GroupRank < 0 {
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

// other passes on what the workers of another host write in one round, the last one if it is
// negative.
func (l *logStream) other(ctx context.Context, rank, round, lines int) {
	q := l.q
	q.HostOnly, q.Round, q.Lines = true, round, lines
	if !l.s.dialing.wait(ctx) {
		_ = l.put(&LogFrame{Kind: "gone", Rank: rank, Why: "too many follow the logs of this job; try again later"})
		return
	}
	if err := FollowHost(ctx, l.s.cfg.CallToRead, rank, q, nil, l.put); err != nil && ctx.Err() == nil {
		_ = l.put(&LogFrame{Kind: "gone", Rank: rank, Why: err.Error()})
	}
}

const (
	// attempts is how often in a row FollowHost calls a host before it says that it does not
	// reach it, or gives it up.
	attempts = 3
	// mostPause is the longest time between two calls; a host that ends waits for longer.
	mostPause = gatherBegins / 2
)

// FollowHost asks the agent with a group rank for a stream of its host's logs, over call, and
// emits its frames. It ends with the stream, or with the round. A connection that breaks is made
// again, and the stream goes on where it broke off. Where that takes more than a moment, a frame
// gone says so. A host that has not answered yet is called until over is closed, and a few times
// more; nil means that it is. The error is ctx's, emit's, or says why the host cannot be reached,
// and how much of what it has written is missing.
func FollowHost(ctx context.Context, call func(context.Context, int) (net.Conn, error), rank int, q LogQuery, over <-chan struct{}, emit func(*LogFrame) error) error {
	h := &hostStream{call: call, rank: rank, q: q, at: map[string]int64{}, size: map[string]int64{}, emit: emit}
	h.q.Sizes = true
	for ; ; h.failed++ {
		err := h.pass(ctx)
		status, refused := errors.AsType[*http10.StatusError](err)
		refused = refused && status.Status != strconv.Itoa(http.StatusServiceUnavailable)
		why, gone := errors.AsType[*rendezvous.CallError](err)
		switch {
		case err == nil && h.q.Gather && !h.q.Taken:
			h.q.Taken, h.failed = true, -1
			continue
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case h.emitting != nil:
			return h.emitting
		case refused, gone && why.Final, q.Once:
			return h.missing(err)
		case h.failed+1 < attempts:
		case h.q.Taken:
			return nil // all lines are here
		case over == nil && (gone || h.host == ""):
			return h.missing(err)
		case h.failed+1 == attempts:
			if err := emit(&LogFrame{Kind: "gone", Rank: rank, Why: err.Error()}); err != nil {
				return err
			}
		}
		var from []string
		for key, offset := range h.at {
			from = append(from, key+":"+strconv.FormatInt(offset, 10))
		}
		h.q.From = strings.Join(from, ",")
		h.missed = true
		select {
		case <-time.After(min(time.Duration(max(1, h.failed+2-attempts))*othersFresh, mostPause)):
		case <-over: // and what this host has written is still there
			over, h.failed = nil, -1
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A hostStream is one call of FollowHost.
type hostStream struct {
	call     func(context.Context, int) (net.Conn, error)
	rank     int
	q        LogQuery
	at       map[string]int64 // where each stream goes on
	size     map[string]int64 // how long each is, as far as that was told
	failed   int              // how many calls before this one have failed since the last frame
	missed   bool             // one has
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
	return fmt.Errorf("%w; %s of its lines are known to be missing, and what it wrote after it was heard last is not counted", err, text.Size(n))
}

// pass emits what comes over one connection.
func (h *hostStream) pass(ctx context.Context) error {
	calling, cancel := context.WithTimeoutCause(ctx, askTime, fmt.Errorf("no answer within %v", askTime))
	defer cancel()
	conn, err := h.call(calling, h.rank)
	if err != nil {
		return err
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
	for f, again := (LogFrame{}), h.host == "" && !h.missed || h.q.Taken; ; {
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
