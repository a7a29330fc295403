package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/format/text"
)

// policy lets the page load nothing from elsewhere, run no script but its own, and
// be shown in no other page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler returns what Serve serves, for a server of the caller's own. It answers
// 503 once the Server has been closed.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// A reply is an answer as a whole.
type reply struct {
	status      int
	contentType string
	body        []byte
}

const plain = "text/plain; charset=utf-8"

func textReply(status int, format string, args ...any) reply {
	return reply{status, plain, fmt.Appendf(nil, format+"\n", args...)}
}

// busy is the answer where there is nothing to show yet, or too many ask for it.
func busy(why string) reply {
	return textReply(http.StatusServiceUnavailable, "%s; try again in a second", why)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		write(w, busy("the agent is about to end"))
		return
	}
	defer s.requests.Done()
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close") // nobody waits for a body that is not read
	}
	if s.streams(r) {
		s.followLogs(w, r)
		return
	}
	rep, done := s.answer(w, r)
	defer done()
	write(w, rep)
	_ = http.NewResponseController(w).Flush() // before the connection counts as idle
}

// streams reports whether a request is one for a stream of logs that may be answered.
func (s *Server) streams(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Path == "/v1/logs" && r.URL.Query().Has("follow") &&
		s.hosts.allow(r.Host) && s.reading.wait(r.Context())
}

// write sends a reply.
func write(w http.ResponseWriter, rep reply) {
	h := w.Header()
	h.Set("Content-Type", rep.contentType)
	h.Set("Content-Length", strconv.Itoa(len(rep.body)))
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	if rep.status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(rep.status)
	_, _ = w.Write(rep.body) // a client that is gone needs no answer
}

// answer makes the reply to a request. The caller calls done once that is sent: until then
// the server's end does not close the connection.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) (rep reply, done func()) {
	done = func() {}
	if r.Method == http.MethodPost && s.cfg.Control != nil {
		done = stream(r.Context())
		defer keep(r.Context())()
		return s.control(r), done
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return textReply(http.StatusMethodNotAllowed, "%s is not allowed: what is here can be read, not changed",
			r.Method), done
	}
	if !s.hosts.allow(r.Host) {
		return textReply(http.StatusForbidden, "this server does not answer as %q: it is asked by an address, as "+
			"localhost, by a name of its own host, "+
			"or by one that --health-names has; at the loopback interface as localhost", r.Host), done
	}
	pace, do := s.reading, handlers[r.URL.Path]
	if do == nil {
		return textReply(http.StatusNotFound, "there is no %.200q here; there are /, /healthz, /readyz, /metrics, "+
			"/v1/state and /v1/logs with ?rank=N or ?follow=1", r.URL.Path), done
	}
	if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
		pace = s.probes
	}
	if !pace.wait(r.Context()) {
		return busy("too many requests"), done
	}
	if err := checkQuery(r.URL.Query()); err != nil {
		return textReply(http.StatusBadRequest, "%v", err), done
	}
	done = stream(r.Context())
	defer keep(r.Context())()
	return do(s, w, r), done
}

// checkQuery refuses values of which it would be hard to see that they mean nothing.
func checkQuery(v url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if n := len(v[name]); n > 1 {
			return fmt.Errorf("%.20q is given %d times; give it once", name, n)
		}
	}
	if scope := v.Get("scope"); scope != "" && scope != "host" && scope != "job" {
		return fmt.Errorf("scope=%.20q is neither host nor job", scope)
	}
	if follow := v.Get("follow"); follow != "" && follow != "0" && follow != "1" {
		return fmt.Errorf("follow=%.20q is neither 0 nor 1", follow)
	}
	return nil
}

// handlers are what answers, by paths.
var handlers = map[string]func(*Server, http.ResponseWriter, *http.Request) reply{
	"/": (*Server).page, "/status.css": (*Server).asset, "/status.js": (*Server).asset,
	"/healthz": (*Server).healthz, "/readyz": (*Server).readyz, "/metrics": (*Server).scrape,
	"/v1/state": (*Server).stateJSON, "/v1/logs": (*Server).logs,
}

// healthz reports whether the agent makes progress, by Source.Alive alone: the phase is only
// shown.
func (s *Server) healthz(_ http.ResponseWriter, r *http.Request) reply {
	last := s.cfg.Source.Alive()
	phase := jobstate.Phase("not known")
	if snap, _ := s.shown.state.get(r.Context(), s.shown.patience); snap != nil {
		phase = snap.source.Job.Phase
	}
	age := max(0, time.Since(last))
	status, is := http.StatusOK, "alive"
	switch {
	case last.IsZero():
		return textReply(http.StatusServiceUnavailable, "dead: the agent has made no progress yet; phase: %s", phase)
	case age > s.cfg.Timeout:
		status, is = http.StatusServiceUnavailable, "dead"
	}
	return textReply(status, "%s: the agent's last progress was %s ago, the limit is %s; phase: %s",
		is, span(age), span(s.cfg.Timeout), phase)
}

// staleAfter is how old a State may be that says that workers run.
const staleAfter = 5 * time.Second

