package failure

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// Bounds of lift.
const (
	maxScan      = 256 << 10 // bytes of stderr that are looked at, from its end
	maxMessage   = 200       // lines of an exception's message
	maxIntruders = 20        // lines of others in the middle of a traceback
	maxCarried   = 8         // tracebacks within messages within tracebacks
	maxBetween   = 4         // lines between a traceback and the abort that follows from it
)

// What C++ says of an abort without an exception of its own.
const noException = "terminate called without an active exception"

// Kinds of account.
const (
	python       = "python"
	faulthandler = "faulthandler" // Python's own account of a deadly signal
	native       = "native"       // C++'s std::terminate
	goPanic      = "go"
)

// An account is what a program has written about its own crash, found in its stderr.
type account struct {
	Kind string // whose account it is
	// Text is all of it, without line prefixes, terminal sequences and final
	// newline.
	Text      string
	Exception string // its gist in one line: "ValueError: boom"
	Last      bool   // nothing but blank lines came after it
	Aborted   bool   // an exception ended the program, and C++ aborted while it did

	start, end int  // lines of stderr; end is the one after the last
	harmless   bool // of a sort that ends no process, such as a thread's
}

// lift finds the account in stderr that explains an end with exitCode (-N for
// signal N): the last one, since the process outlived the earlier ones. It
// knows Python's tracebacks (a chain of them counts as one; syntax errors;
// exception groups; with torch's "[rank0]: " before each line; with the
// beginning cut off), faulthandler's dumps, C++ exceptions that nobody caught,
// and Go's panics. At most the last 256 KiB are looked at.
//
// It goes over the lines once (scan). Where an account begins, the function for its kind
// takes what belongs to it. Others write to the same stream, and nothing marks an end:
// so these functions let some lines of others pass, and all have a limit, lest a
// hostile stream costs more than its size.
func lift(stderr []byte, exitCode int) (account, bool) {
	if len(stderr) > maxScan {
		stderr = stderr[len(stderr)-maxScan:]
	}
	own, ranked, last := split(string(stderr))
	all := append(scan(own), scan(ranked)...)
	slices.SortStableFunc(all, func(a, b account) int { return a.start - b.start })
	best := -1
	for i := range all {
		if best < 0 || all[i].weight(exitCode) >= all[best].weight(exitCode) {
			best = i
		}
	}
	if best < 0 {
		return account{}, false
	}
	a := all[best]
	// Python's stack goes with the C++ exception that killed it.
	if next := slices.IndexFunc(all, func(b account) bool { return b.start >= a.end }); a.Kind == native && next >= 0 &&
		all[next].Kind == faulthandler {
		a.Text, a.end = a.Text+"\n\n"+all[next].Text, all[next].end
	}
	// A thread of C++ that is there when Python ends after an exception aborts it.
	if best > 0 && a.Exception == noException {
		if b := all[best-1]; b.Kind == python && !b.harmless && a.start-b.end <= maxBetween {
			b.Text, b.end, b.Aborted = b.Text+"\n\n"+a.Text, a.end, true
			a = b
		}
	}
	a.Last = a.end > last
	a.Text = boundTraceback(a.Text, maxTraceback)
	return a, true
}

// weight is how well an account goes with the way the process ended.
func (a *account) weight(exitCode int) int {
	switch {
	case a.harmless:
		return 0
	case a.Kind == python && exitCode < 0 && crashed(syscall.Signal(-exitCode)):
		return 1
	case a.Kind == native:
		return 3 // rather than the dump that Python adds to it
	}
	return 2
}

// crashed reports whether a signal is one that a program brings upon itself.
func crashed(sig syscall.Signal) bool {
	return slices.Contains([]syscall.Signal{syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE,
		syscall.SIGILL}, sig)
}

// A line of stderr without what surrounds its text. n counts all lines.
type line struct {
	text string
	n    int
}

// split cuts stderr into lines, those that torch prefixed with the rank apart
// from the others, both with the blank ones, and returns the number of the last that is not
// blank, -1 without one. A line that was overwritten by carriage returns is what was left of it.
func split(stderr string) (own, ranked []line, last int) {
	n, last := 0, -1
	for text := range strings.SplitSeq(stderr, "\n") {
		text = strings.TrimRight(stripANSI(text), "\r")
		text = text[strings.LastIndexByte(text, '\r')+1:]
		prefix := rankPrefix.FindString(text)
		text, isRanked := text[len(prefix):], prefix != ""
		blank := strings.TrimSpace(text) == ""
		if !blank {
			last = n
		}
		if isRanked || blank && len(ranked) > 0 {
			ranked = append(ranked, line{text, n})
		}
		if !isRanked {
			own = append(own, line{text, n})
		}
		n++
	}
	return own, ranked, last
}

