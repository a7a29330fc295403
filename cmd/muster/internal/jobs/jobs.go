// Package jobs has the commands about a job: on one that runs, by asking its agents (ps, stop, restart,
// signal, top, dump), and on the files of any (logs, report, bundle).
package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/wait/parallel"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/internal/wire/http10"
	"github.com/muster-run/muster/internal/wire/unixsock"
)

const (
	// fetchTimeout is how long an agent has to answer.
	fetchTimeout = 5 * time.Second
	// fetchAgain is how long one that says that it has no answer yet, or too much to do, is asked
	// again, each fetchPause.
	fetchAgain = 3 * time.Second
	fetchPause = 100 * time.Millisecond
	// passTimeout is the same where it asks all others first, of whom many may hang.
	passTimeout = 10 * time.Second
	// maxState bounds an answer: a State with all that it may have is smaller.
	maxState = 48 << 20
	// maxOthers bounds the answer of another user's agent, who may mean root ill: a State of
	// 1,000 workers with their last lines, of 100 characters, is smaller.
	maxOthers = 4 << 20
)

// A job is one agent: on this host by the socket of its user, or where its --health-addr is.
type job struct {
	unixsock.Agent
	addr  string // in place of the socket
	state *jobstate.State
	err   error        // why there is no state
	done  *health.Done // what it has been asked to do
}

// runID is what is known of it.
func (j *job) runID() string {
	if j.state == nil {
		return j.Name
	}
	return j.state.Job.RunID
}

// name is the job's for people.
func (j *job) name() string {
	if j.addr != "" {
		return "the agent at " + j.addr
	}
	return fmt.Sprintf("job %s (pid %d)", console.Quote(j.runID()), j.PID)
}

// userName is a user's name, or the number where it has no name.
func userName(uid int) string {
	number := strconv.Itoa(uid)
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}

