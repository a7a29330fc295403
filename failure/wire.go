package failure

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/pyjson"
)

const (
	maxDetail = 32 << 10 // bytes of a traceback on its way to another host
	briefSize = 512      // about what a failure without its details takes
	maxDecode = 64 << 10 // failures in one list
)

// Encode returns failures as a list of JSON for the agents of other hosts, which
// read it with Decode. The list has at most limit bytes. To that end the middle of
// long tracebacks is left out, then the details of later failures, then those
// failures, the last ones first; left is how many.
// Times are told by a clock that is offset ahead of this host's.
//
// Members are those of MarshalJSON's failures without what is null or false, and
// recorded (the message is the worker's own), errno (of start_error).
func Encode(failures []*ProcessFailure, offset time.Duration, limit int) (text []byte, left int) {
	text = []byte("[")
	for i, f := range failures {
		room := limit - len(text) - len(", ]")
		reserve := briefSize * (len(failures) - i - 1) // for those that follow
		if i == 0 {
			reserve = min(reserve, room/2) // whatever they need
		}
		detail := min((room-reserve-briefSize)/2, maxDetail)
		item := f.encode(offset, detail)
		for ; detail > 0 && len(item) > room-reserve; detail /= 3 { // escapes take room too
			item = f.encode(offset, detail/3)
		}
		if len(item) > room {
			left = len(failures) - i
			break
		}
		if i > 0 {
			text = append(text, ", "...)
		}
		text = append(text, item...)
	}
	return append(text, ']'), left
}

// encode returns one failure with at most about detail bytes of details.
func (f *ProcessFailure) encode(offset time.Duration, detail int) []byte {
	v := f.json(false)
	if f.Kind == Stopped && f.File == nil {
		detail = 0
	}
	out := pyjson.Dict()
	for _, member := range v.Members {
		if member.Value.Kind == pyjson.Null || member.Value.Kind == pyjson.Bool && !member.Value.Bool {
			continue
		}
		switch member.Key {
		case "failed_at":
			member.Value = stamp(f.FailedAt.Add(offset))
		case "started_at":
			member.Value = stamp(f.Started.Add(offset))
		case "ended_at":
			member.Value = stamp(f.Time.Add(offset))
		case "message":
			member.Value = str(boundTraceback(f.Message, max(detail/4, 500)))
		case "traceback":
			if detail < 500 {
				continue
			}
			member.Value = str(boundTraceback(f.Traceback, detail))
		case "traceback_from", "stderr_tail":
			if detail < 500 {
				continue
			}
		}
		out.Members = append(out.Members, member)
	}
	if f.File != nil && f.File.Message != "" {
		out.Set("recorded", pyjson.True(true))
	}
	if errno, ok := errors.AsType[syscall.Errno](f.StartErr); ok {
		out.Set("errno", num(int(errno)))
	}
	return out.Append(nil)
}

// Decode reads what Encode wrote on a host whose clock is, by the common one, offset
// ahead of this host's. Nothing in it is trusted: what can be shown is bounded and
// printable. The error is about the whole list; members of a failure that make
// no sense count as missing.
func Decode(text []byte, offset time.Duration) ([]*ProcessFailure, error) {
	v, err := pyjson.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("a list of failures: %w", err)
	}
	if v.Kind != pyjson.Array {
		return nil, fmt.Errorf("a list of failures is a %v", v.Kind)
	}
	if len(v.Items) > maxDecode {
		return nil, fmt.Errorf("a list of failures has %d members, more than %d", len(v.Items), maxDecode)
	}
	failures := make([]*ProcessFailure, 0, len(v.Items))
	for i := range v.Items {
		f, err := decodeOne(&v.Items[i], offset)
		if err != nil {
			return nil, fmt.Errorf("failure %d of a list: %w", i, err)
		}
		failures = append(failures, f)
	}
	return failures, nil
}

func decodeOne(v *pyjson.Value, offset time.Duration) (*ProcessFailure, error) {
	text := func(key string, limit int) string {
		m, _ := v.Get(key)
		if m.Kind != pyjson.String {
			return ""
		}
		return oneLine(m.Text, limit)
	}
	long := func(key string) string {
		m, _ := v.Get(key)
		if m.Kind != pyjson.String {
			return ""
		}
		return boundTraceback(printable(m.Text), maxTraceback)
	}
	at := func(key string) time.Time {
		m, _ := v.Get(key)
		t, err := time.Parse(time.RFC3339Nano, m.Text)
		if err != nil || t.Year() < 1980 || t.Year() > 9000 {
			return time.Time{}
		}
		return t.Add(-offset).Local()
	}
	flag := func(key string) bool { m, _ := v.Get(key); return m.Bool }

	f := &ProcessFailure{
		Kind: Kind(text("kind", 40)), FailedAt: at("failed_at"), Cause: text("cause", maxCause), Hint: text("hint", maxCause),
		Message: long("message"), Traceback: long("traceback"), TracebackFrom: text("traceback_from", 40),
	}
	if f.FailedAt.IsZero() || f.Cause == "" {
		return nil, errors.New("it has no failed_at or no cause")
	}
	if !slices.Contains([]Kind{Failed, LostPeer, Stopped}, f.Kind) {
		f.Kind = Failed
	}
	if f.Message == "" {
		f.Message = enableTraceback
	}
	f.Observation = Observation{
		LocalRank: whole(v, "local_rank"), Rank: whole(v, "rank"), PID: whole(v, "pid"), ExitCode: whole(v, "exit_code"),
		CoreDumped: flag("core_dumped"), Started: at("started_at"), Time: at("ended_at"), StoppedBy: signalNamed(text("stopped_by", 40)),
		OOM: text("oom", maxName), Abandoned: text("stuck_in", maxName), TimerExpired: text("timer", maxName),
		ErrorFile: text("error_file", 4096), StderrPath: text("log", 4096), Host: text("host", maxName),
	}
	if start := text("start_error", maxTailLine); start != "" {
		f.StartErr = &remoteError{start, syscall.Errno(max(0, whole(v, "errno")))}
	}
	if f.ErrorFile != "" {
		f.File = &ErrorFile{Path: f.ErrorFile, Note: text("error_file_note", maxCause), Object: true}
		if flag("recorded") {
			f.File.Message = f.Message
		}
	}
	tail, _ := v.Get("stderr_tail")
	for _, line := range tail.Items[:min(len(tail.Items), maxTailLines)] {
		f.LastLines = append(f.LastLines, clip(strings.ReplaceAll(printable(line.Text), "\n", " "), maxTailLine))
	}
	return f, nil
}

// whole is a whole number of 32 bits, else 0.
func whole(v *pyjson.Value, key string) int {
	m, _ := v.Get(key)
	if m.Kind != pyjson.Number {
		return 0
	}
	n, err := strconv.ParseInt(m.Text, 10, 32)
	if err != nil {
		return 0
	}
	return int(n)
}

// signalNamed is SignalName's inverse.
func signalNamed(name string) syscall.Signal {
	for sig := syscall.Signal(1); name != "" && sig <= sigRTMax; sig++ {
		if SignalName(sig) == name {
			return sig
		}
	}
	return 0
}

// remoteError is why a worker on another host could not be started.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }

func (e *remoteError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}
