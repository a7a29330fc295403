package runline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/cmd/muster/internal/doctor"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/rendezvous/c10d"
)

// A doctorRequest is what `muster doctor` was asked for beside the options of run.
type doctorRequest struct {
	json bool
	wait time.Duration
}

// Doctor is `muster doctor`.
func (p Program) Doctor(ctx context.Context, args []string) int {
	req, l, errs := parseDoctor(args)
	if l.asked("help") {
		return p.Print(command.Usage("doctor"))
	}
	cfg, bad := p.readDoctor(l, req)
	if errs = append(errs, bad...); len(errs) > 0 {
		return p.usage(errs)
	}
	report := doctor.Run(ctx, cfg)
	write := report.WriteText
	if req.json {
		write = report.WriteJSON
	}
	if err := write(p.Stdout); err != nil {
		p.Errorf("%v", err)
		return console.ExitError
	}
	if report.Status == doctor.Failure {
		return console.ExitError
	}
	return console.ExitOK
}

// parseDoctor takes a command line of run apart that has doctor's own options, too.
func parseDoctor(args []string) (req doctorRequest, l line, errs []error) {
	req.wait = doctor.DefaultWait
	wait := ""
	l, errs = (&lineParser{
		flags: map[string]*bool{"--json": &req.json},
		texts: map[string]*string{"--wait": &wait},
	}).parse(args)
	if wait != "" && command.ParseSeconds(wait, &req.wait, 3600) != nil {
		errs = append(errs, fmt.Errorf("--wait cannot be %s; want seconds, or a time such as 10m, more than 0 and at most "+
			"3600s", console.Quote(wait)))
	}
	return req, l, errs
}

// readDoctor makes doctor's configuration of the options of run.
func (p Program) readDoctor(l line, req doctorRequest) (doctor.Config, []error) {
	cfg := launch.Config{Env: p.env, Stdout: p.Stdout, Stderr: p.Stderr}
	bad := l.readConfig(cfg.LookupEnv)
	word := doctorDefaults(&l, cfg.LookupEnv)
	r, cfg, errs := p.options(l, cfg)
	errs = append(bad, errs...)
	errs = slices.DeleteFunc(errs, func(err error) bool { return errors.As(err, new(pythonError)) }) // a check says it
	if r.schedule != nil {
		fmt.Fprintf(p.Stderr, "%s: %s\n", p.Name, r.schedule)
	}
	logDir := cfg.Logs.Dir
	// What doctor says in lines of its own is not an error of the command line.
	cfg.Logs.Dir, cfg.Records.EventLogFile, cfg.Records.EventLogHandler = os.DevNull, "", ""
	if cfg.Workers.Entrypoint == "" {
		cfg.Workers.Entrypoint = "/bin/sh"
	}
	cfg, err := launch.Resolve(cfg)
	errs = append(errs, r.named(console.Split(err))...)
	settings, _ := cfg.Settings() // Resolve has reported it
	d := doctor.Config{
		Backend: cfg.Rendezvous.Backend, MinNodes: cfg.MinNodes, MaxNodes: cfg.MaxNodes, RunID: cfg.RunID,
		LocalAddr: cfg.Rendezvous.LocalAddr, Settings: settings, Workers: doctor.Workers{Count: cfg.NprocPerNode},
		LogDir:      logDir,
		HealthCheck: r.text("health-check"), Wait: req.wait, Progress: p.Stderr, Logger: cfg.Logger,
	}
	if !r.flag("no-python") || r.flag("run-path") {
		python, _, err := r.python()
		d.Python = doctor.Python{Path: python, Err: err}
	}
	if word != "" {
		r.errs = nil
		r.values["nproc-per-node"] = word
		count := r.nproc()
		d.Workers = doctor.Workers{Count: count, Word: word, Err: errors.Join(r.errs...)}
	}
	if len(errs) == 0 {
		errs = append(errs, meetingPoint(&d, &r, cfg)...)
	}
	return d, errs
}

// doctorDefaults changes what doctor does not take as run does: an endpoint alone means
// c10d, and a number of workers that only the devices know is looked up by a check. It
// returns the word for that number.
func doctorDefaults(l *line, lookup func(string) (string, bool)) (word string) {
	has := func(name string) bool { return len(l.sources(byName(name), lookup)) > 0 }
	if has("rdzv-endpoint") && !has("rdzv-backend") {
		l.given[byName("rdzv-backend")] = "c10d"
	}
	o := byName("nproc-per-node")
	if all := l.sources(o, lookup); len(all) > 0 {
		switch text := all[0].text; text {
		case "gpu", "xpu", "auto", "cpu":
			l.given[o] = "1"
			return text
		}
	}
	return ""
}

// meetingPoint fills in where the hosts meet.
func meetingPoint(d *doctor.Config, r *reader, cfg launch.Config) (errs []error) {
	backend, err := launch.FindBackend(cfg.Rendezvous.Backend)
	if err != nil {
		return append(errs, err)
	}
	if backend.Members != nil {
		d.Members, err = backend.Members(cfg.Rendezvous.Endpoint)
		return append(errs, console.Split(err)...)
	}
	d.Host, d.Port, err = hostport.Split(cfg.Rendezvous.Endpoint, c10d.DefaultPort)
	if backend.Name == "static" && cfg.MaxNodes > 1 && d.Settings.IsHost == nil && r.isGiven("node-rank") {
		first := cfg.Rendezvous.NodeRank == 0
		d.Settings.IsHost = &first
	}
	if d.Port == 0 {
		d.Host = ""
	}
	return append(errs, console.Split(err)...)
}

// ListenAdvice says what to do about an address that cannot be listened on. option is
// the one that names the port.
func ListenAdvice(err error, option string) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "`ss -ltnp` names the process that has the port; choose another " + option
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "give an address of this host as --host, or leave it out to listen on all"
	case errors.Is(err, syscall.EACCES):
		return "choose another " + option + ": ports below 1024 are reserved"
	}
	return "check --host and --port"
}