// rankPrefix is torch's "[rank0]: " before a line.
// Source: _distributed_excepthook in torch/distributed/distributed_c10d.py.
var rankPrefix = regexp.MustCompile(`^\[rank[0-9]+\]: `)

// scan finds all accounts in order.
func scan(lines []line) []account {
	var all []account
	for i := 0; i < len(lines); {
		var read func(lines []line, i int) (text []string, gist string, end int)
		a := account{start: lines[i].n}
		switch s := lines[i].text; {
		case isHeading(s):
			a.Kind, read, a.harmless = python, readChain, announcedHarmless(lines, i)
		case isFrame(s):
			a.Kind, read = python, readHeadless
		case begins(s, "Fatal Python error: "):
			a.Kind, read = faulthandler, readFatal
		case begins(s, "terminate called "):
			a.Kind, read = native, readTerminate
		case begins(s, "panic: ", "fatal error: "):
			a.Kind, read = goPanic, readPanic
		default:
			i++
			continue
		}
		text, gist, end := read(lines, i)
		if i = max(end, i+1); gist == "" {
			continue
		}
		a.Text, a.Exception, a.end = strings.Join(text, "\n"), gist, lines[end-1].n+1
		// Cython prints what it ignores twice: before the announcement, and after it.
		if last := len(all) - 1; a.harmless && last >= 0 && all[last].Text == a.Text {
			all[last].harmless = true
		}
		all = append(all, a)
	}
	return all
}

// begins reports whether a line begins in one of some ways.
func begins(s string, starts ...string) bool {
	return slices.ContainsFunc(starts, func(start string) bool { return strings.HasPrefix(s, start) })
}

const heading = "Traceback (most recent call last):"

// isHeading matches also where a progress bar left its line unfinished.
func isHeading(s string) bool {
	return strings.HasSuffix(s, heading) || strings.HasSuffix(strings.TrimRight(s, " "), heading)
}

// isFrame matches the line of a stack frame and the one that a syntax error has.
func isFrame(s string) bool {
	return strings.HasPrefix(s, `  File "`) && strings.Contains(s, `", line `)
}

// isLink matches the sentences between the tracebacks of a chain.
func isLink(s string) bool {
	return s == "During handling of the above exception, another exception occurred:" ||
		s == "The above exception was the direct cause of the following exception:"
}

// announcedHarmless looks at the line above a heading. Python prints these
// tracebacks and goes on.
func announcedHarmless(lines []line, i int) bool {
	for back := 1; back <= 2 && i-back >= 0; back++ {
		s := lines[i-back].text
		if begins(s, "Exception ignored ", "Exception in thread ", "Error in atexit", "Error in sitecustomize",
			"--- Logging error") {
			return true
		}
		if strings.TrimSpace(s) != "" {
			break
		}
	}
	return false
}

// readChain reads a traceback and those chained to it. end is the line after.
func readChain(lines []line, i int) (text []string, gist string, end int) {
	for {
		part, what, next := readBlock(lines, i, 0)
		text, gist, end = append(text, part...), cmp.Or(what, gist), next
		link := skipBlank(lines, end, 2)
		if link >= len(lines) || !isLink(lines[link].text) {
			return text, gist, end
		}
		i = skipBlank(lines, link+1, 2)
		if i >= len(lines) || !isHeading(lines[i].text) {
			return text, gist, end
		}
		text = append(text, "", lines[link].text, "")
	}
}

// skipBlank returns the first line from i on that is not blank, passing at
// most limit.
func skipBlank(lines []line, i, limit int) int {
	for ; limit > 0 && i < len(lines) && strings.TrimSpace(lines[i].text) == ""; limit-- {
		i++
	}
	return i
}

