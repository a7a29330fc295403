package failure

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"github.com/muster-run/muster/internal/format/text"
)

// torch's words for a failure of which it knows nothing.
const enableTraceback = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"

// conclude fills in Kind, Cause, Hint, and what evidence sets.
func (f *ProcessFailure) conclude() {
	what := f.evidence()
	if f.OOM != "" && f.ExitCode >= 0 && f.ExitCode != 137 && what.text != "" && !is(orphaned, what.text) {
		f.Hint = "the kernel killed a process here for lack of memory, perhaps a child of this worker: " + f.OOM
		f.OOM = ""
	}
	switch {
	case f.StartError != "":
		f.Cause, f.Hint = explainStart(f.Entrypoint, f.Err)
		f.Message = f.Cause
	case f.StoppedBy != 0:
		f.Kind = stopped
		f.Cause = f.stopping()
		if what.text != "" {
			f.Cause = what.text + "; " + f.Cause
		}
		if what.lost {
			f.Kind = lostPeer
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
		if what.lost {
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
	lost bool   // it tells of a peer that is lost
	line bool   // text is a line by itself
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
		f.Message = cmp.Or(f.file.Message, f.Message)
		if f.file.Callstack != "" {
			f.Traceback, f.TracebackFrom = f.file.Callstack, fromErrorFile
		}
		text, lost := recorded(f.file.Message, f.file.Callstack)
		return evidence{text: text, sure: true, then: f.ExitCode < 0, lost: lost}
	}
	if f.Err != nil && f.ExitCode > 0 {
		f.Message = f.Err.Error()
		if f.Stack != "" {
			f.Traceback, f.TracebackFrom = f.Message+"\n\n"+f.Stack, fromFunction
		}
		return evidence{text: gist(f.Message), sure: true, lost: tellsOfPeer(f.Message, "")}
	}
	t, ok := lift(f.StderrTail, f.ExitCode)
	f.LastLines = lastLines(f.StderrTail, maxTailLines)
	code := f.ExitCode
	aborted := t.Exception == noException
	if aborted {
		code = 1 // of what went before
	}
	if (!ok || t.harmless || aborted) && f.StdoutTail != nil { // what a program prints may be on stdout only
		out, found := lift(f.StdoutTail, code)
		if found && !out.harmless && (out.Last || f.lastLine() == "" || aborted && out.near) {
			t, ok = out, true
			t.Aborted = aborted
		}
		if len(f.LastLines) == 0 {
			f.LastLines, f.Mixed = lastLines(f.StdoutTail, maxTailLines), true
		}
	}
	l := f.lastLine()
	isLog := logLine.MatchString(l) || level.MatchString(l) || strings.HasPrefix(l, "{")
	if !ok || !f.explains(t) || t.shape != nil && t.shape.role != reason && t.uncertain && !isLog {
		return evidence{} // the last line says more than an earlier one
	}
	then := t.Aborted && f.ExitCode < 0
	what := evidence{text: oneLine(t.Exception, maxCause), then: then, lost: t.lost, line: t.shape != nil}
	usual, ends := map[string]int{python: 1, faulthandler: 1, goPanic: 2}[t.Kind]
	what.sure = f.ExitCode == UnknownExit || ends && f.ExitCode == usual || t.Kind != python && crashed(f.signal()) ||
		t.shape != nil && t.shape.role == reason
	if t.shape != nil && len(t.text) == 1 {
		return what // LastLines have it
	}
	f.Traceback, f.TracebackFrom, f.LastLines = t.Text, fromStderr, nil
	return what
}

// recorded is the gist of an error that the worker has recorded, and whether it tells of a lost peer.
func recorded(message, callstack string) (text string, lost bool) {
	a, ok := lift([]byte(callstack), 1)
	first, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	if text = gist(message); text == "" || ok && (!strings.HasSuffix(a.said, first) || bare.MatchString(a.said)) {
		text = oneLine(a.Exception, maxCause)
	}
	return text, ok && a.lost || tellsOfPeer(message, "")
}

// explains reports whether an account in stderr has to do with the end. If somebody killed or
// stopped the process, the account is about something that it had survived, unless it ends no process
// but its own: then it had failed before.
func (f *ProcessFailure) explains(t account) bool {
	switch sig := f.signal(); {
	case f.StoppedBy != 0:
		uncaught := len(t.text) > 1 && (strings.HasSuffix(t.text[1], ", in <module>") || is(library, t.text[1]))
		return t.Kind == python && !t.harmless && !is(leaving, t.said) && !is(above, t.said) &&
			(t.Last && uncaught || t.stream == fmt.Sprintf("[rank%d]: ", f.Rank))
	case sig == 0 || crashed(sig):
		return sig == 0 || t.Kind != oneLiner || t.Aborted
	default:
		return t.Last && t.shape == nil
	}
}

// gist is the first line of a message, and what its next ones add to that.
func gist(message string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(message), "\n")
	first = strings.TrimSpace(first)
	lines := slices.DeleteFunc(strings.SplitN(rest, "\n", maxMessage), func(s string) bool { return !hasLetter(s) })
	said := first
	if opened := find(open, first); opened != nil {
		for _, next := range lines[:min(len(lines), len(opened.says))] {
			said = strings.TrimSuffix(said, ":") + ": " + strings.TrimSpace(next)
		}
	}
	for i, s := range lines {
		found := find(detail, s)
		if found != nil && i+len(found.says) < len(lines) {
			return oneLine(oneLine(said, maxCause/2)+": "+lines[i+len(found.says)], maxCause)
		}
	}
	return oneLine(said, maxCause)
}

// hasLetter reports whether a line says anything.
func hasLetter(s string) bool { return strings.ContainsFunc(s, unicode.IsLetter) }

// lastLine is the last one that the program itself wrote, "" where there is none.
func (f *ProcessFailure) lastLine() string {
	for _, l := range slices.Backward(f.LastLines) {
		if hasLetter(l) && !is(farewell, strings.TrimSpace(l)) {
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
	if what.line {
		return end + "; error on stderr: " + what.text
	}
	return end + "; last traceback on stderr: " + what.text
}

// ending says how the process ended.
func (f *ProcessFailure) ending() string {
	sig := f.signal()
	if f.ExitCode == UnknownExit {
		return "unknown exit code"
	}
	if sig == 0 {
		s := fmt.Sprintf("exit code %d", f.ExitCode)
		n := f.ExitCode - 128
		if name := text.SignalName(syscall.Signal(n)); name != "" {
			s += fmt.Sprintf(" (128+%d: how a shell reports %s)", n, name)
		}
		return s
	}
	s := "killed by " + Signal(sig).String()
	if found := find(meaning, s); found != nil {
		s += " (" + found.says + ")"
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
// broke, or of waiting for one without success. frame is where it was raised.
func tellsOfPeer(message, frame string) bool {
	if strings.Contains(frame, "torch/distributed/elastic/") { // @record's own, which is in every stack
		frame = ""
	}
	const window = 8 << 10
	text := strings.ToLower(message[:min(len(message), window)] + "\n" + frame[:min(len(frame), window)])
	return is(lost, text) && is(network, text)
}

// ownAddr finds an address that each host has for itself in what gloo and NCCL say of connecting.
var ownAddr = regexp.MustCompile(`(?i)(?:gloo.*(?:remote|local)=\[?|connect to )(127\.[\d.]+|::1|fe80:[0-9a-f:]+)[]%<]`)

// hint says what may help, "" where nothing useful is known.
func (f *ProcessFailure) hint(what string) string {
	const window = 4 << 10
	text := what + "\n" + f.Traceback[max(0, len(f.Traceback)-window):] + "\n" + strings.Join(f.LastLines, "\n")
	sig, known := f.signal(), (*shape)(nil)
	if f.StoppedBy != 0 || sig == 0 || crashed(sig) {
		known = find(advice, text)
	}
	if base := filepath.Base(f.Entrypoint); known != nil && known.name == "no-module" && !begin(base, ".", "py") {
		known = nil // the program is not an interpreter, whose modules these would be
	}
	if known == nil && f.StoppedBy == 0 && f.OOM == "" && f.TimerExpired == "" {
		known = find(ended, f.ending())
	}
	own := ownAddr.FindStringSubmatch(text)
	switch {
	case own != nil && (f.Hosts > 1 || strings.Contains(text, "connectFullMesh failed")):
		return "a host's own name resolves to " + own[1] + ", which other hosts cannot reach: correct /etc/hosts there, " +
			"or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to its network interface"
	case f.LostPeer() && (f.Hosts == 1 || known == nil || known.name != "unreachable"):
		return "another worker or its host probably failed first; look there"
	case known != nil:
		return strings.ReplaceAll(known.says, "PROGRAM", cmp.Or(f.Entrypoint, "the interpreter that ran"))
	}
	return ""
}
