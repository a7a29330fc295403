package runline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wait/steady"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// envErrorFile names the file in which the program that started us looks for errors.
const envErrorFile = "TORCHELASTIC_ERROR_FILE"

// runJob runs a job and returns the exit status, that of exitCode if it failed. The report
// of a failed job goes to stderr in the way that report names, and what made it fail to the
// error file; recorded says so. The error is what else went wrong.
func runJob(ctx context.Context, cfg launch.Config, exitCode, report string) (status int, recorded bool, err error) {
	cfg.WholeProgram, cfg.Socket = true, true
	result, err := launch.Run(ctx, cfg)
	out := said(cfg)
	if result != nil && report != "none" {
		sayReport(out, result, report == Torchrun)
	}
	if sig, ok := errors.AsType[*process.SignalError](err); ok && report == Torchrun {
		fmt.Fprintf(out, "torch.distributed.elastic.multiprocessing.api.SignalException: Process %d got signal: %d\n",
			os.Getpid(), int(sig.Signal))
	}
	if unfit, ok := errors.AsType[*launch.HealthCheckError](err); ok && result == nil {
		return console.ExitUnfit, false, unfit
	}
	if result == nil {
		return console.ExitError, false, advise(err, cfg)
	}
	var root *failure.ProcessFailure
	if result.Report != nil {
		if root = result.Report.Root(); root != nil {
			errorFile, _ := cfg.LookupEnv(envErrorFile)
			if err := failure.WriteErrorFile(errorFile, root); err != nil {
				cfg.Logger.Error("the failure is not in the error file", "error", err)
			}
		}
	}
	switch {
	case result.Drained:
		return console.ExitUnfit, root != nil, err
	case result.Preempted != nil:
		return failure.PreemptedStatus, root != nil, nil
	case result.IsFailed() && exitCode == codeOfWorker:
		return root.ExitStatus(), root != nil, err
	case result.IsFailed():
		return console.ExitError, root != nil, err
	case err != nil:
		return console.ExitError, false, err
	}
	return console.ExitOK, false, nil
}

// sayReport writes the report of a job that failed or was preempted, and where it is for
// programs.
func sayReport(w io.Writer, result *agent.Result, likeTorchrun bool) {
	switch {
	case result.Report != nil && likeTorchrun:
		fmt.Fprintln(w)
		result.Report.WriteTorchrun(w)
	case result.Report != nil:
		fmt.Fprintln(w)
		result.Report.WriteText(w)
	case result.Preempted != nil:
		io.WriteString(w, result.Preempted.Text())
	default:
		return
	}
	if result.ReportFile != "" {
		fmt.Fprintf(w, "The report as JSON: %s\n", text.Line(result.ReportFile, 4096))
	}
}

// advise adds what to do about an error that the command line can do something
// about.
func advise(err error, cfg launch.Config) error {
	if expired, ok := errors.AsType[*rendezvous.TimeoutError](err); ok && expired.Waiting.MaxNodes > 0 {
		return fmt.Errorf("%w; start muster on the missing hosts with the same --rdzv-endpoint and --rdzv-id; "+
			"run muster doctor on each host to see what keeps them apart", err)
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	fault, _ := errors.AsType[*rendezvous.ConnectionError](err)
	switch {
	case max(cfg.MinNodes, cfg.MaxNodes) <= 1:
		return fmt.Errorf("%w; name another --master-port or --rdzv-endpoint, or neither for a free port", err)
	case fault != nil && fault.Backend == "static":
		return fmt.Errorf("%w; another agent of this job with node rank 0 may be on this host: give each agent its own "+
			"--node-rank; otherwise name another --master-port or --rdzv-endpoint, the same for all agents", err)
	}
	return fmt.Errorf("%w; name another --master-port or --rdzv-endpoint, the same for all agents", err)
}

// said returns what cfg's logger writes to, so that other messages keep their order with
// its lines.
func said(cfg launch.Config) *steady.Writer {
	if cfg.Logger != nil {
		if h, ok := cfg.Logger.Handler().(*console.LogHandler); ok {
			return h.Out
		}
	}
	if cfg.Stderr == nil {
		return &steady.Writer{W: io.Discard}
	}
	return &steady.Writer{W: cfg.Stderr}
}
