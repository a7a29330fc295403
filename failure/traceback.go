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
	maxScan      = 64 << 10 // bytes of stderr that are looked at, from its end
	maxStreams   = 64       // processes that mark their lines
	maxMessage   = 200      // lines of an exception's message
	maxIntruders = 20       // lines of others in the middle of a traceback
	maxBetween   = 4        // lines between a traceback and the abort that follows from it
	shortest     = 7        // bytes of a line by itself or the begin of an account
	maxBehind    = 100      // lines between the failure of a child and what its parent says of it
)

// What C++ says of an abort without an exception of its own.
const noException = "terminate called without an active exception"

// Kinds of account.
const (
	python       = "python"
	faulthandler = "faulthandler" // Python's own account of a deadly signal
	native       = "native"       // C++'s std::terminate, or the last line of a library that aborts
	goPanic      = "go"
	oneLiner     = "line" // a line by itself
)

// An account is what a program has written about its own crash, found in its stderr.
type account struct {
	Kind string // whose account it is
	// Text is all of it, without line prefixes, terminal sequences and final newline.
	Text      string
	Exception string // its gist in one line: "ValueError: boom"
	Last      bool   // nothing but blank lines and farewells came after it
	Aborted   bool   // an exception ended the program, and a crash followed from that

	start, end int    // lines of stderr; end is the one after the last
	stream     string // the prefix of its lines
	text       []string
	said       string // the line that Exception was made of
	shape      *shape // of a line by itself
	harmless   bool   // of a sort that ends no process, such as a thread's
	lost       bool   // it tells of a peer that is lost
	uncertain  bool   // others may say more
	near       bool   // few lines came after it
}

// lift finds the account in stderr that explains an end with exitCode (-N for signal N): the last one, since
// the process outlived the earlier ones, unless shapes know better. A chain of tracebacks counts as one. At most
// the last 64 KiB are looked at.
//
// It goes over the lines of each process once (scan). Where an account begins, one of the readers takes what
// belongs to it. Others write to the same stream, and nothing marks an end: so readers let some lines of others
// pass, and all have a limit, so that a hostile stream costs no more than its size.
func lift(stderr []byte, exitCode int) (account, bool) {
	streams, last := split(string(stderr[max(0, len(stderr)-maxScan):]))
	var all []account
	for prefix, lines := range streams {
		all = append(all, scan(lines, prefix)...)
	}
	slices.SortStableFunc(all, func(a, b account) int { return cmp.Or(a.start-b.start, cmp.Compare(a.stream, b.stream)) })
	if len(all) == 0 {
		return account{}, false
	}
	best, weight := 0, 0
	for i := range all {
		if w := all[i].weight(exitCode); w >= weight {
			best, weight = i, w
		}
	}
	kind := all[best].Kind
	best = behind(all, best)
	a := all[best]
	if a.Kind == oneLiner {
		a.Kind = kind
	}
	a.uncertain = weight < 2 // unless another account names it
	reasonOf := func(b account) bool {
		return b.shape != nil && b.shape.role == asserted && strings.Contains(a.Exception, b.shape.says)
	}
	if i := slices.IndexFunc(all, reasonOf); i >= 0 {
		a.Exception += ": " + all[i].Exception
	}
	a.complete(all)
	// Python's stack goes with the C++ exception that killed it.
	if i := best + 1; a.Kind == native && i < len(all) && all[i].Kind == faulthandler {
		a.text, a.end = slices.Concat(a.text, []string{""}, all[i].text), all[i].end
		if _, where, ok := strings.Cut(all[i].Exception, " in "); ok {
			a.Exception += ", in " + where
		}
	}
	// What crashes when Python ends after an exception follows from that.
	if best > 0 && a.Kind != python {
		said := strings.HasPrefix(a.Exception, noException)
		if b := all[best-1]; (b.Kind == python || said && b.Kind == oneLiner) && !b.harmless && a.start-b.end <= maxBetween &&
			(said || a.Kind == faulthandler && !strings.HasSuffix(a.Exception, ")") || b.stream != "") {
			b.text, b.end, b.Aborted = slices.Concat(b.text, []string{""}, a.text), a.end, true
			a = b
		}
	}
	a.Last, a.near = a.end > last, a.end+maxBetween > last
	a.Text = boundTraceback(strings.Join(a.text, "\n"), maxTraceback)
	return a, true
}

