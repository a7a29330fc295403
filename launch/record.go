package launch

import (
	"errors"
	"fmt"
	"io"

	"github.com/muster-run/muster/events"
)

// What Records.MetricsHandler may be.
const (
	metricsNull    = "null"
	metricsConsole = "console"
)

// checkRecords says what is wrong with the Records.
func (cfg *Config) checkRecords() error {
	errs := []error{cfg.events(cfg.Logs.Dir, nil).Check()}
	switch cfg.Records.MetricsHandler {
	case metricsNull, metricsConsole:
	default:
		errs = append(errs, fmt.Errorf("metrics handler %q is not known; want %s or %s", cfg.Records.MetricsHandler,
			metricsNull, metricsConsole))
	}
	return errors.Join(errs...)
}

// events says where events go. logDir is this run's, or as much as is known of it.
func (cfg *Config) events(logDir string, stderr io.Writer) *events.Config {
	r := &cfg.Records
	return &events.Config{Handler: r.EventLogHandler, Console: stderr, File: r.EventLogFile, LogDir: logDir,
		Sink: r.Events, Logger: cfg.Logger}
}
