package accounts

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

// A Run is one host's part of a run.
type Run struct {
	Dir, Host      string
	Started, Ended time.Time
	Record
}

// A Report says where the time of all runs with one run ID went. All times are of whole milliseconds.
type Report struct {
	RunID    string    `json:"run_id"`
	Title    string    `json:"title,omitempty"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	Hosts    int       `json:"hosts"`    // in the largest run
	Workers  int       `json:"workers"`  // of these together
	Spent    Spent     `json:"spent_ms"` // of all workers; the sum is that of their wall clocks
	Prices   []Price   `json:"prices"`
	Runs     []HostRun `json:"runs"`               // by time
	Slow     []string  `json:"slow,omitempty"`     // the ranks for which others waited
	Problems []string  `json:"problems,omitempty"` // what could not be read
}

// A HostRun is where the time of one host's workers in one run went. The time since the run before
// is part of it.
type HostRun struct {
	Dir     string    `json:"dir"`
	Host    string    `json:"host"`
	Run     int       `json:"run"` // from 1; what several hosts do at one time is one
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Workers []Spent   `json:"workers_spent_ms"` // by local rank
}

// NewReport makes a report of the runs of all hosts.
func NewReport(runID string, runs []Run) *Report {
	r := &Report{RunID: runID, Spent: Spent{}}
	slices.SortStableFunc(runs, func(a, b Run) int { return a.Started.Compare(b.Started) })
	number, hosts, workers := 0, 0, 0
	var since time.Time             // the end of the run before
	ended := map[string]time.Time{} // when hosts last ended in a run
	for _, run := range runs {
		start, end := run.Started.Truncate(time.Millisecond), run.Ended.Truncate(time.Millisecond)
		if number == 0 || start.After(r.Ended) {
			number, hosts, workers, since = number+1, 0, 0, r.Ended
			clear(ended)
		}
		from := since
		if last, known := ended[run.Host]; known && !start.Before(last) { // it comes back
			from = last
		} else if hosts, workers = hosts+1, workers+run.Workers; number == 1 {
			from = start
		}
		if end.Before(start) {
			end = start
		}
		begin := []Mark{{At: from.UnixMilli(), Account: Requeue}, {At: start.UnixMilli(), Account: Agent}}
		record := Record{run.Workers, append(begin, run.Marks...)}
		spent, prices := record.Sum(from.UnixMilli(), end.UnixMilli())
		for _, m := range run.Marks {
			if m.Account == Slow && m.Cause != "" && !slices.Contains(r.Slow, m.Cause) {
				r.Slow = append(r.Slow, m.Cause)
			}
		}
		for i := range spent {
			r.Spent.add(spent[i])
		}
		for i := range prices {
			prices[i].Run = number
			r.Prices = addPrice(r.Prices, &prices[i])
		}
		r.Runs = append(r.Runs, HostRun{run.Dir, run.Host, number, from, end, spent})
		ended[run.Host] = end
		r.Hosts, r.Workers, r.Started = max(r.Hosts, hosts), max(r.Workers, workers), r.Runs[0].Started
		if end.After(r.Ended) {
			r.Ended = end
		}
	}
	return r
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s on %s in %s, %s of wall clock\n", cmp.Or(r.Title, "run "+r.RunID),
		text.Count(r.Workers, "worker"), text.Count(r.Hosts, "host"), text.Count(r.Runs[len(r.Runs)-1].Run, "run"),
		clock(r.Ended.Sub(r.Started).Milliseconds()))
	for _, problem := range r.Problems {
		fmt.Fprintf(&b, "  note: %s\n", problem)
	}
	total := r.Spent.Sum()
	fmt.Fprintf(&b, "\n  %-28s  %15s  %7s\n", "account", "worker time", "share")
	for _, a := range All {
		if ms := r.Spent[a]; ms != 0 {
			fmt.Fprintf(&b, "  %-28s  %15s  %6.2f%%\n", a.Words(), clock(ms), 100*float64(ms)/float64(total))
		}
	}
	fmt.Fprintf(&b, "  %-28s  %15s\n", "all, the sum of wall clocks", clock(total))
	if len(r.Slow) > 0 {
		fmt.Fprintf(&b, "  slow: %s\n", text.Line(strings.Join(r.Slow, ", "), 400))
	}
	b.WriteString("\n  until the workers worked, for each of them:\n")
	for i := range r.Prices {
		r.Prices[i].write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// write writes a price: "attempt_0  41.0 s: 30.0 of start and imports, 8.20 of work lost".
func (p *Price) write(b *strings.Builder) {
	what := text.Line(cmp.Or(p.Attempt, "begin"), 100) + fmt.Sprintf(" of run %d", p.Run)
	each := func(ms int64) time.Duration {
		return time.Duration(ms) * time.Millisecond / time.Duration(max(1, p.Workers))
	}
	whole, of := each(p.Spent.Sum()), []string(nil)
	accounts := slices.Clone(All[:])
	slices.SortStableFunc(accounts, func(x, y Account) int { return cmp.Compare(p.Spent[y], p.Spent[x]) })
	for i, a := range accounts {
		if d := each(p.Spent[a]); i == 0 || d > whole/100 {
			of = append(of, fmt.Sprintf("%s of %s", seconds(d), a.Words()))
		}
	}
	fmt.Fprintf(b, "    %-18s  %s s: %s\n", what, seconds(whole), strings.Join(of, ", "))
	if p.Cause != "" {
		fmt.Fprintf(b, "    %-18s  %s\n", "", text.Line(p.Cause, 400))
	}
}

// seconds writes seconds with three digits or more.
func seconds(d time.Duration) string {
	digits := 3
	for limit := time.Second; d >= limit && digits > 0; limit *= 10 {
		digits--
	}
	return fmt.Sprintf("%.*f", digits, d.Seconds())
}

// clock writes hours, minutes, seconds and milliseconds.
func clock(ms int64) string {
	return fmt.Sprintf("%d:%02d:%02d.%03d", ms/3_600_000, ms/60_000%60, ms/1000%60, ms%1000)
}
