package pages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gm "github.com/yuin/goldmark/ast"
	tables "github.com/yuin/goldmark/extension/ast"

	words "github.com/muster-run/muster/internal/format/text"
)

// Of these packages the handbook need not have the messages.
var exemptPackages = map[string]string{
	"policy":                         "its errors say file, line, what is wrong and what is wanted; docs/restart-policy.md has the keys",
	"cmd/muster/internal/doctor":     "each line of muster doctor says what to do, and docs/doctor.md has them",
	"rendezvous/internal/pickle":     "its errors are wrapped in one that the handbook has; they say what is odd about a state",
	"internal/format/pyjson":         "what reads JSON; whoever uses it says what to do",
	"internal/host/procfs":           "what reads /proc; whoever uses it says what to do",
	"internal/job/autopsy":           "its problems are lines of autopsy.txt, which docs/hangs.md explains",
	"internal/host/numa":             "its errors are wrapped in one that the handbook has",
	"cmd/muster/internal/postmortem": "what muster report remarks on is not a failure of the job",
	"store/internal/kv":              "its error is wrapped by the stores",
}

const (
	ofLibrary = "of the Go library only: its documentation says more"
	ofPipe    = "muster checks these settings before it gives them to muster-quorum"
	handled   = "who calls this does without"
)

// Messages that the handbook need not have.
var exemptMessages = map[string]string{
	"panic: …": "of a worker that is a Go function; the rest is the panic's own text",
	"MaxInterval …: want more than zero, or zero for …":                                ofLibrary,
	"MaxTimers …: want more than zero, or zero for …":                                  ofLibrary,
	"… ms: want 0 to a day":                                                            ofPipe,
	"process: Logs is a nil *logs.Attempt; leave the field unset to have no logs":      ofLibrary,
	"timer FIFO …: server is nil; make one with NewServer":                             ofLibrary,
	"timer socket: server is nil; make one with NewServer":                             ofLibrary,
	"timer server: queue is nil; want a RequestQueue, such as a *timer.LocalQueue":     ofLibrary,
	"…: … requests wait in the queue; start a server with StartLocal":                  ofLibrary,
	"…: Queue is nil; want the one that StartLocal got":                                ofLibrary,
	"…: client is nil; FromEnv returns that of a worker":                               ofLibrary,
	"…: PID …: want a process number, or 0 for this process":                           ofLibrary,
	"agent: Run was called before; make another Agent with New":                        ofLibrary,
	"events: Handler is console, and Console is nil; want a writer, such as os.Stderr": ofLibrary,
	"events: Handler is file, and neither File nor LogDir says where; set one of them": ofLibrary,
	"the workers are not known any more and count as failed":                           ofLibrary,
	"the job has failed":                 "the command prints the report instead",
	"the server offers no such session":  handled,
	"module … has no attribute …":        "Python's own words for its own error",
	"a ChildFailedError needs a failure": "an assertion",
}

// What other programs say, and the handbook therefore may.
var saidByOthers = []string{
	"ValueError: boom", "exec format error", "no such file or directory", "permission denied", "no such host",
	"Connection reset by peer", "Connection closed by peer", "connection refused", "connection timed out", "exit status 1",
	"runtime: out of memory", "fatal error: failed to reserve page summary memory",
}

// advice tells a message that says what to do.
var advice = regexp.MustCompile(`; |\?|[:,] (?:want|name|give|use|choose|remove|copy|delete|end|start|leave|set|raise|lower|say)\b|Try to `)

// A said is a text that people may meet.
type said struct{ at, text string }

// A module is what the handbook is checked against.
type module struct {
	texts    []string // all string literals, with … for what is filled in
	messages []said   // what the handbook must have
	logged   []said   // those of them that are warnings or errors of a log
}

var verbs = regexp.MustCompile(`%[-+# 0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:\[\d+\])?[a-zA-Z]`)

// The handbook has every message that people may meet and that is not exempt, and none
// that muster does not write. People may meet, in what the programs link: the message
// of each Warn and Error of a log; the text of each exported error; whatever is wrong
// with a command line; and each error that says what to do.
func TestHandbook(t *testing.T) {
	code := readModule(t)
	page := readPage(t, "handbook.md")
	spans := codeSpans(page, false)
	for _, span := range codeSpans(page, true) {
		for _, piece := range pieces(span) {
			if !slices.ContainsFunc(code.texts, func(text string) bool { return strings.Contains(text, piece) }) &&
				!slices.ContainsFunc(saidByOthers, func(text string) bool { return strings.Contains(piece, text) }) {
				t.Errorf("docs/handbook.md: `%s`: no text of the code has %q", span, piece)
			}
		}
	}
	used := map[string]bool{}
	for _, m := range code.messages {
		if exemptMessages[m.text] != "" {
			used[m.text] = true
			continue
		}
		key := longest(m.text)
		if !slices.ContainsFunc(spans, func(span string) bool { return strings.Contains(span, key) }) {
			t.Errorf("%s: the handbook lacks %q: %s", m.at, key, m.text)
		}
	}
	for text := range exemptMessages {
		if !used[text] {
			t.Errorf("exempt, but no message: %s", text)
		}
	}
	if len(code.messages) < 150 {
		t.Errorf("only %d messages were found", len(code.messages))
	}
}

