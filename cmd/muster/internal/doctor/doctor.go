package doctor

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/rendezvous"
)

// A Status says how bad a line is.
type Status string

// The statuses, in rising order.
const (
	OK      Status = "ok"
	Warning Status = "warning"
	Failure Status = "failure"
)

// severity orders statuses.
var severity = map[Status]int{OK: 0, Warning: 1, Failure: 2}

// A Line is what one check has found.
type Line struct {
	Group  string `json:"group"` // network, host, Python or GPUs
	Check  string `json:"check"`
	Status Status `json:"status"`
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"` // what to do about it
}

// A Report is what all checks have found on one host.
type Report struct {
	Host   string `json:"host"`
	Status Status `json:"status"` // the worst of the lines'
	Lines  []Line `json:"lines"`
}

// DefaultWait is how long doctor waits for the other hosts.
const DefaultWait = time.Minute

// Config says what the job will be like. Its maker, the command line, has checked it.
type Config struct {
	// Backend is the rendezvous of the job, by which the hosts meet.
	Backend string
	// Host and Port are the endpoint's. "" means that the job has none: one host.
	Host string
	Port int
	// Members are the endpoints (host:port) of an etcd cluster or a quorum.
	Members []string
	// MinNodes and MaxNodes are the job's.
	MinNodes, MaxNodes int
	// RunID keeps the doctors of two jobs apart that share an endpoint.
	RunID string
	// LocalAddr is --local-addr.
	LocalAddr string
	// Settings are those of --rdzv-conf.
	Settings rendezvous.Settings

	// Workers are those of this host.
	Workers Workers
	// Python is the interpreter of the workers.
	Python Python
	// LogDir is where log files go; "" means $TMPDIR, /dev/null nowhere.
	LogDir string
	// HealthCheck is the site's own check, a command for sh.
	HealthCheck string

	// Wait is how long to wait for the other hosts. 0 means DefaultWait.
	Wait time.Duration
	// Progress gets a line now and then while others are waited for. nil: nobody.
	Progress io.Writer
	// System is the machine. nil means the real one.
	System *System
	// Logger gets what the rendezvous has to say. nil means slog.Default().
	Logger *slog.Logger
}

// Workers says how many there are on this host. Word is what was asked for ("gpu"), if that is
// no number, and Err why it could not be made one.
type Workers struct {
	Count int
	Word  string
	Err   error
}

// Python is an interpreter, or why there is none. Both are empty if the job needs none.
type Python struct {
	Path string
	Err  error
}

// many reports whether other hosts take part.
func (cfg *Config) many() bool { return cfg.MaxNodes > 1 }

// A doctor is one Run.
type doctor struct {
	Config
	hostname string
	ifaces   []Interface
}

// A check is one part of the examination.
type check struct {
	group, name string
	limit       time.Duration // after which it counts as hanging
	run         func(ctx context.Context) []Line
}

// Run examines the host, and the job's network if others do the same. It returns when
// all checks have ended or run out of time, or soon after ctx is done.
func Run(ctx context.Context, cfg Config) *Report {
	cfg.System = cmp.Or(cfg.System, Real())
	cfg.Wait = cmp.Or(cfg.Wait, DefaultWait)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	d := &doctor{Config: cfg}
	d.hostname, _ = cfg.System.Hostname() // names says what is wrong with it
	d.ifaces, _ = cfg.System.Interfaces() // interfaces says so
	checks := []check{
		{"network", "names", 20 * time.Second, d.checkNames},
		{"network", "interfaces", 10 * time.Second, d.checkInterfaces},
		{"network", "endpoint", cfg.Wait + 4*time.Minute, d.checkMeeting},
		{"host", "limits", 10 * time.Second, d.checkLimits},
		{"host", "memory", 10 * time.Second, d.checkMemory},
		{"host", "shared memory", 10 * time.Second, d.checkShm},
		{"host", "log directory", 15 * time.Second, d.checkLogDir},
		{"host", "temporary files", 15 * time.Second, d.checkTmp},
		{"host", "control groups", 10 * time.Second, d.checkCgroup},
		{"host", "health check", 10 * time.Minute, d.checkHealth},
		{"Python", "Python", 90 * time.Second, d.checkPython},
		{"GPUs", "GPUs", 45 * time.Second, d.checkGPUs},
	}
	found := make([][]Line, len(checks))
	var all sync.WaitGroup
	for i, c := range checks {
		all.Go(func() { found[i] = c.within(ctx) })
	}
	all.Wait()
	report := &Report{Host: d.hostname, Status: OK, Lines: slices.Concat(found...)}
	for _, l := range report.Lines {
		if severity[l.Status] > severity[report.Status] {
			report.Status = l.Status
		}
	}
	return report
}

// within runs a check for as long as it may take, and fills in where its lines belong.
// A system call that never returns, as of a file system whose server is gone, keeps its
// goroutine: there is no way to end it but the program's end, which is near.
func (c check) within(job context.Context) (lines []Line) {
	ctx, cancel := context.WithTimeout(job, c.limit)
	defer cancel()
	done := make(chan []Line, 1)
	go func() { done <- c.run(ctx) }()
	select {
	case lines = <-done:
	case <-ctx.Done():
		select {
		case lines = <-done: // the check noticed, and knows more
		case <-time.After(time.Second):
			lines = []Line{failure("no result within "+c.limit.String(),
				"something hangs: look for a file system or a device that does not answer (dmesg)")}
		}
	}
	failed := func(l Line) bool { return l.Status == Failure }
	if job.Err() != nil && slices.ContainsFunc(lines, failed) { // the interrupt's doing, most likely
		lines = append(slices.DeleteFunc(lines, failed), failure("interrupted", ""))
	}
	for i := range lines {
		lines[i].Group = c.group
	}
	return named(c.name, lines)
}

// named names the lines that have no check's name yet.
func named(check string, lines []Line) []Line {
	for i := range lines {
		lines[i].Check = cmp.Or(lines[i].Check, check)
	}
	return lines
}

// checkHealth runs the site's own check.
func (d *doctor) checkHealth(ctx context.Context) []Line {
	if d.HealthCheck == "" {
		return nil
	}
	start := time.Now()
	job := launch.Config{HealthCheck: d.HealthCheck}
	if err := job.CheckHealth(ctx); err != nil {
		return []Line{failure(err.Error(),
			"fix what the check reports; until then `muster run --health-check` keeps this host out of the job")}
	}
	return []Line{ok("%s: passed in %s", text.Clip(d.HealthCheck, 80), round(time.Since(start)))}
}

func ok(format string, a ...any) Line { return Line{Status: OK, Text: fmt.Sprintf(format, a...)} }

func warning(text, advice string) Line { return Line{Status: Warning, Text: text, Advice: advice} }

func failure(what, advice string) Line {
	return Line{Status: Failure, Text: text.AsOptions.Replace(what), Advice: advice}
}

// as names a line after another check.
func (l Line) as(check string) Line {
	l.Check = check
	return l
}

// worse is failure where the job has several hosts, else a warning.
func (cfg *Config) worse(text, advice string) Line {
	if cfg.many() {
		return failure(text, advice)
	}
	return warning(text, advice)
}

// interfaceOf returns the interface that has an address, the zero Interface if none has.
func (d *doctor) interfaceOf(addr netip.Addr) Interface {
	i := slices.IndexFunc(d.ifaces, func(i Interface) bool { return slices.Contains(i.Addrs, addr) })
	if i < 0 {
		return Interface{}
	}
	return d.ifaces[i]
}