// readBlock reads one traceback whose heading is line i: its text without
// margin, its gist, and the line after it. depth counts the messages that it
// is in.
func readBlock(lines []line, i, depth int) (text []string, gist string, end int) {
	s := strings.TrimRight(lines[i].text, " ")
	before := strings.TrimSuffix(s, heading)
	if margin, ok := strings.CutSuffix(before, "+ Exception Group "); ok {
		return readGroup(lines, i, len(margin))
	}
	margin := ""
	if i+1 < len(lines) && before != "" && strings.HasPrefix(lines[i+1].text, before+"  ") {
		margin = before
	}
	text = append(text, heading)
	end = i + 1
	blanks, intruders := 0, 0
	for j := i + 1; j < len(lines) && blanks <= 1 && intruders <= maxIntruders; j++ {
		s, ok := strings.CutPrefix(lines[j].text, margin)
		switch {
		case !ok:
			intruders++
			continue
		case isHeading(s):
			return text, "", end
		case strings.TrimSpace(s) == "":
			blanks++
			continue
		case isException(s):
			text = append(text, s)
			more, inner, next := readMessage(lines, j+1, margin, depth)
			return append(text, more...), strings.TrimSpace(s + inner), next
		case !strings.HasPrefix(s, "  "):
			if intruders++; intruders > maxIntruders || !framesFollow(lines, j+1, margin) {
				return text, "", end
			}
		}
		blanks = 0
		text = append(text, s)
		end = j + 1
	}
	return text, "", end
}

// framesFollow reports whether a traceback goes on after a line that is not part
// of it.
func framesFollow(lines []line, i int, margin string) bool {
	for j := i; j < len(lines) && j < i+5; j++ {
		s, ok := strings.CutPrefix(lines[j].text, margin)
		switch {
		case ok && isFrame(s):
			return true
		case ok && isHeading(s):
			return false
		}
	}
	return false
}

// readMessage reads the further lines of an exception's message, whose first
// line was the one before i. Nothing marks its end, so it ends at what is
// certainly something else. A traceback within the message, which is how an
// error of another process is passed on, gives inner, to be added to the gist.
func readMessage(lines []line, i int, margin string, depth int) (text []string, inner string, end int) {
	end = i
	blanks := 0
	for j := i; j < len(lines) && j-i < maxMessage && blanks <= 1; j++ {
		s, ok := strings.CutPrefix(lines[j].text, margin)
		switch {
		case strings.TrimSpace(s) == "":
			blanks++
			continue
		case !ok || isLink(s) || isElse(s):
			return text, inner, end
		case isHeading(s):
			carried := s == "Original "+heading || len(text) > 0 && strings.HasPrefix(text[len(text)-1], "-- Process ")
			if !carried || inner != "" || depth == maxCarried {
				return text, inner, end
			}
			part, gist, next := readBlock(lines, j, depth+1)
			part[0] = s
			text = append(text, part...)
			if gist != "" {
				inner = " " + gist
			}
			j, end, blanks = next-1, next, 0
			continue
		}
		if blanks > 0 {
			text = append(text, "")
		}
		blanks = 0
		text = append(text, s)
		end = j + 1
	}
	return text, inner, end
}

// logLine matches the begin of a log's line: glog's (W1121 10:11:12), or one with a date.
var logLine = regexp.MustCompile(`^\[?([IWEFCD][0-9]{4}[ 0-9]|[0-9]{4}-[0-9]{2})`)

// isElse reports whether a line after an exception belongs to something else for
// certain: another crash or a line of a log.
func isElse(s string) bool {
	return begins(s, "Exception ignored ", "Exception in thread ", "Fatal Python error: ", "terminate called ",
		"Error in ", "--- Logging error", "Current thread 0x", "Thread 0x", "[rank") || logLine.MatchString(s)
}

// exception matches a dotted name, alone or before a colon; level one that is a log's.
var (
	exception = regexp.MustCompile(`^[_\pL]([_\pL\p{Nd}.<>]*[_\pL\p{Nd}<>])?(:( |$)|$)`)
	level     = regexp.MustCompile(`^(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)(:|$)`)
)

// isException matches the line that ends a traceback.
func isException(s string) bool { return exception.MatchString(s) && !level.MatchString(s) }

// readGroup reads the traceback of an exception group whose '+' is at column
// indent of line i. Its gist names the first few exceptions within.
func readGroup(lines []line, i, indent int) (text []string, gist string, end int) {
	var inner []string
	margin := strings.Repeat(" ", indent) + "| "
	if prefix := lines[i].text[:min(indent, len(lines[i].text))]; strings.TrimSpace(prefix) != "" {
		margin = prefix + "| "
	}
	text = append(text, lines[i].text)
	j := i + 1
	for ; j < len(lines); j++ {
		s := lines[j].text
		body := strings.TrimLeft(s, " |")
		if edge := strings.TrimLeft(s, " "); edge == "" || edge[0] != '|' && edge[0] != '+' {
			break
		}
		text = append(text, s)
		if body == "" || body[0] == '+' {
			continue
		}
		switch own, ok := strings.CutPrefix(s, margin); {
		case ok && isException(own):
			gist = own
		case !strings.HasSuffix(strings.TrimSuffix(s, body), "| ") || !isException(body):
		case len(inner) < 3 && !strings.Contains(body, "sub-exception"):
			inner = append(inner, body)
		}
	}
	if gist != "" && len(inner) > 0 {
		gist += ": " + strings.Join(inner, "; ")
	}
	return text, gist, j
}

