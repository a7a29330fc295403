package failure

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/muster-run/muster/internal/text"
)

// torch's words for a failure of which it knows nothing.
const enableTraceback = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"

// conclude fills in Kind, Cause, Hint, and what evidence sets.
func (f *ProcessFailure) conclude() {
	what := f.evidence()
	what.text = withLastError(what.text, f.Traceback)
	switch {
	case f.StartError != "":
		f.Cause, f.Hint = explainStart(f.Entrypoint, f.Err)
		f.Message = f.Cause
	case f.StoppedBy != 0:
		f.Kind = stopped
		f.Cause = f.stopping()
		if f.file != nil && what.text != "" {
			f.Cause = what.text + "; " + f.Cause
		}
	case f.Abandoned != "":
		f.Cause = "did not die of SIGKILL: stuck in the kernel, uninterruptible sleep in " + oneLine(f.Abandoned, maxName)
		f.Hint = "look at what the process waits for: storage, a network file system, a driver"
	case f.OOM != "" && f.ExitCode == -int(syscall.SIGKILL):
		f.Cause = "killed by SIGKILL: out of memory (" + oneLine(f.OOM, maxName) + ")"
	case f.OOM != "":
		f.Cause = f.account(what) + "; out of memory (" + oneLine(f.OOM, maxName) + ")"
	case strings.HasPrefix(f.TimerExpired, LivePrefix):
		f.Cause = oneLine(f.TimerExpired, maxName) + "; " + f.ending()
	case f.TimerExpired != "":
		f.Cause = "missed a deadline: " + oneLine(f.TimerExpired, maxName) + "; " + f.ending()
	default:
		f.Cause = f.account(what)
		if f.DiskFull != "" {
			f.Cause += "; no room is left in " + oneLine(f.DiskFull, maxName) + ", where its output goes"
			f.Hint = "make room there, or name another --log-dir; what the worker wrote last may be lost"
		}
		if tellsOfPeer(what.text, f.Traceback) {
			f.Kind = lostPeer
		}
	}
	if f.GPU != "" && !f.Stopped() {
		f.Cause += "; " + f.GPU
		f.Hint = "Xids 13, 31, 43 and 45 come from programs; after any other fault of a GPU, run muster doctor on that " +
			"host before it takes part again"
	}
	if f.Hint == "" && !f.Stopped() {
		f.Hint = f.hint(what.text)
	}
	f.Cause = oneLine(f.Cause, maxCause)
	f.Hint = oneLine(f.Hint, maxCause)
}

// evidence is what the worker itself has written about its end.
type evidence struct {
	text string // one line; "" for nothing
	sure bool   // text is the reason of the end, not just the last thing said
	then bool   // the end followed from text, but is another thing
}

// evidence looks at the error file, then at stderr, and sets Message,
// Traceback and LastLines.
func (f *ProcessFailure) evidence() evidence {
	if f.StartError != "" {
		return evidence{}
	}
	f.Message = enableTraceback
	if sig := f.signal(); sig != 0 {
		f.Message = fmt.Sprintf("Signal %d (%s) received by PID %d", sig, Signal(sig), f.PID)
	}
	if f.file != nil && (f.file.Message != "" || f.file.Callstack != "") {
		what := evidence{gist(f.file.Message), true, f.ExitCode < 0}
		if what.text == "" {
			t, _ := lift([]byte(f.file.Callstack), 1)
			what.text = oneLine(t.Exception, maxCause)
		}
		if f.file.Message != "" {
			f.Message = f.file.Message
		}
		if f.file.Callstack != "" {
			f.Traceback, f.TracebackFrom = f.file.Callstack, fromErrorFile
		}
		return what
	}
	if f.Err != nil && f.ExitCode > 0 {
		f.Message = f.Err.Error()
		if f.Stack != "" {
			f.Traceback, f.TracebackFrom = f.Message+"\n\n"+f.Stack, fromFunction
		}
		return evidence{gist(f.Message), true, false}
	}
	t, ok := lift(f.StderrTail, f.ExitCode)
	if ok && f.explains(t) {
		f.Traceback, f.TracebackFrom = t.Text, fromStderr
		sure := t.Kind == python && f.ExitCode == 1 || t.Kind == goPanic && f.ExitCode == 2 ||
			t.Kind != python && crashed(f.signal()) || t.Kind == faulthandler && f.ExitCode == 1
		return evidence{gist(t.Exception), sure, t.Aborted}
	}
	f.LastLines = lastLines(f.StderrTail, maxTailLines)
	return evidence{}
}