// Each message in the handbook has a meaning and something to do.
func TestHandbookIsComplete(t *testing.T) {
	for heading, rows := range readTables(readPage(t, "handbook.md")) {
		for _, r := range rows {
			if heading != "Messages" && (len(r.cells) != 3 || slices.Contains(r.cells, "")) {
				t.Errorf("docs/handbook.md, %s: a row does not have three full cells: %q", heading, r.cells)
			}
		}
	}
}

// longest is the longest piece of a message's beginning, before what to do; of all of it
// where the beginning says nothing.
func longest(text string) string {
	head := text
	if at := advice.FindStringIndex(text); at != nil {
		head = text[:at[0]]
	}
	best := ""
	for _, part := range []string{head, text} {
		for _, piece := range pieces(part) {
			if len(piece) > len(best) {
				best = piece
			}
		}
		if strings.Contains(best, " ") {
			break
		}
	}
	return best
}

var placeholder = regexp.MustCompile(`…|"[^"]*"|\b(?:N|M|NAME|DIR|HOST|FILE|LINE|COLUMN|ADDR|KEY|VALUE)\b`)

// pieces are the literal parts of a message.
func pieces(text string) []string {
	var found []string
	for _, piece := range placeholder.Split(text, -1) {
		if piece = strings.Trim(piece, " \n\"':,;()=-"); len(piece) > 3 {
			found = append(found, piece)
		}
	}
	return found
}

func readPage(t *testing.T, name string) *page {
	t.Helper()
	pages, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(pages, func(p *page) bool { return p.source == "docs/"+name })
	if i < 0 {
		t.Fatalf("there is no docs/%s", name)
	}
	return pages[i]
}

// codeSpans are the texts in a page's backquotes; if first, only of the first cell of
// each row of a table.
func codeSpans(p *page, first bool) []string {
	var found []string
	_ = gm.Walk(p.tree, func(n gm.Node, entering bool) (gm.WalkStatus, error) {
		if first && n.Kind() == tables.KindTableCell && n.PreviousSibling() != nil {
			return gm.WalkSkipChildren, nil
		}
		if n.Kind() == gm.KindCodeSpan && entering && (!first || within(n, tables.KindTableCell)) {
			found = append(found, string(plain(n, p.text)))
		}
		return gm.WalkContinue, nil
	})
	return found
}

func within(n gm.Node, kind gm.NodeKind) bool {
	for ; n != nil; n = n.Parent() {
		if n.Kind() == kind {
			return true
		}
	}
	return false
}

// readModule reads what the programs link of this module, and the Python package.
func readModule(t *testing.T) *module {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}\t{{.Dir}}{{end}}", "./cmd/muster", "./cmd/muster-quorum")
	cmd.Dir = "../../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	m := &module{}
	for line := range strings.Lines(string(out)) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		name, ours := strings.CutPrefix(path, "github.com/muster-run/muster/")
		if !ours {
			continue
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		set, parsed := token.NewFileSet(), map[string]*ast.File{}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				if parsed[file], err = parser.ParseFile(set, file, nil, parser.SkipObjectResolution); err != nil {
					t.Fatal(err)
				}
				m.readGo(name, file, set, parsed[file])
			}
		}
		unknown := loggedTexts(parsed, func(file string, at ast.Node, text string) {
			where := name + "/" + filepath.Base(file) + ":" + strconv.Itoa(set.Position(at.Pos()).Line)
			if exemptPackages[name] == "" && len(pieces(text)) > 0 && !slices.Contains(m.logged, said{where, text}) {
				m.logged = append(m.logged, said{where, text})
			}
		})
		for _, e := range unknown {
			texts, ok := loggedIndirectly[name+": "+e]
			if !ok {
				t.Errorf("%s logs %s: its texts are not known; say them in loggedIndirectly", name, e)
			}
			for _, text := range texts {
				m.logged = append(m.logged, said{name, text})
			}
		}
	}
	m.messages = append(m.messages, m.logged...)
	shapes, err := os.ReadFile("../../../failure/shapes.txt")
	if err != nil {
		t.Fatal(err)
	}
	m.texts = append(m.texts, string(shapes)) // the hints of reports
	files, _ := filepath.Glob("../../../python/muster/*.py")
	adopted, _ := filepath.Glob("../../../python/muster/adopted/*.py")
	for _, file := range append(files, adopted...) {
		m.readPython(t, file)
	}
	return m
}

