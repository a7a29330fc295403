package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/policy"
)

const policyUsage = `usage: muster policy check FILE
       muster policy test [--max-restarts N] [--json] FILE EVENTS

check says what is wrong with a restart policy (see muster run --restart-policy), each
error with its line, and what is in it.

test goes through the failures of jobs that have run and says what the policy would
have decided: which rule matches, what follows, after how long, what is left of the
rule's budget. EVENTS is the file of --event-log-handler file or --event-log-file, - for
standard input. Where the policy would have ended a job, the failures after that are
shown in parentheses.

  --max-restarts N  as with muster run; default: the policy's max_restarts, or what the
                    job had
  --json            print a line of JSON for each failure
`

// policyCommand is `muster policy`.
func policyCommand(_ context.Context, c *command, args []string) error {
	req := parsePolicy(c, args)
	if err := c.refused(); err != nil {
		return err
	}
	p, err := loadPolicy(req.file)
	if err != nil {
		return err
	}
	if req.events == "" {
		return checkPolicy(c.stdout, p)
	}
	in := io.Reader(c.stdin)
	if req.events != "-" {
		f, err := openEventFile(req.events)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	return req.replay(p, in, c.stdout, c.stderr)
}

// A policyRequest is what `muster policy` was asked for.
type policyRequest struct {
	file, events string // events is "" for check
	maxRestarts  int    // -1 if it is not given
	json         bool
}

func parsePolicy(c *command, args []string) (req policyRequest) {
	if len(args) == 0 {
		c.wrong("policy needs to know what to do; give check or test")
		return req
	}
	want := "a policy file"
	req.maxRestarts = -1
	what, args := args[0], args[1:]
	switch what {
	case "check":
	case "test":
		want = "a policy file and a file of events"
		c.number("max-restarts", &req.maxRestarts, 0, math.MaxInt32)
		c.BoolVar(&req.json, "json", false, "")
	case "help", "--help", "-h":
		c.errs = append(c.errs, flag.ErrHelp)
		return req
	default:
		c.wrong("policy does not know %s; give check or test", quote(what))
		return req
	}
	switch rest, ok := c.arguments(args); {
	case !ok:
	case what == "check" && len(rest) == 1:
		req.file = rest[0]
	case what == "test" && len(rest) == 2:
		req.file, req.events = rest[0], rest[1]
	default:
		c.wrong("policy %s takes %s, got %s; write muster policy %s FILE%s", what, want, text.Count(len(rest), "argument"), what, map[bool]string{true: " EVENTS"}[what == "test"])
	}
	return req
}

// loadPolicy is policy.Load with the file in each error.
func loadPolicy(file string) (*policy.Policy, error) {
	p, err := policy.Load(file)
	if err != nil {
		return nil, unreadable(file, "a policy", err)
	}
	return p, nil
}

// restartPolicy reads --restart-policy. Its max_restarts counts where nobody has said
// another number.
func (r *reader) restartPolicy(cfg *launch.Config) {
	const name = "restart-policy"
	file := r.text(name)
	if file == "" {
		return
	}
	p, err := loadPolicy(file)
	if err != nil {
		r.bad(name, err)
		return
	}
	cfg.Policy = p
	if p.MaxRestarts >= 0 && !r.isGiven("max-restarts") {
		cfg.MaxRestarts = p.MaxRestarts
	}
	for _, note := range p.Notes(cfg.MaxRestarts) {
		r.warn("--%s: %s", name, note)
	}
}

// checkPolicy prints what is in a policy, and what may be wrong with it.
func checkPolicy(w io.Writer, p *policy.Policy) error {
	var b strings.Builder
	restarts, most := "as many restarts as --max-restarts says", math.MaxInt
	if p.MaxRestarts >= 0 {
		restarts, most = text.Count(p.MaxRestarts, "restart"), p.MaxRestarts
	}
	fmt.Fprintf(&b, "%s: %s, %s\n", p.File, text.Count(len(p.Rules), "rule"), restarts)
	for i := range p.Rules {
		fmt.Fprintf(&b, "  %s (line %d): %s\n", p.Rules[i].Name, p.Rules[i].Line, ruleText(&p.Rules[i]))
	}
	fmt.Fprintf(&b, "  all others: %s\n", ruleText(&p.Default))
	if n := p.NoProgress; n != nil {
		fmt.Fprintf(&b, "  no progress: stop after %s\n", text.Count(n.Restarts, "restart"))
	}
	for _, note := range p.Notes(most) {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ruleText says what a rule does.
func ruleText(r *policy.Rule) string {
	s := string(r.Action)
	if r.All {
		s += " all"
	}
	if r.Budget != nil {
		s += ", at most " + r.Budget.String()
	}
	if b := r.Backoff; b != nil {
		s += fmt.Sprintf(", after %v up to %v", b.Initial, b.Max)
	}
	return s
}

// openEventFile opens a file without waiting for a FIFO's writer.
func openEventFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		f.Close()
		return nil, fmt.Errorf("%s is a directory; the file in it is %s", path, events.FileName)
	}
	return f, nil
}

// attemptLine is a line with an attempt that failed.
type attemptLine struct {
	Name      string              `json:"name"`
	Timestamp int64               `json:"timestamp"`
	Metadata  events.AttemptEvent `json:"metadata"`
}

// maxEventLine bounds a line of an event file; torch's events hold whole tracebacks.
const maxEventLine = 4 << 20

// replay decides about the failures of a file of events.
func (req *policyRequest) replay(p *policy.Policy, in io.Reader, stdout, stderr io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxEventLine)
	jobs := map[string]*replayedJob{}
	var order []string
	broken := 0
	for lines.Scan() {
		var l attemptLine
		if err := json.Unmarshal(lines.Bytes(), &struct {
			Name *string `json:"name"`
		}{&l.Name}); err != nil {
			broken++
			continue
		}
		if l.Name != events.AttemptFailed {
			continue
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			broken++
			continue
		}
		id := l.Metadata.RunID
		if jobs[id] == nil {
			jobs[id] = newReplayedJob(p, id, cmp.Or(req.given(), p.MaxRestarts+1, l.Metadata.MaxRestarts+1)-1)
			order = append(order, id)
		}
		jobs[id].decide(&l)
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s: a line has more than %d MiB; is this a file of events?", req.events, maxEventLine>>20)
	case err != nil:
		return fmt.Errorf("%s: %w", req.events, err)
	}
	if broken > 0 {
		fmt.Fprintf(stderr, "muster policy: %s: %s that cannot be read; passed over\n", req.events, text.Count(broken, "line"))
	}
	if len(order) == 0 {
		return fmt.Errorf("%s: there is no failed attempt (%s) in it; muster run --event-log-handler file records them", req.events, events.AttemptFailed)
	}
	for i, id := range order {
		if err := jobs[id].print(stdout, req.json, i > 0); err != nil {
			return err
		}
	}
	return nil
}