// explains reports whether an account in stderr has to do with the end. If somebody killed or
// stopped the process, the account is about something that it had survived.
func (f *ProcessFailure) explains(t account) bool {
	switch sig := f.signal(); {
	case f.StoppedBy != 0:
		return false
	case sig == 0 || crashed(sig):
		return true
	default:
		return t.Last
	}
}

// gist is an exception's first line, with its second if the first has only the type.
func gist(message string) string {
	message = strings.TrimSpace(message)
	first, rest, _ := strings.Cut(message, "\n")
	if first = strings.TrimSpace(first); strings.HasSuffix(first, ":") {
		rest, _, _ = strings.Cut(strings.TrimSpace(rest), "\n")
		first += " " + rest
	}
	return oneLine(first, maxCause)
}

// withLastError adds to an error of NCCL, whose first line says only of which sort it is, what NCCL itself says.
// Source: getNcclErrorDetailStr in torch/csrc/distributed/c10d/NCCLUtils.cpp.
func withLastError(what, traceback string) string {
	const mark = "\nLast error:\n"
	i := strings.LastIndex(traceback, mark)
	if i < 0 || !strings.Contains(what, "NCCL error") {
		return what
	}
	said, _, _ := strings.Cut(traceback[i+len(mark):], "\n")
	if strings.TrimSpace(said) == "" {
		return what
	}
	return oneLine(what+": "+said, maxCause)
}

// lastLine is the last one that the program itself wrote, "" where there is none: as a host's first worker
// ends and still has its process group, PyTorch prints a warning.
// Source: ProcessGroupNCCL::~ProcessGroupNCCL in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
func (f *ProcessFailure) lastLine() string {
	for _, l := range slices.Backward(f.LastLines) {
		if strings.TrimSpace(l) != "" && !strings.Contains(l, "destroy_process_group() was not called before program exit") {
			return oneLine(l, 200)
		}
	}
	return ""
}

// account says how the worker ended in its own words and those of the kernel.
func (f *ProcessFailure) account(what evidence) string {
	end := f.ending()
	switch {
	case what.text == "":
		// Of a kill from outside the last line knows nothing.
		if line := f.lastLine(); line != "" && (f.ExitCode > 0 || crashed(f.signal())) {
			where := "on stderr"
			if f.Mixed {
				where = "of output"
			}
			return fmt.Sprintf("%s; last line %s: %s", end, where, line)
		}
		return end
	case what.then:
		return what.text + "; then " + end
	case what.sure && f.ExitCode > 0:
		return what.text
	case what.sure:
		return end + ": " + what.text
	}
	return end + "; last traceback on stderr: " + what.text
}

// ending says how the process ended.
func (f *ProcessFailure) ending() string {
	sig := f.signal()
	if sig == 0 {
		s := fmt.Sprintf("exit code %d", f.ExitCode)
		n := f.ExitCode - 128
		if name := text.SignalName(syscall.Signal(n)); name != "" {
			s += fmt.Sprintf(" (128+%d: how a shell reports %s)", n, name)
		}
		return s
	}
	s := "killed by " + Signal(sig).String()
	if meaning := signalMeaning[sig]; meaning != "" {
		s += " (" + meaning + ")"
	}
	if f.CoreDumped {
		s += ", core dumped"
	}
	return s
}

// stopping says how a worker ended that the agent had stopped.
func (f *ProcessFailure) stopping() string {
	s := "stopped with " + f.StoppedBy.String()
	switch {
	case f.Abandoned != "":
		s += "; did not die of SIGKILL either: uninterruptible sleep in " + f.Abandoned
	case f.Signal == f.StoppedBy:
	case f.signal() == syscall.SIGKILL:
		s += "; had to be killed after the grace period"
	default:
		s += "; " + f.ending()
	}
	if strings.HasPrefix(f.TimerExpired, LivePrefix) {
		s += "; " + oneLine(f.TimerExpired, maxName)
	}
	return s
}

