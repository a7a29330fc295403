package cli

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/launch"
)

// envErrorFile names where whoever started us looks for what went wrong.
const envErrorFile = "TORCHELASTIC_ERROR_FILE"

// start runs a job and returns the exit status. The report of a failed job goes
// to stderr; the error is what else went wrong.
func start(ctx context.Context, cfg launch.Config) (int, error) {
	result, err := launch.Run(ctx, cfg)
	if result == nil {
		return exitError, advise(err)
	}
	errorFile, _ := cfg.LookupEnv(envErrorFile)
	var root *failure.ProcessFailure
	if result.Report != nil {
		fmt.Fprintln(cfg.Stderr)
		_ = result.Report.WriteText(cfg.Stderr) // nobody is left to tell
		root = result.Report.Root()
		if err := failure.Propagate(root, errorFile); err != nil {
			cfg.Logger.Error("the failure is not in the error file", "error", err)
		}
	}
	switch {
	case result.IsFailed():
		return failure.ExitStatus(cfg.ExitCode, root), err
	case err != nil:
		return exitError, err
	}
	return exitOK, nil
}

// advise adds what to do about an error that the command line can do something
// about.
func advise(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; name another --master-port or --rdzv-endpoint, or neither for a free port", err)
	}
	return err
}