// given is one more than --max-restarts; 0 if it is not given.
func (req *policyRequest) given() int { return req.maxRestarts + 1 }

// A replayedJob is a job's failures, decided about once more.
type replayedJob struct {
	id       string
	engine   *policy.Engine
	policy   *policy.Policy
	max      int
	restarts int
	over     bool // the policy would have ended it
	rows     []replayedFailure
}

// A replayedFailure is one of them.
type replayedFailure struct {
	Time     time.Time     `json:"time"`
	RunID    string        `json:"run_id"`
	Host     string        `json:"host"`
	Rank     int           `json:"rank"` // -1: a host was lost
	Failure  string        `json:"failure"`
	Action   policy.Action `json:"action"` // empty: no rule applies
	Rule     string        `json:"rule"`
	Source   string        `json:"source"`
	Why      string        `json:"why,omitempty"`
	Delay    float64       `json:"delay_seconds"`
	Budget   int           `json:"budget_left"` // -1: the rule has none
	Restarts int           `json:"restarts"`    // of the job, after it
	After    bool          `json:"after_the_end"`
}

func newReplayedJob(p *policy.Policy, id string, restarts int) *replayedJob {
	return &replayedJob{id: id, policy: p, max: restarts, engine: &policy.Engine{Policy: p, MaxRestarts: restarts, Rand: rand.New(rand.NewPCG(1, 1))}}
}