// tellsOfPeer reports whether an error tells of a connection to another worker that
// broke, or of waiting for one in vain.
func tellsOfPeer(what, traceback string) bool {
	if what == "" {
		return false
	}
	const window = 8 << 10
	text := strings.ToLower(what + "\n" + traceback[max(0, len(traceback)-window):])
	if !containsAny(text, "torch/distributed", "torch.distributed", "nccl", "gloo", "c10d", "tcpstore", "processgroup",
		"mpi_") {
		return false
	}
	return containsAny(text,
		"connection reset by peer", "connection closed by peer", "connection was likely closed",
		"broken pipe", "socket timeout", "remote process exited", "ncclremoteerror",
		"connectfullmesh failed", "failed to recv, got 0 bytes", "failed to recv",
		"nccl communicator was aborted", "watchdog caught collective operation timeout",
		"timed out waiting", "wait timeout", "timed out after", "connection refused",
		"collective operation timeout", "recvbytes", "sendbytes")
}

func containsAny(s string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(s, part) })
}

// ownAddr finds an address that each host has for itself in what gloo and NCCL say of connecting.
var ownAddr = regexp.MustCompile(`(?i)(?:gloo.*(?:remote|local)=\[?|connect to )(127\.[\d.]+|::1|fe80:[0-9a-f:]+)[]%<]`)

// hint says what may help, "" where nothing useful is known.
func (f *ProcessFailure) hint(what string) string {
	const window = 4 << 10
	text := what + "\n" + f.Traceback[max(0, len(f.Traceback)-window):]
	for _, l := range f.LastLines {
		text += "\n" + l
	}
	sig, usage := f.signal(), f.ExitCode == 2
	own := ownAddr.FindStringSubmatch(text)
	switch {
	case own != nil && f.Hosts > 1:
		return "a host's own name resolves to " + own[1] + ", which other hosts cannot reach: correct /etc/hosts there, " +
			"or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to its network interface"
	case f.LostPeer():
		return "another worker or its host probably failed first; look there"
	case containsAny(text, "CUDA out of memory", "OutOfMemoryError", "HIP out of memory"):
		return "the GPU's memory is full: make batch or model smaller, or see with nvidia-smi who else uses it"
	case containsAny(text, "Duplicate GPU detected"):
		return "two workers of a host use one GPU: let each take its own with " +
			"torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), and start one per GPU (--nproc-per-node gpu)"
	case containsAny(text, "out of shared memory"), sig == syscall.SIGBUS:
		return "/dev/shm or a mapped file's disk may be full; containers often have only 64 MiB (--shm-size)"
	case (f.Entrypoint == "" || strings.HasPrefix(filepath.Base(f.Entrypoint), "py")) &&
		(strings.Contains(what, "ModuleNotFoundError") || strings.Contains(text, ": No module named ")):
		return "install the module for " + f.program() + ", or start muster in the environment that has it"
	case containsAny(text, "can't find '__main__' module in"):
		return "the script is a directory without __main__.py, or its name is empty"
	case usage && containsAny(text, "can't open file"):
		return "check the script's path; a relative one starts at the working directory of muster"
	case containsAny(text, "Address already in use", "EADDRINUSE"):
		return "another process listens on that port; choose another, or end it (ss -ltnp)"
	case containsAny(text, "No space left on device"):
		return "a file system is full; see df"
	case containsAny(text, "Too many open files"):
		return "raise ulimit -n"
	case usage && containsAny(text, "error: unrecognized arguments", "error: the following arguments are required",
		"usage: "):
		return "the script does not take these arguments; muster's own options go before the script"
	case f.ExitCode == 127:
		return "a shell or env did not find a command"
	case f.ExitCode == 126:
		return "a shell found a command that it could not execute"
	case f.ExitCode == 120:
		return "Python could not write the rest of stdout or stderr at its end"
	case (sig == syscall.SIGKILL || f.ExitCode == 137) && f.OOM == "" && f.TimerExpired == "":
		return "no out-of-memory kill was counted; somebody else sent SIGKILL: a person, a scheduler, or a memory limit " +
			"further up"
	case sig == syscall.SIGTERM, sig == syscall.SIGINT, sig == syscall.SIGHUP:
		return "muster did not send it; a person, a scheduler or another program did"
	case sig == syscall.SIGILL:
		return "a library may be built for another CPU"
	}
	return ""
}

// program is what the worker runs, for a hint.
func (f *ProcessFailure) program() string {
	if f.Entrypoint == "" {
		return "the interpreter that ran"
	}
	return f.Entrypoint
}
