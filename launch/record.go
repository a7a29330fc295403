package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/muster-run/muster/events"
)

// What Records.MetricsHandler may be.
const (
	metricsNull    = "null"
	metricsConsole = "console"
)

// checkRecords says what is wrong with where events and metrics shall go.
func (cfg *Config) checkRecords() error {
	var errs []error
	if err := events.CheckName(cfg.Records.EventLogHandler); err != nil {
		errs = append(errs, err)
	}
	switch {
	case cfg.Records.EventLogFile != "":
		if err := events.CheckFile(cfg.Records.EventLogFile); err != nil {
			errs = append(errs, err)
		}
	case cfg.Records.EventLogHandler == events.NameFile && cfg.Logs.Dir == os.DevNull:
		errs = append(errs, fmt.Errorf("there is no log directory for %s: name a file with --event-log-file, or a directory with --log-dir", events.FileName))
	}
	switch cfg.Records.MetricsHandler {
	case metricsNull, metricsConsole:
	default:
		errs = append(errs, fmt.Errorf("metrics handler %q is not known: want %s or %s", cfg.Records.MetricsHandler, metricsNull, metricsConsole))
	}
	return errors.Join(errs...)
}

// openEvents returns the sink that the configuration asks for, and what closes it
// when nothing more will happen. logDir is this run's.
func openEvents(cfg *Config, logDir string, stderr io.Writer) (events.Sink, func() error, error) {
	nothing := func() error { return nil }
	var sink events.Sink
	path, open := cfg.Records.EventLogFile, events.OpenFile
	if cfg.Records.EventLogHandler == events.NameFile {
		if path == "" {
			path, open = filepath.Join(logDir, events.FileName), events.CreateFile
		}
	} else {
		var err error
		if sink, err = events.New(cfg.Records.EventLogHandler, stderr); err != nil {
			return nil, nothing, err
		}
	}
	if path == "" {
		return sink, nothing, nil
	}
	file, err := open(path, cfg.Logger)
	if err != nil {
		return nil, nothing, err
	}
	return events.Multi(sink, file), file.Close, nil
}

// recordEnd records that this host has closed the rendezvous or left it.
func recordEnd(sink events.Sink, cfg *Config, host, what string, err error) {
	e := events.RdzvEvent{
		Name: what, RunID: cfg.RunID, Hostname: host, PID: os.Getpid(),
		NodeState: events.NodeSucceeded, Message: "has closed the rendezvous",
	}
	if what == "rendezvous.Leave" {
		e.Message = "has left the rendezvous"
	}
	if err != nil {
		e.NodeState, e.Message, e.ErrorTrace = events.NodeFailed, "could not say that it leaves the rendezvous", err.Error()
	}
	events.RecordLine(sink, e)
}