// askFor sends a request to the job's agent, which has a limit of time to answer.
func (j *job) askFor(ctx context.Context, method, path string, limit time.Duration) (body []byte, err error) {
	late := fmt.Errorf("no answer within %v", limit)
	if p, _ := procfs.Read(j.PID); p.State == 'T' {
		limit, late = time.Second, fmt.Errorf("its agent is stopped (state T in /proc) and gets what it is asked for when "+
			"it goes on; run kill -CONT %d", j.PID)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	conn, err := j.dial(ctx)
	if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e.Err
	}
	if err == nil {
		defer conn.Close()
		limit := int64(maxState)
		if j.addr == "" && j.UID != os.Geteuid() {
			limit = maxOthers
		}
		body, err = http10.Ask(ctx, conn, method, path, limit)
	}
	if _, ok := errors.AsType[*http10.HeadError](err); ok && j.addr != "" {
		err = fmt.Errorf("%w; is this the address of --health-addr?", err)
	}
	if refused, ok := errors.AsType[*http10.StatusError](err); ok && j.addr == "" {
		err = refusedHere{refused}
	} else if j.addr == "" && ended(err) {
		err = errAgentEnded
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return body, err
}

// A refusedHere is what an agent of this host says in place of an answer.
type refusedHere struct{ *http10.StatusError }

func (r refusedHere) Error() string { return r.Said }

func (r refusedHere) Unwrap() error { return r.StatusError }

var errAgentEnded = errors.New("its agent has ended")

// ended reports whether nobody listens at an agent's socket any more.
func ended(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}

func (j *job) dial(ctx context.Context) (net.Conn, error) {
	if j.addr == "" {
		return j.Dial(ctx)
	}
	network, address, err := health.ParseAddr(j.addr)
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

// fetch asks for the state of the job on all hosts or, with ofHost, on the agent's alone.
func (j *job) fetch(ctx context.Context, ofHost bool) {
	var state *jobstate.State
	path := "/v1/state"
	if ofHost {
		path += "?scope=host"
	}
	body, err := j.askFor(ctx, "GET", path, fetchTimeout)
	for began := time.Now(); isBusy(err) && time.Since(began) < fetchAgain && sleep.For(ctx, fetchPause) == nil; {
		body, err = j.askFor(ctx, "GET", path, fetchTimeout)
	}
	if err == nil {
		state, err = jobstate.Parse(body)
	}
	if err != nil {
		j.err = fmt.Errorf("ask %s: %w", j.name(), err)
	}
	j.state = state
}

// isBusy reports whether an agent has said that it may answer in a moment.
func isBusy(err error) bool {
	refused, ok := errors.AsType[*http10.StatusError](err)
	return ok && strings.HasPrefix(refused.Status, "503")
}

// mostAtOnce is how many agents are asked at the same time.
const mostAtOnce = 32

// findJobs returns the jobs of this user on this host, for root those of all users, with their
// states. Agents that are not wanted are not asked.
func findJobs(ctx context.Context, ofHost bool, wanted func([]unixsock.Agent) []unixsock.Agent) ([]job, error) {
	agents, err := unixsock.Agents(ctx)
	var jobs []job
	for _, a := range wanted(agents) {
		jobs = append(jobs, job{Agent: a})
	}
	parallel.Map(len(jobs), mostAtOnce, func(i int) error {
		jobs[i].fetch(ctx, ofHost)
		return jobs[i].err
	})
	return jobs, err
}

// mayBe returns those agents that may be of the job that is meant, or else those of this user. A
// pid is one agent's alone: any user may have taken it for a run ID.
func mayBe(agents []unixsock.Agent, meant string) (found []unixsock.Agent) {
	for _, a := range agents {
		switch {
		case meant != "" && strconv.Itoa(a.PID) == meant:
			return []unixsock.Agent{a}
		case meant == "" && a.UID == os.Geteuid(), meant != "" && a.MayHave(meant):
			found = append(found, a)
		}
	}
	return found
}

// theJob returns the agents of the job that is meant, several if several agents of one job run
// on this host. With all it returns those of all jobs of this user. If no job is named, or there
// are several of the name, the error lists them.
func theJob(ctx context.Context, meant string, all bool) ([]job, error) {
	jobs, err := findJobs(ctx, true,
		func(agents []unixsock.Agent) []unixsock.Agent { return mayBe(agents, meant) })
	jobs = slices.DeleteFunc(jobs, func(j job) bool {
		return meant != "" && strconv.Itoa(j.PID) != meant && j.runID() != meant && j.state != nil
	})
	if len(jobs) == 0 {
		return nil, errors.Join(err, noJob(meant))
	}
	if !all && (meant == "" || several(jobs)) {
		return jobs, chooseOne(jobs, meant)
	}
	return jobs, nil
}

// several reports whether agents are of more than one job.
func several(jobs []job) bool {
	return slices.ContainsFunc(jobs[1:], func(j job) bool { return !jobs[0].isOf(&j) })
}

// isOf reports whether two agents are of one job. A job on one host has only one.
func (j *job) isOf(k *job) bool {
	one := j.UID == k.UID && j.runID() == k.runID()
	for _, s := range []*jobstate.State{j.state, k.state} {
		one = one && (s == nil || s.Job.MaxHosts != 1)
	}
	if !one || j.state == nil || k.state == nil {
		return one
	}
	a, b := &j.state.Job, &k.state.Job
	return a.Backend == b.Backend && a.Endpoint == b.Endpoint
}

// chooseOne asks for one of several jobs.
func chooseOne(jobs []job, meant string) error {
	list := "no job is named; name one by its run ID or pid:"
	if meant != "" {
		list = fmt.Sprintf("%d agents on this host have the run ID %s; name one by its pid:", len(jobs), console.Quote(meant))
	}
	for i := range jobs {
		list += "\n  " + jobs[i].name()
		if jobs[i].UID != os.Geteuid() {
			list += " of user " + userName(jobs[i].UID)
		}
	}
	return errors.New(list)
}

// noJob says that there is not the job that is meant, or none.
func noJob(meant string) error {
	if meant == "" {
		return errors.New("no job of this user runs on this host; run this on a host of the job, as the user who started " +
			"it (`muster ps` lists the jobs of a host)")
	}
	if uid, ok := unixsock.OwnerOf(meant); ok {
		return console.Refusal(fmt.Errorf("job %s belongs to user %s; run this command as that user, or as root",
			console.Quote(meant), userName(uid)), "")
	}
	return console.Refusal(fmt.Errorf("no job of %s on this host has the run ID or pid %s; `muster ps` lists the jobs",
		whose(), console.Quote(meant)), "")
}

// whose jobs this user may see.
func whose() string {
	if os.Geteuid() == 0 {
		return "any user"
	}
	return "this user"
}

// A psJob is a job as `muster ps --json` prints it.
type psJob struct {
	PID  int    `json:"pid"`
	User string `json:"user"`
	*jobstate.Job
	Host    *jobstate.Host `json:"host,omitempty"`
	Hosts   int            `json:"hosts,omitempty"` // of the round
	Ranks   []int          `json:"ranks,omitempty"` // global ranks on all hosts that answer
	Problem string         `json:"problem,omitempty"`
}

func Ps(ctx context.Context, c *command.Command, args []string) error {
	asJSON := c.Bool("json", false, "")
	c.AtMost(0, args)
	if err := c.Refused(); err != nil {
		return err
	}
	jobs, err := findJobs(ctx, false, func(agents []unixsock.Agent) []unixsock.Agent { return agents })
	if !*asJSON && len(jobs) == 0 {
		if err == nil {
			fmt.Fprintf(c.Stdout, "no job of %s runs on this host\n", whose())
		}
		return err
	}
	list := []psJob{}
	rows := [][]string{{"RUN ID", "PID", "USER", "HOSTS", "RANKS", "STATE", "RESTARTS", "UP", "SCRIPT"}}
	for i := range jobs {
		j := &jobs[i]
		p := psJob{PID: j.PID, User: userName(j.UID)}
		row := []string{text.Line(j.runID(), 80), strconv.Itoa(j.PID), text.Line(p.User, 40), "-", "-", "no answer", "-",
			"-", "-"}
		if s := j.state; s != nil {
			p.Job, p.Host, p.Hosts = &s.Job, &s.Host, len(s.Hosts)
			for _, w := range s.Workers {
				p.Ranks = append(p.Ranks, w.Rank)
			}
			up := "-" // it starts
			if !s.Job.Started.IsZero() {
				up = age(time.Now(), s.Job.Started)
			}
			row = append(row[:3], strconv.Itoa(max(1, p.Hosts)), cmp.Or(text.Line(text.Ranges(p.Ranks, ","), 80), "-"),
				psState(s), fmt.Sprintf("%d/%d", s.Job.Restarts, s.Job.MaxRestarts),
				up, text.Line(s.Job.Entrypoint, 80))
		} else {
			p.Problem = j.err.Error()
		}
		list, rows = append(list, p), append(rows, row)
	}
	if *asJSON {
		return errors.Join(err, writeJSON(c.Stdout, map[string]any{"version": 1, "jobs": list}))
	}
	if os.Geteuid() != 0 {
		for i := range rows {
			rows[i] = slices.Delete(rows[i], 2, 3)
		}
	}
	return errors.Join(err, text.Columns(c.Stdout, "", 40, rows))
}

// psState is how a job is, or that its part on this host only waits: for a place, or for the next
// round.
func psState(s *jobstate.State) string {
	if s.Host.GroupRank < 0 && len(s.Hosts) > 0 && len(s.Workers) > 0 {
		return "waiting"
	}
	return text.Line(string(s.Job.Phase), 40)
}

// stopPause is the time between two looks whether an agent has ended.
const stopPause = 100 * time.Millisecond

func Stop(ctx context.Context, c *command.Command, args []string) error {
	host, all, noWait := c.Bool("host", false, ""), c.Bool("all", false, ""), c.Bool("no-wait", false, "")
	console.Outlive()
	meant := c.AtMost(1, args)[0]
	if *all && meant != "" {
		c.Wrong("--all and a job exclude each other; leave one of them out")
	}
	return each(ctx, c, request{meant: meant, all: *all, path: "/v1/stop", host: *host}, func(j *job, done *health.Done) {
		hosts := ""
		if n := len(done.Hosts); n > 0 {
			hosts = fmt.Sprintf(" on %d hosts", n+1)
		}
		fmt.Fprintf(c.Stdout, "stopping %s%s\n", j.name(), hosts)
	}, func(j *job) error {
		for !*noWait {
			conn, err := j.Dial(ctx)
			switch {
			case err == nil:
				conn.Close()
			case ended(err):
				fmt.Fprintf(c.Stdout, "%s has stopped\n", j.name())
				return nil
			}
			if err := sleep.For(ctx, stopPause); err != nil {
				return err
			}
		}
		return nil
	})
}

func Restart(ctx context.Context, c *command.Command, args []string) error {
	return each(ctx, c, request{meant: c.AtMost(1, args)[0], path: "/v1/restart"}, func(j *job, _ *health.Done) {
		fmt.Fprintf(c.Stdout, "restarting the workers of %s\n", j.name())
	}, nil)
}

func Signal(ctx context.Context, c *command.Command, args []string) error {
	rank, host := -1, c.Bool("host", false, "")
	c.Number("rank", &rank, 0, 1<<30)
	given := c.AtMost(2, args)
	sig := text.ParseSignal(given[0])
	switch {
	case given[0] == "":
		c.Wrong("no signal; name one first, such as USR1")
	case sig <= 0:
		c.Wrong("%s is not a signal; want a name or number, such as USR1", console.Quote(given[0]))
	}
	query := url.Values{"signal": {strconv.Itoa(int(sig))}}
	if rank >= 0 {
		query.Set("rank", strconv.Itoa(rank))
	}
	reached := false
	req := request{meant: given[1], path: "/v1/signal", query: query, host: *host}
	err := each(ctx, c, req, func(_ *job, done *health.Done) {
		reached = true
		var to []string
		for _, w := range done.Workers {
			to = append(to, fmt.Sprintf("rank %d (pid %d)", w.Rank, w.PID))
			if len(done.Hosts) > 0 && w.Host != "" {
				to[len(to)-1] = fmt.Sprintf("rank %d (pid %d on %s)", w.Rank, w.PID, text.Line(w.Host, 80))
			}
		}
		fmt.Fprintf(c.Stdout, "sent %s to %s\n", text.SignalName(syscall.Signal(sig)), strings.Join(to, ", "))
	}, nil)
	if rank >= 0 && reached {
		return nil // no other agent has the rank
	}
	return err
}

// A request is what the agents of a job are to do.
type request struct {
	meant string // which job
	all   bool   // or all of this user
	path  string
	query url.Values
	host  bool // only the agents on this host
}

// each sends a request to one agent of each job that is meant, which passes it on to the agents
// on other hosts, and to those agents on this host that it has not reached. It then waits for
// each agent of this host. Agents on other hosts that were not reached are an error.
func each(ctx context.Context, c *command.Command, req request, done func(*job, *health.Done),
	wait func(*job) error) error {
	if err := c.Refused(); err != nil {
		return err
	}
	jobs, err := theJob(ctx, req.meant, req.all)
	if err != nil {
		return err
	}
	if req.path == "/v1/restart" {
		jobs = jobs[:1] // its other hosts hear of it, and its other agents here
	}
	var errs []error
	for i := range jobs {
		j := &jobs[i]
		query := url.Values{}
		maps.Copy(query, req.query)
		before := slices.IndexFunc(jobs[:i], func(k job) bool { return k.done != nil && k.isOf(j) })
		if before >= 0 && j.state != nil && slices.Contains(jobs[before].done.Hosts, j.state.Host.GroupRank) {
			continue
		}
		if before >= 0 || req.host {
			query.Set("scope", "host")
		}
		answer := &health.Done{}
		body, err := j.askFor(ctx, "POST", req.path+"?"+query.Encode(), passTimeout)
		if err == nil {
			err = json.Unmarshal(body, answer)
		} else if before >= 0 && req.path == "/v1/stop" && errors.Is(err, errAgentEnded) {
			err = nil // a spare: it ends with the job
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", j.name(), err))
			j.err = err
			continue
		}
		done(j, answer)
		j.done = answer
	}
	for i := range jobs {
		errs = append(errs, notReached(jobs, &jobs[i]))
	}
	for i := range jobs {
		if wait != nil && jobs[i].err == nil {
			errs = append(errs, wait(&jobs[i]))
		}
	}
	return errors.Join(errs...)
}

// notReached says which hosts of a job the request has not reached.
func notReached(jobs []job, j *job) error {
	if j.done == nil {
		return nil
	}
	var list []string
	for _, m := range j.done.Missing {
		if !slices.ContainsFunc(jobs, func(k job) bool {
			return k.done != nil && k.isOf(j) && k.state != nil && k.state.Host.GroupRank == m.GroupRank
		}) {
			list = append(list, fmt.Sprintf("group rank %d (%s)", m.GroupRank, text.Line(m.Why, 300)))
		}
	}
	if list == nil {
		return nil
	}
	return fmt.Errorf("other hosts of %s were not reached: %s", j.name(), strings.Join(list, ", "))
}