func (j *replayedJob) decide(l *attemptLine) {
	m := &l.Metadata
	f := policy.Failure{
		Cause: m.Cause, ExitCode: m.ExitCode, Host: cmp.Or(m.Host, m.Hostname), Role: m.Role,
		Stderr: policy.Tail([]byte(m.Stderr)), Restarts: j.restarts, Ran: time.Duration(min(max(m.Ran, 0), 1e12)) * time.Millisecond,
		Progress: policy.Progress{Step: m.Step, Files: m.Files},
	}
	now := time.UnixMilli(l.Timestamp)
	d := j.engine.Decide(f, now)
	j.engine.Record(d)
	row := replayedFailure{
		Time: now, RunID: j.id, Host: f.Host, Rank: -1, Failure: failureText(&f), Action: d.Action, Rule: d.Rule, Source: d.Source,
		Why: d.Why, Delay: d.Delay.Seconds(), Budget: d.Budget, After: j.over,
	}
	if m.Rank != nil {
		row.Rank = *m.Rank
	}
	if d.Action == policy.Retry && f.Cause != failure.CauseHostLost {
		j.restarts++
	}
	row.Restarts = j.restarts
	j.over = j.over || d.Action == policy.Stop
	j.rows = append(j.rows, row)
}

// failureText is a failure in a few words.
func failureText(f *policy.Failure) string {
	switch {
	case f.Cause == failure.CauseExitCode:
		return fmt.Sprintf("exit code %d", f.ExitCode)
	case f.Cause == failure.CauseSignal:
		return failure.Signal(-f.ExitCode).String()
	}
	return string(f.Cause)
}

// print writes the table of a job, or its lines of JSON.
func (j *replayedJob) print(w io.Writer, asJSON, next bool) error {
	var b strings.Builder
	if asJSON {
		for _, row := range j.rows {
			line, err := json.Marshal(row)
			if err != nil {
				return err
			}
			b.Write(append(line, '\n'))
		}
		_, err := io.WriteString(w, b.String())
		return err
	}
	if next {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "job %s, %s:\n", text.Line(j.id, maxCell), text.Count(j.max, "restart"))
	table := [][]string{{"TIME", "HOST", "RANK", "FAILURE", "RULE", "DECISION", "DELAY", "BUDGET", "WHY"}}
	for _, row := range j.rows {
		table = append(table, row.cells())
	}
	_ = writeColumns(&b, "  ", math.MaxInt, table) // a Builder takes all
	fmt.Fprintf(&b, "%s\n", j.summary())
	_, err := io.WriteString(w, b.String())
	return err
}

// maxCell bounds what a file says, in a table, in runes.
const maxCell = 64

func (row *replayedFailure) cells() []string {
	cells := []string{row.Time.Format("2006-01-02 15:04:05"), text.Line(row.Host, maxCell), "-", text.Line(row.Failure, maxCell), cmp.Or(text.Line(row.Rule, maxCell), "-"), string(cmp.Or(row.Action, "as without")), "-", "-", row.Why}
	if row.Rank >= 0 {
		cells[2] = fmt.Sprint(row.Rank)
	}
	if row.Delay > 0 {
		cells[6] = time.Duration(row.Delay * float64(time.Second)).Round(time.Millisecond).String()
	}
	if row.Budget >= 0 {
		cells[7] = fmt.Sprintf("%d left", row.Budget)
	}
	if row.After {
		cells[5] = "(" + cells[5] + ")"
	}
	return cells
}

// summary says how the job would have gone.
func (j *replayedJob) summary() string {
	end := slices.IndexFunc(j.rows, func(r replayedFailure) bool { return r.Action == policy.Stop })
	if end < 0 {
		return fmt.Sprintf("%s, %s; the policy would not have stopped the job", text.Count(len(j.rows), "failure"), text.Count(j.restarts, "restart"))
	}
	r := j.rows[end]
	return fmt.Sprintf("the policy would have stopped the job at failure %d of %d, by rule %s of %s", end+1, len(j.rows), text.Line(r.Rule, maxCell), r.Source)
}