func (m *module) readGo(pkg, file string, set *token.FileSet, tree *ast.File) {
	say := func(at ast.Node, text string) {
		if exemptPackages[pkg] == "" && len(pieces(text)) > 0 {
			m.messages = append(m.messages, said{pkg + "/" + filepath.Base(file) + ":" + strconv.Itoa(set.Position(at.Pos()).Line), text})
		}
	}
	for _, decl := range tree.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Name.Name == "Error" && decl.Recv != nil && exportedReceiver(decl) {
				ast.Inspect(decl, func(n ast.Node) bool {
					if e, ok := n.(ast.Expr); ok {
						if text := constant(e); text != "" {
							say(n, text)
							return false
						}
					}
					return true
				})
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && decl.Tok == token.VAR {
					for i, name := range v.Names {
						if call, ok := at(v.Values, i).(*ast.CallExpr); ok && strings.HasPrefix(name.Name, "Err") && len(call.Args) > 0 {
							say(call, constant(call.Args[0]))
						}
					}
				}
			}
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if text, sure := erring(n); sure || advice.MatchString(text) {
				say(n, text)
			}
		case ast.Expr:
			if text := constant(n); text != "" {
				m.texts = append(m.texts, text)
			}
		}
		return true
	})
}

// constants are the texts of a file's constants and variables of the package.
func constants(tree *ast.File) map[string]string {
	named := map[string]string{}
	for _, decl := range tree.Decls {
		if decl, ok := decl.(*ast.GenDecl); ok {
			for _, spec := range decl.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					for i, name := range v.Names {
						named[name.Name] = constant(at(v.Values, i))
					}
				}
			}
		}
	}
	return named
}

func at(values []ast.Expr, i int) ast.Expr {
	if i < len(values) {
		return values[i]
	}
	return nil
}

func exportedReceiver(f *ast.FuncDecl) bool {
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

// erring is the text of the error that a call makes; sure if nothing but the command
// line can be wrong.
func erring(call *ast.CallExpr) (text string, sure bool) {
	name := ""
	switch f := call.Fun.(type) {
	case *ast.Ident:
		name = f.Name
	case *ast.SelectorExpr:
		name = f.Sel.Name
	}
	if !slices.Contains([]string{"New", "Errorf", "errorf", "fail", "refuse", "warn", "argument"}, name) {
		return "", false
	}
	for _, arg := range call.Args {
		if text = constant(arg); strings.Contains(text, " ") {
			return text, name == "fail" || name == "warn" || name == "argument"
		}
	}
	return "", false
}

// constant is the text of a string, with … for what is not literal; "" if e is none.
func constant(e ast.Expr) string {
	text, ok := joined(e)
	if !ok {
		return ""
	}
	return verbs.ReplaceAllString(words.AsOptions.Replace(text), "…")
}

func joined(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.ParenExpr:
		return joined(e.X)
	case *ast.BinaryExpr:
		left, one := joined(e.X)
		right, other := joined(e.Y)
		if e.Op != token.ADD || !one && !other {
			return "", false
		}
		if !one {
			left = "…"
		}
		if !other {
			right = "…"
		}
		return left + right, true
	}
	return "", false
}

var (
	pythonDoc     = regexp.MustCompile(`(?s)"""[^"].*?"""`)
	pythonString  = regexp.MustCompile(`f?"((?:[^"\\\n]|\\.)*)"`)
	pythonRaise   = regexp.MustCompile(`raise (?:[\w.]+Error|error)\(\s*$`)
	pythonBetween = regexp.MustCompile(`^\s*$`)
	pythonFilled  = regexp.MustCompile(`%[\d.]*[a-z]|\{[^}]*\}`)
)

// readPython takes the strings of a Python file as they stand; those that follow each
// other are one. Messages are those of errors raised.
func (m *module) readPython(t *testing.T, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	source := pythonDoc.ReplaceAllString(string(content), "")
	found := pythonString.FindAllStringSubmatchIndex(source, -1)
	for i := 0; i < len(found); i++ {
		start, text := found[i][0], source[found[i][2]:found[i][3]]
		for ; i+1 < len(found) && pythonBetween.MatchString(source[found[i][1]:found[i+1][0]]); i++ {
			text += source[found[i+1][2]:found[i+1][3]]
		}
		text = pythonFilled.ReplaceAllString(text, "…")
		m.texts = append(m.texts, text)
		if pythonRaise.MatchString(source[:start]) && len(pieces(text)) > 0 {
			m.messages = append(m.messages, said{"python/muster/" + filepath.Base(file), text})
		}
	}
}
