package doctor

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

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

// rank orders statuses.
func (s Status) rank() int {
	switch s {
	case Failure:
		return 2
	case Warning:
		return 1
	}
	return 0
}

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

// Config says what the job will be like. It is checked by whoever makes it: the
// command line.
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

	// Workers is the number of workers on this host; WorkersErr why it is not known,
	// WorkersWord what was asked for ("gpu").
	Workers     int
	WorkersErr  error
	WorkersWord string
	// Python is the interpreter of the workers, PythonErr why there is none. Both
	// are empty if the job needs none.
	Python    string
	PythonErr error
	// LogDir is where log files go; "" means $TMPDIR, /dev/null nowhere.
	LogDir string
	// HealthCheck is the site's own check, a command for sh.
	HealthCheck string

	// Peer is host:port of a doctor that listens, to be tried; "" for none.
	Peer string
	// Wait is how long to wait for the other hosts. 0 means DefaultWait.
	Wait time.Duration
	// Progress gets a line now and then while others are waited for. nil: nobody.
	Progress io.Writer
	// System is the machine. The zero System's fields are filled in by Real.
	System System
	// Logger gets what the rendezvous has to say. nil means slog.Default().
	Logger *slog.Logger
}

// many says whether other hosts take part.
func (cfg *Config) many() bool { return cfg.MaxNodes > 1 }

// A doctor is one Run.
type doctor struct {
	Config
	hostname string
	ifaces   []Interface
	quiet    chan struct{} // closed when nothing else keeps the machine busy
	log      *slog.Logger
}

// A check is one part of the examination.
type check struct {
	group, name string
	limit       time.Duration // after which it counts as hanging
	run         func(ctx context.Context) []Line
}

// Names of the groups.
const (
	groupNetwork = "network"
	groupHost    = "host"
	groupPython  = "Python"
	groupGPUs    = "GPUs"
)

// Run examines the host, and the job's network if others do the same. It returns when
// all checks have ended or run out of time, or soon after ctx is done.
func Run(ctx context.Context, cfg Config) *Report {
	cfg.System = cfg.System.orReal()
	if cfg.Wait == 0 {
		cfg.Wait = DefaultWait
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	d := &doctor{Config: cfg, quiet: make(chan struct{}), log: cfg.Logger}
	d.hostname, _ = cfg.System.Hostname() // names says what is wrong with it
	d.ifaces, _ = cfg.System.Interfaces() // interfaces says so
	local := []check{
		{groupNetwork, "names", 20 * time.Second, d.checkNames},
		{groupNetwork, "interfaces", 10 * time.Second, d.checkInterfaces},
	}
	meeting := check{groupNetwork, "endpoint", cfg.Wait + 4*time.Minute, d.checkMeeting}
	local = append(local,
		check{groupHost, "limits", 10 * time.Second, d.checkLimits},
		check{groupHost, "memory", 10 * time.Second, d.checkMemory},
		check{groupHost, "shared memory", 10 * time.Second, d.checkShm},
		check{groupHost, "log directory", 15 * time.Second, d.checkLogDir},
		check{groupHost, "temporary files", 15 * time.Second, d.checkTmp},
		check{groupHost, "control groups", 10 * time.Second, d.checkCgroup},
		check{groupHost, "tracing", 10 * time.Second, d.checkTracing},
		check{groupHost, "health check", 10 * time.Minute, d.checkHealth},
		check{groupPython, "Python", 90 * time.Second, d.checkPython},
		check{groupGPUs, "GPUs", 45 * time.Second, d.checkGPUs},
	)
	report := &Report{Host: d.hostname, Status: OK}
	found := make([][]Line, len(local))
	var together []Line
	var all, others sync.WaitGroup
	all.Go(func() { together = meeting.within(ctx) })
	for i, c := range local {
		others.Go(func() { found[i] = c.within(ctx) })
	}
	others.Wait()
	close(d.quiet)
	all.Wait()
	for i, lines := range found {
		if i == 2 {
			report.add(together)
		}
		report.add(lines)
	}
	return report
}

func (r *Report) add(lines []Line) {
	for _, l := range lines {
		if l.Status.rank() > r.Status.rank() {
			r.Status = l.Status
		}
		r.Lines = append(r.Lines, l)
	}
}

// within runs a check for as long as it may take. A system call that never returns,
// as of a file system whose server is gone, keeps its goroutine: there is no way to
// end it but the program's end, which is near.
func (c check) within(ctx context.Context) []Line {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	done := make(chan []Line, 1)
	go func() { done <- c.run(ctx) }()
	select {
	case lines := <-done:
		return c.fill(lines)
	case <-ctx.Done():
	}
	grace := time.NewTimer(time.Second)
	defer grace.Stop()
	select {
	case lines := <-done: // it has noticed, and knows more
		return c.fill(lines)
	case <-grace.C:
		return c.fill([]Line{failure("no result within "+c.limit.String(), "something hangs: look for a file system or a device that does not answer (dmesg)")})
	}
}

// fill names the lines after the check where they do not say otherwise.
func (c check) fill(lines []Line) []Line {
	for i := range lines {
		lines[i].Group = c.group
		if lines[i].Check == "" {
			lines[i].Check = c.name
		}
	}
	return lines
}

func ok(format string, a ...any) Line { return Line{Status: OK, Text: fmt.Sprintf(format, a...)} }

func warning(text, advice string) Line { return Line{Status: Warning, Text: text, Advice: advice} }

func failure(text, advice string) Line { return Line{Status: Failure, Text: text, Advice: advice} }

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

// interfaceOf returns the name of the interface that has an address, "" if none has.
func (d *doctor) interfaceOf(addr netip.Addr) string {
	for _, i := range d.ifaces {
		for _, a := range i.Addrs {
			if a == addr {
				return i.Name
			}
		}
	}
	return ""
}