// readHeadless reads a traceback without heading from its first frame: that of
// a syntax error in the script itself, or the rest of one whose beginning is
// no longer there.
func readHeadless(lines []line, i int) (text []string, gist string, end int) {
	for end = i; end < len(lines) && strings.HasPrefix(lines[end].text, "  "); end++ {
		text = append(text, lines[end].text)
	}
	if end == len(lines) || !isException(lines[end].text) {
		return nil, "", end
	}
	last := lines[end].text
	name, _, _ := strings.Cut(last, ":")
	syntax := (name == "SyntaxError" || name == "IndentationError" || name == "TabError") &&
		!strings.Contains(lines[i].text, ", in ") && len(text) <= 4
	if !syntax {
		// Only what stands at the very beginning can have lost its heading.
		for n, l := range lines[:i] {
			if n > 0 && !strings.HasPrefix(l.text, "  ") || strings.Contains(l.text, "(most recent call") {
				return nil, "", end
			}
		}
		text = slices.Insert(text, 0, "[... the beginning is lost ...]")
	}
	more, inner, next := readMessage(lines, end+1, "", 0)
	return append(append(text, last), more...), strings.TrimSpace(last + inner), next
}

// readFatal reads what the interpreter prints when it dies, in faulthandler's
// form.
func readFatal(lines []line, i int) (text []string, gist string, end int) {
	gist = strings.TrimPrefix(lines[i].text, "Fatal Python error: ")
	current := false
	for end = i + 1; end < len(lines); end++ {
		s := lines[end].text
		switch {
		case strings.HasPrefix(s, "Current thread"):
			current = true
		case strings.HasPrefix(s, "  "):
			if where := frameOf(s); current && where != "" {
				gist += " in " + where
				current = false
			}
		case strings.TrimSpace(s) != "" && !begins(s, "Thread 0x", "Extension modules:", "Stack (most recent call first)",
			"Python runtime state:", "<no Python frame>"):
			return textOfLines(lines[i:end]), gist, end
		}
	}
	return textOfLines(lines[i:]), gist, end
}

// textOfLines returns the text of lines, without blank ones at the end.
func textOfLines(lines []line) (text []string) {
	for _, l := range lines {
		text = append(text, l.text)
	}
	for len(text) > 0 && strings.TrimSpace(text[len(text)-1]) == "" {
		text = text[:len(text)-1]
	}
	return text
}

// frameOf reads faulthandler's `  File "a.py", line 3 in f` as "f (a.py:3)".
func frameOf(s string) string {
	file, rest, ok := strings.Cut(strings.TrimPrefix(s, `  File "`), `", line `)
	number, name, in := strings.Cut(rest, " in ")
	if !ok || !in {
		return ""
	}
	return name + " (" + file + ":" + number + ")"
}

// readTerminate reads what the C++ runtime prints of an exception that nobody
// caught.
func readTerminate(lines []line, i int) (text []string, gist string, end int) {
	text, gist, end = []string{lines[i].text}, lines[i].text, i+1
	if _, name, ok := strings.Cut(gist, "throwing an instance of '"); ok {
		gist = "C++ exception " + strings.TrimSuffix(name, "'")
	}
	if end < len(lines) {
		if what, ok := strings.CutPrefix(strings.TrimLeft(lines[end].text, " "), "what():"); ok {
			more, _, next := readMessage(lines, end+1, "", 0)
			return append(append(text, lines[end].text), more...), gist + ": " + strings.TrimSpace(what), next
		}
	}
	return text, gist, end
}

// readPanic reads a Go program's last words.
func readPanic(lines []line, i int) (text []string, gist string, end int) {
	if !slices.ContainsFunc(lines[i:min(i+12, len(lines))], func(l line) bool {
		return strings.HasPrefix(l.text, "goroutine ")
	}) {
		return nil, "", i
	}
	size := 0
	for end = i; end < len(lines) && size < maxTraceback; end++ {
		size += len(lines[end].text) + 1
	}
	return textOfLines(lines[i:end]), strings.ToValidUTF8(lines[i].text, "\ufffd"), end
}