// complete gives what pytest says of a test, of which it cuts off the end, the whole error above.
func (a *account) complete(all []account) {
	test, shown, _ := strings.Cut(a.Exception, " - ")
	i := slices.IndexFunc(all, func(b account) bool {
		return b.shape != nil && b.shape.role == raised && strings.HasPrefix(b.said, strings.TrimSuffix(shown, "..."))
	})
	if i >= 0 && a.shape != nil && a.shape.name == "pytest" {
		a.Exception, a.lost = test+" - "+all[i].said, all[i].lost
	}
}

// weight is how well an account goes with the way the process ended.
func (a *account) weight(exitCode int) int {
	crash := exitCode < 0 && crashed(syscall.Signal(-exitCode))
	switch {
	case a.harmless, a.Kind == oneLiner && exitCode < 0:
		return 0
	case a.Kind == python && crash, a.Kind == native && a.shape != nil && !crash, a.shape != nil && a.shape.role == logged:
		return 1
	case a.Kind == native:
		return 3 // rather than the dump that Python adds to it
	}
	return 2
}

// behind returns the number of the account from which account i follows; i where that is not known.
func behind(all []account, i int) int {
	found, next := i, &all[i]
	for j := i - 1; is(above, all[i].said) && j >= 0 && next.start-all[j].end <= maxBehind; j-- {
		if next = &all[j]; is(above, next.said) || next.shape != nil && next.shape.role != crash && next.shape.role != reason {
			continue
		}
		if found = j; !next.lost {
			break
		}
	}
	if a := &all[found]; a.lost && a.stream != "" { // one of several ranks whose words are woven
		if j := slices.IndexFunc(all, func(b account) bool {
			return b.stream != a.stream && b.Kind == python && !b.lost && !b.harmless && !is(above, b.said)
		}); j >= 0 {
			return j
		}
	}
	return found
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

// split cuts stderr into lines by the process whose prefix they have, and returns the number of the last that is
// neither blank nor a farewell, -1 without one. A line that was overwritten by carriage returns is what was left of it.
func split(stderr string) (streams map[string][]line, last int) {
	streams, last = map[string][]line{}, -1
	n, blanks := -1, 0
	for text := range strings.SplitSeq(stderr, "\n") {
		if n++; text != "" {
			blanks = 0
		} else if blanks++; blanks > 3 {
			continue // they end whatever it is
		}
		text = strings.TrimRight(stripANSI(text), "\r")
		text = text[strings.LastIndexByte(text, '\r')+1:]
		prefix := rankPrefix.FindString(text)
		if text = text[len(prefix):]; len(streams) >= maxStreams && streams[prefix] == nil {
			prefix = ""
		}
		if s := strings.TrimSpace(text); s != "" && !is(farewell, s) {
			last = n
		}
		if i := strings.Index(text, heading); i > 0 && text[0] == '{' { // a record of a JSON log, perhaps cut off
			text = unquoted.Replace(quoted.FindString(text[i:]))
		}
		for text := range strings.SplitSeq(text, "\n") {
			streams[prefix] = append(streams[prefix], line{text, n})
		}
	}
	return streams, last
}

// quoted is what is left of a text in JSON; unquoted takes back what JSON has done to it.
var (
	quoted   = regexp.MustCompile(`^(?:[^"\\]|\\.)*`)
	unquoted = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\"`, `"`, `\\`, `\`)
)

// rankPrefix is torch's "[rank0]: " before a line, or Ray's "(Name pid=1) "; logPrefix what torch's C++ code has, or
// pytest, before one. Source: _distributed_excepthook in torch/distributed/distributed_c10d.py.
var (
	rankPrefix = regexp.MustCompile(`^(?:\[rank\d+\]: |\([\w.:]+ pid=\d+(?:, ip=[\d.]+)?\) )`)
	logPrefix  = regexp.MustCompile(`^(?:\[rank\d+\]:\[\w+ \S+ \S+\] |E {3,})`)
)

// scan finds all accounts of a process in order.
func scan(lines []line, stream string) (all []account) {
	end, after := 0, 0
	for i := 0; i < len(lines); i = end {
		a, s := account{}, lines[i].text
		end = i + 1
		if read := readers[opens(s)]; read != nil {
			a, end = read(lines, i)
			end = max(end, i+1)
		} else if len(s) >= shortest {
			a = readLine(strings.TrimSpace(s), lines[end:])
		}
		a.start, a.end, a.stream = lines[i].n, lines[end-1].n+1, stream
		n := len(all) - 1
		if i > after && strings.HasPrefix(a.Exception, "Aborted") || i > 0 && n < 0 && a.Exception == noException {
			// Something may have said why.
			if said := strings.TrimSpace(lines[i-1].text); said != "" && !isElse(said) && !is(farewell, said) {
				a.Exception += "; the line above: " + oneLine(said, maxCause/2)
			}
		}
		switch same := a.shape != nil && n >= 0 && all[n].shape == a.shape; {
		case a.Exception == "":
			continue
		case same && a.shape.role == logged: // the last one says it
			all[n] = a
		case same && all[n].end == a.start: // the first one says it
			all[n].end = a.end
		default:
			// Cython prints what it ignores twice: before the announcement, and after it.
			if a.harmless && n >= 0 && slices.Equal(all[n].text, a.text) {
				all[n].harmless = true
			}
			all = append(all, a)
		}
		after = end
	}
	return all
}

// readLine reads a line by itself, to which the next ones may belong.
func readLine(s string, next []line) (a account) {
	for _, r := range [...]role{crash, reason, asserted, raised, logged} {
		if a.shape = find(r, s); a.shape == nil {
			continue
		}
		a.Kind, a.text, a.harmless = oneLiner, []string{s}, r == asserted || r == raised
		a.Exception = logPrefix.ReplaceAllString(s, "")
		if s = a.Exception; is(open, s) {
			a.Exception = gist(strings.Join(textOfLines(append([]line{{text: s}}, next[:min(len(next), 3)]...)), "\n"))
		}
		if r == crash {
			a.Kind = native
		}
		a.said, a.lost = a.Exception, tellsOfPeer(s+"\n"+a.Exception, "")
		break
	}
	return a
}

// readers read an account that begins at line i; end is the line after it. If there is none, its Exception
// is empty.
var readers = map[string]func(lines []line, i int) (a account, end int){
	"chain": readChain, "headless": readHeadless, "fatal": readFatal, "terminate": readTerminate, "panic": readPanic,
}

const heading = "Traceback (most recent call last):"

// opens returns the reader of what a line begins, "" without one.
func opens(s string) string { return cmp.Or(find(begins, strings.TrimRight(s, " ")), &shape{}).says }

// isFrame matches the line of a stack frame and the one that a syntax error has.
func isFrame(s string) bool { return opens(s) == "headless" }

// goesOnAfter looks at the line above a heading. Python prints these tracebacks and continues.
func goesOnAfter(lines []line, i int) bool {
	before := strings.TrimSuffix(lines[i].text, heading)
	for i--; i >= 0; i-- {
		if s := strings.TrimPrefix(lines[i].text, before); strings.TrimSpace(s) != "" && !is(aside, s) {
			return is(goesOn, s)
		}
	}
	return false
}

// readChain reads a traceback and those chained to it, or within its message, which is how an error of another process
// is passed on. The last one counts, unless an earlier one says more.
func readChain(lines []line, i int) (a account, end int) {
	var text []string
	var first, part account
	harmless, carried := goesOnAfter(lines, i), false
	for {
		outer := part
		part, end = readBlock(lines, i)
		text = append(text, part.text...)
		if carried {
			part.Exception = oneLine(outer.said+" "+part.Exception, maxCause)
			part.said, part.lost = outer.said, outer.lost || part.lost
		}
		if first.said == "" || first.said == part.said {
			first = part
		}
		if part.said != "" && (a.said == "" || a.weak() || !part.weak()) {
			a = part
		}
		link, at := next(lines, end)
		opener, j := next(lines, at+1)
		carried = link == "Original "+heading || opens(link) == "chain" && strings.HasPrefix(text[len(text)-1], "-- Process ")
		if carried {
			i = at
		} else if is(between, link) && opens(opener) == "chain" {
			text, i = append(text, "", link, ""), j
		} else {
			break
		}
	}
	a.harmless = harmless || slices.ContainsFunc(text, func(s string) bool { return is(within, s) })
	a.text, a.lost = text, first.lost
	return a, end
}

// weak reports whether any other error of a chain says more of the cause.
func (a *account) weak() bool { return a.lost || is(leaving, a.said) || is(vague, a.said) }

// next is the next line from i on that is not blank, passing at most two; an empty one at the end.
func next(lines []line, i int) (string, int) {
	for end := i + 2; i < end && i < len(lines) && strings.TrimSpace(lines[i].text) == ""; i++ {
	}
	if i < len(lines) {
		return lines[i].text, i
	}
	return "", i
}

// readBlock reads one traceback whose heading is line i: its text without
// margin, its gist, and the line after it.
func readBlock(lines []line, i int) (a account, end int) {
	s, margin := strings.TrimRight(lines[i].text, " "), ""
	before, plain := strings.CutSuffix(s, heading)
	if strings.HasSuffix(before, "+ Exception Group ") {
		return readGroup(lines, i)
	}
	if plain && before != "Original " {
		s = heading
	}
	if box := strings.TrimLeft(s, " "); strings.HasPrefix(box, "\u256d") { // rich's, in a column of its log
		margin = s[:len(s)-len(box)]
	} else if opens(s) == "chain" && !plain { // what another rank has raised
		if at := strings.Index(s, heading); at > 0 {
			before, plain = s[:at], true
		}
	}
	if i+1 < len(lines) && plain && before != "" && strings.HasPrefix(lines[i+1].text, before+"  ") {
		margin = before
	}
	a, end = readStack(lines, i+1, margin)
	a.text = slices.Insert(a.text, 0, s)
	return a, end
}

// readStack reads the frames from line i on, and the error.
func readStack(lines []line, i int, margin string) (a account, end int) {
	blanks, intruders := 0, 0
	end = i
	for j := i; j < len(lines) && blanks <= 1 && intruders <= maxIntruders; j++ {
		s, ok := strings.CutPrefix(lines[j].text, margin)
		switch {
		case !ok:
			intruders++
			continue
		case opens(s) == "chain":
			return a, end
		case strings.TrimSpace(s) == "":
			blanks++
			continue
		case isException(s):
			more, end := readMessage(lines, j+1, margin)
			a.finish(s, more)
			return a, end
		case !begin(s, "  ", "> File \"", "\u2502", "\u2570"): // the others are loguru's and rich's
			if intruders++; intruders > maxIntruders || !slices.ContainsFunc(lines[j+1:min(j+6, len(lines))],
				func(l line) bool { return isFrame(strings.TrimPrefix(l.text, margin)) }) {
				return a, end // the traceback does not continue
			}
		}
		blanks = 0
		a.text = append(a.text, s)
		end = j + 1
	}
	return a, end
}

// finish adds the message of the error to its stack.
func (a *account) finish(first string, more []string) {
	message := strings.Join(append([]string{first}, more...), "\n")
	a.Kind, a.said, a.Exception = python, strings.TrimSpace(first), gist(message)
	frame, own, source, users := "", "", "", false
	for j, s := range a.text {
		if !isFrame(s) {
			continue
		}
		frame = s
		next := a.text[min(j+1, len(a.text)-1)]
		// The user's code says most, unless a library asserts something.
		if ours := !is(library, s); ours || !users || strings.HasPrefix(strings.TrimSpace(next), "assert ") {
			users = users || ours
			if own, source = frameOf(s), ""; !isFrame(next) {
				source = ": " + strings.TrimSpace(next)
			}
		}
	}
	if bare.MatchString(a.said) && own != "" && !is(leaving, a.said) {
		a.Exception += " in " + own + source
	}
	a.lost = tellsOfPeer(message, frame)
	a.text = append(append(a.text, first), more...)
}

// bare is a message that says nothing, or only names a key.
var bare = regexp.MustCompile(`^[\pL\pN_.<>]+(:|: ['"\-\d(\[]\S*|: '[^']*')?$`)

// readMessage reads the further lines of an exception's message, whose first line was the one before i. Nothing marks
// its end, so it ends at what is certainly something else.
func readMessage(lines []line, i int, margin string) (text []string, end int) {
	end = i
	blanks := 0
	for j := i; j < len(lines) && j-i < maxMessage && blanks <= 1; j++ {
		s, ok := strings.CutPrefix(lines[j].text, margin)
		if strings.TrimSpace(s) == "" {
			blanks++
			continue
		}
		if !ok || isElse(s) || opens(s) == "chain" {
			break
		}
		if blanks > 0 {
			text = append(text, "")
		}
		blanks = 0
		text = append(text, s)
		end = j + 1
	}
	return text, end
}

// logLine matches the begin of a log's line: glog's (W1121 10:11:12), or one with a date.
var logLine = regexp.MustCompile(`^\[?([IWEFCD][0-9]{4}[ 0-9]|[0-9]{4}-[0-9]{2})`)

// isElse reports whether a line after an exception belongs to something else for
// certain: another crash or a line of a log.
func isElse(s string) bool {
	return is(between, s) || is(other, s) || is(goesOn, s) || logLine.MatchString(s)
}

// exception matches a dotted name, alone or before a colon; level one that is a log's.
var (
	exception = regexp.MustCompile(`^[_\pL]([_\pL\p{Nd}.<>]*[_\pL\p{Nd}<>])?(:( |$)|$)`)
	level     = regexp.MustCompile(`^(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)(:|$)`)
)

// isException matches the line that ends a traceback.
func isException(s string) bool { return exception.MatchString(s) && !level.MatchString(s) }

// readGroup reads the traceback of an exception group from line i. Its gist names the first few exceptions within.
func readGroup(lines []line, i int) (a account, end int) {
	a.Kind, a.text = python, []string{lines[i].text}
	said := []string{}
	for end = i + 1; end < len(lines) && begin(strings.TrimLeft(lines[end].text, " "), "|", "+"); end++ {
		s := lines[end].text
		a.text = append(a.text, s)
		if body := strings.TrimLeft(s, " |"); strings.HasSuffix(strings.TrimSuffix(s, body), "| ") && isException(body) &&
			(len(said) == 0 || !strings.Contains(body, "sub-exception")) {
			a.lost = (len(said) == 1 || a.lost) && tellsOfPeer(body, "") // each of them
			said = append(said, body)
		}
	}
	if len(said) > 0 {
		a.said, a.Exception = said[0], strings.TrimSuffix(said[0]+": "+strings.Join(said[1:min(len(said), 4)], "; "), ": ")
	}
	return a, end
}

// readHeadless reads a traceback without heading from its first frame: that of
// a syntax error in the script itself, or the rest of one whose beginning is
// no longer there.
func readHeadless(lines []line, i int) (a account, end int) {
	a, end = readStack(lines, i, "")
	if begin(a.said, "SyntaxError:", "IndentationError:", "TabError:") && !strings.Contains(lines[i].text, ", in ") {
		return a, end
	}
	// Only what stands at the very beginning can have lost its heading.
	for n, l := range lines[:i] {
		if n > 0 && !strings.HasPrefix(l.text, "  ") || strings.Contains(l.text, "(most recent call") {
			return account{}, end
		}
	}
	a.text = slices.Insert(a.text, 0, "[... the beginning is lost ...]")
	return a, end
}

// readFatal reads what the interpreter prints when it dies, or when it has waited for too long, in
// faulthandler's form. There the main thread is the last one.
func readFatal(lines []line, i int) (a account, end int) {
	a.Kind, a.Exception = faulthandler, strings.TrimPrefix(lines[i].text, "Fatal Python error: ")
	timeout, current, where := a.Exception == lines[i].text, false, ""
	for end = i + 1; end < len(lines); end++ {
		s := lines[end].text
		if begin(s, "Current thread", "Thread 0x") {
			if current = timeout || s[0] == 'C'; timeout {
				where = ""
			}
		} else if strings.HasPrefix(s, "  ") {
			if current && where == "" {
				where = cmp.Or(frameOf(s), "a thread without Python frames")
			}
		} else if strings.TrimSpace(s) != "" && !begin(s, "Extension modules:", "Stack (most recent call first)",
			"Python runtime state:", "<no Python frame>") {
			break
		}
	}
	if timeout && end < len(lines) { // it continued
		return account{}, end
	}
	a.text = textOfLines(lines[i:end])
	if where != "" {
		a.Exception += " in " + where
	}
	return a, end
}

// textOfLines returns the text of lines, without blank ones at the end.
func textOfLines(lines []line) (text []string) {
	for _, l := range lines {
		text = append(text, l.text)
	}
	return strings.Split(strings.TrimRight(strings.Join(text, "\n"), " \n"), "\n")
}

// frameOf reads a line such as `  File "a.py", line 3 in f` as "f (a.py:3)".
func frameOf(s string) string {
	file, rest, ok := strings.Cut(strings.TrimPrefix(s, `  File "`), `", line `)
	number, name, in := strings.Cut(rest, " in ")
	if !ok || !in {
		return ""
	}
	return name + " (" + file + ":" + strings.TrimSuffix(number, ",") + ")"
}

// readTerminate reads what the C++ runtime prints of an exception that nobody
// caught. Several processes may weave what they print of the same one.
func readTerminate(lines []line, i int) (a account, end int) {
	a.Kind, a.text, a.Exception, end = native, []string{lines[i].text}, strings.TrimSpace(lines[i].text), i+1
	if _, name, ok := strings.Cut(a.Exception, "throwing an instance of '"); ok {
		name, _, _ = strings.Cut(name, "terminate called")
		a.Exception = "C++ exception " + strings.Trim(name, "'")
	}
	for j := end; j < len(lines) && j < i+6; j++ {
		if what, ok := strings.CutPrefix(strings.TrimLeft(lines[j].text, " "), "what():"); ok {
			more, after := readMessage(lines, j+1, "")
			a.text = append(append(a.text, textOfLines(lines[end:j+1])...), more...)
			a.lost = tellsOfPeer(a.Exception+what+"\n"+strings.Join(more, "\n"), "")
			a.Exception += ": " + gist(strings.Join(append([]string{what}, more...), "\n"))
			return a, after
		}
	}
	return a, end
}

// readPanic reads a Go program's last words.
func readPanic(lines []line, i int) (a account, end int) {
	stack := func(l line) bool { return strings.HasPrefix(l.text, "goroutine ") }
	if !slices.ContainsFunc(lines[i:min(i+12, len(lines))], stack) {
		return a, i
	}
	a.Kind, a.text, a.Exception = goPanic, textOfLines(lines[i:]), strings.ToValidUTF8(lines[i].text, "\ufffd")
	return a, len(lines)
}

// begin reports whether a line begins in one of some ways.
func begin(s string, starts ...string) bool {
	return slices.ContainsFunc(starts, func(start string) bool { return strings.HasPrefix(s, start) })
}