// readyz reports whether the workers run.
func (s *Server) readyz(_ http.ResponseWriter, r *http.Request) reply {
	snap, at := s.shown.state.get(r.Context(), s.shown.patience)
	if snap == nil {
		return busy("not ready: the state of the job is not known yet")
	}
	job := &snap.source.Job
	switch {
	case time.Since(at) > s.cfg.Refresh+staleAfter:
		return textReply(http.StatusServiceUnavailable, "not ready: the agent has not reported the job's state for %s",
			span(time.Since(at)))
	case !job.Runs():
		return textReply(http.StatusServiceUnavailable, "not ready: phase: %s, state: %s", job.Phase, job.State)
	}
	return textReply(http.StatusOK, "ready: %s run, round %d, %s used", text.Count(len(snap.source.Workers), "worker"),
		job.Round, text.Count(job.Restarts, "restart"))
}

func (s *Server) scrape(_ http.ResponseWriter, r *http.Request) reply {
	body, at := s.shown.metrics.get(r.Context(), s.shown.patience)
	if at.IsZero() {
		return busy("there are no metrics yet")
	}
	return reply{http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", body}
}

func (s *Server) stateJSON(_ http.ResponseWriter, r *http.Request) reply {
	snap := s.view(r)
	if snap == nil {
		return busy("the state of the job is not known yet")
	}
	body := snap.json()
	if body == nil {
		return textReply(http.StatusInternalServerError,
			"internal error: the state of the job has no JSON form; the agent's log says more")
	}
	return reply{http.StatusOK, "application/json", body}
}

// What /v1/logs returns at most.
const (
	maxLogLines = 1000
	maxLogBytes = 256 << 10
)

// logs returns the end of a worker's log. Which file that is, the Source says.
func (s *Server) logs(_ http.ResponseWriter, r *http.Request) reply {
	q := r.URL.Query()
	rank, err := strconv.Atoi(q.Get("rank"))
	if err != nil {
		return textReply(http.StatusBadRequest, "rank %q is not a number; ask for /v1/logs?rank=0&stream=stdout",
			q.Get("rank"))
	}
	n := 200
	if v := q.Get("lines"); v != "" {
		if n, err = strconv.Atoi(v); err != nil || n < 1 || n > maxLogLines {
			return textReply(http.StatusBadRequest, "lines=%q is not a number from 1 to %d", v, maxLogLines)
		}
	}
	stream := q.Get("stream")
	if stream != "" && stream != "stdout" && stream != "stderr" {
		return textReply(http.StatusBadRequest, "stream %q is neither stdout nor stderr", stream)
	}
	snap, _ := s.shown.state.get(r.Context(), s.shown.patience)
	if snap == nil {
		return busy("the state of the job is not known yet")
	}
	if w := snap.source.Worker(rank); w != nil {
		return s.logOf(w, stream, n)
	}
	if !s.wholeJob(r) {
		return textReply(http.StatusNotFound, "rank %d does not run on this host", rank)
	}
	if snap = s.view(r); snap != nil {
		if w := snap.whole().Worker(rank); w != nil {
			return s.passOn(r, w.GroupRank)
		}
	}
	return textReply(http.StatusNotFound, "rank %d does not run on any host that answers", rank)
}

func (s *Server) logOf(w *jobstate.Worker, stream string, n int) reply {
	path := w.Stdout
	if stream == "stderr" {
		path = w.Stderr
	}
	if path == "" {
		return textReply(http.StatusNotFound, "this stream of rank %d is not kept in a file; start the job with "+
			"--redirects or --tee to keep it", w.Rank)
	}
	body, err := safeopen.Tail(path, n, maxLogBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return textReply(http.StatusNotFound, "the log of rank %d is gone, or not there yet", w.Rank)
	case err != nil:
		s.cfg.Logger.Debug("a log cannot be shown", "rank", w.Rank, "error", err)
		return textReply(http.StatusInternalServerError, "the log of rank %d cannot be read", w.Rank)
	}
	return reply{http.StatusOK, plain, body}
}

func (s *Server) page(_ http.ResponseWriter, r *http.Request) reply {
	snap := s.view(r)
	if snap == nil {
		return busy("the state of the job is not known yet")
	}
	return reply{http.StatusOK, "text/html; charset=utf-8", snap.html()}
}

// A snapshot is what the Source said at one moment, and what is made of it for those
// who ask, all of whom share it: once, and only what somebody asks for. Nobody changes it.
type snapshot struct {
	source     *jobstate.State        // as it was given, and the Source may still read it
	whole      func() *jobstate.State // as it is shown
	json, html func() []byte
}

func (v *jobView) newSnapshot(source *jobstate.State, others jobstate.Others) *snapshot {
	whole := sync.OnceValue(func() *jobstate.State { return source.Shown(v.cfg.Source.GPUs(gpuWait), others) })
	return &snapshot{
		source: source, whole: whole,
		json: sync.OnceValue(func() []byte {
			body, err := json.Marshal(whole())
			if err != nil {
				v.cfg.Logger.Warn("the state of the job has no JSON form", "error", err)
				return nil
			}
			return append(body, '\n')
		}),
		html: sync.OnceValue(func() []byte { return renderPage(whole()) }),
	}
}
