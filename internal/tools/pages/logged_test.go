package pages

import (
	"go/ast"
	"go/types"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	gm "github.com/yuin/goldmark/ast"
)

// Calls that log a text which a test cannot follow, and what these texts are.
var loggedIndirectly = map[string][]string{
	"store/tcpstore: reasons[why].rest": {
		"tcpstore: more connections were refused",
		"tcpstore: more connections were refused: they did not prove that they belong to the job",
		"tcpstore: more connections were refused: the agents have a token, but this store has none",
		"tcpstore: more connections were closed: too many were open",
		"tcpstore: more connections were closed: they did not begin as a client of PyTorch 2 does",
		"tcpstore: more connections were closed for bad requests",
	},
	"timer: l.rest": {"more timer requests were malformed or refused"},
	"cmd/muster/internal/runline: \"--%s: %s\"": { // of policy.Notes
		"--restart-policy: …: rule … never decides: rule … before it matches everything",
		"--restart-policy: …: rule … has a budget of … restarts, but the job has …",
		"--restart-policy: …: rules retry, but the job has no restarts; set max_restarts in the file, or --max-restarts",
	},
	"cmd/muster/internal/runline: text": {},          // of reader.warn
	"rendezvous/internal/election: msg": {"etcd: …"}, // of muster-quorum, whose calls are found, and of etcd
}

// Messages of the log that have no ID.
var withoutID = map[string]string{
	"etcd: …": "shown with LOGLEVEL=DEBUG only",
	"the workers are not known any more and count as failed": ofLibrary,
	"the job has failed": "the command prints the report instead",
}

// logs are receivers that log.
var logs = regexp.MustCompile(`(?i)(^|\.)s?log(ger)?$`)

// loggedTexts finds what a package logs as a warning or an error, and the expressions of which
// it is not known. Functions that log a parameter are loggers, too.
func loggedTexts(files map[string]*ast.File, say func(file string, at ast.Node, text string)) (unknown []string) {
	loggers, named := map[string]int{}, map[string]string{}
	for _, file := range files {
		maps.Copy(named, constants(file))
		if file.Name.Name == "runline" {
			loggers["warn"] = 0 // of a reader: logged when the job starts
		}
	}
	for range 3 { // a function that calls one that calls one
		unknown = nil
		for name, file := range files {
			for _, decl := range file.Decls {
				f, ok := decl.(*ast.FuncDecl)
				if !ok || f.Body == nil {
					continue
				}
				var params []string
				for _, p := range f.Type.Params.List {
					for _, id := range p.Names {
						params = append(params, id.Name)
					}
				}
				ast.Inspect(f.Body, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if !ok {
						return true
					}
					i := loggedArgument(call, loggers)
					if i < 0 || i >= len(call.Args) || slices.ContainsFunc(call.Args, isQuiet) {
						return true
					}
					texts := textsOf(call.Args[i], named, f)
					if id, ok := call.Args[i].(*ast.Ident); ok && texts == nil && slices.Contains(params, id.Name) {
						loggers[f.Name.Name] = slices.Index(params, id.Name)
						return true
					}
					for _, text := range texts {
						say(name, n, text)
					}
					if !slices.ContainsFunc(texts, func(text string) bool { return len(pieces(text)) > 0 }) {
						unknown = append(unknown, types.ExprString(call.Args[i]))
					}
					return true
				})
			}
		}
	}
	return unknown
}

func isQuiet(e ast.Expr) bool {
	level, ok := e.(*ast.SelectorExpr)
	return ok && (level.Sel.Name == "LevelInfo" || level.Sel.Name == "LevelDebug")
}

// loggedArgument is the index of the argument that a call logs, -1 if it logs none.
func loggedArgument(call *ast.CallExpr, loggers map[string]int) int {
	name, receiver := "", ""
	switch f := call.Fun.(type) {
	case *ast.Ident:
		name = f.Name
	case *ast.SelectorExpr:
		name, receiver = f.Sel.Name, types.ExprString(f.X)
	}
	isLog := logs.MatchString(receiver)
	switch name {
	case "Warn", "Error", "Finish":
		if isLog {
			return 0
		}
		if len(call.Args) > 1 && logs.MatchString(types.ExprString(call.Args[0])) { // of admit.Tally
			return 1
		}
	case "Log", "LogAttrs":
		if isLog {
			return 2
		}
	default:
		if i, ok := loggers[name]; ok {
			return i
		}
	}
	return -1
}

// textsOf are the texts that an expression may have.
func textsOf(e ast.Expr, named map[string]string, within *ast.FuncDecl) (texts []string) {
	if call, ok := e.(*ast.CallExpr); ok && types.ExprString(call.Fun) == "fmt.Sprintf" {
		e = call.Args[0]
	}
	if text := constant(e); text != "" {
		return []string{text}
	}
	id, ok := e.(*ast.Ident)
	if !ok {
		return nil
	}
	if text := named[id.Name]; text != "" {
		return []string{text}
	}
	ast.Inspect(within.Body, func(n ast.Node) bool {
		if assign, ok := n.(*ast.AssignStmt); ok {
			for i, left := range assign.Lhs {
				if to, ok := left.(*ast.Ident); ok && to.Name == id.Name && i < len(assign.Rhs) {
					if text := constant(assign.Rhs[i]); text != "" {
						texts = append(texts, text)
					}
				}
			}
		}
		return true
	})
	return texts
}

// readMessages are the texts of cmd/muster/internal/console/messages.txt by ID.
func readMessages(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile(root + "/cmd/muster/internal/console/messages.txt")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(content)) {
		if id, text, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			found[id] = text
		}
	}
	return found
}

// has reports whether a text is in the code, perhaps put together of several.
func (m *module) has(text string) bool {
	if slices.ContainsFunc(m.texts, func(t string) bool { return strings.Contains(t, text) }) {
		return true
	}
	for _, at := range joint.FindAllStringIndex(text, -1) {
		if m.has(text[:at[0]]) && m.has(text[at[1]:]) {
			return true
		}
	}
	return false
}

var joint = regexp.MustCompile("[;:] ")

// Each warning and error of a log has an ID, and each text with an ID is in the code.
func TestIDs(t *testing.T) {
	code, ids := readModule(t), readMessages(t)
	have := map[string]bool{}
	for _, text := range ids {
		have[text] = true
		for _, piece := range pieces(text) {
			if !code.has(piece) {
				t.Errorf("messages.txt: %s: no text of the code has %q", text, piece)
			}
		}
	}
	for _, m := range code.logged {
		if !have[m.text] && withoutID[m.text] == "" {
			t.Errorf("%s: cmd/muster/internal/console/messages.txt lacks %s", m.at, m.text)
		}
	}
	if len(code.logged) < 130 {
		t.Errorf("only %d messages of the log were found", len(code.logged))
	}
}

var idHeading = regexp.MustCompile(`^M\d+$`)

// docs/handbook.md has each message with an ID below a heading of its own: its text, what it
// means, and what to do.
func TestHandbookIDs(t *testing.T) {
	p, ids := readPage(t, "handbook.md"), readMessages(t)
	p.walk(func(n gm.Node) {
		id := string(plain(n, p.text))
		if n.Kind() != gm.KindHeading || !idHeading.MatchString(id) {
			return
		}
		text := ids[id]
		if text == "" {
			t.Errorf("docs/handbook.md has %s, which is not an ID of a message", id)
		}
		delete(ids, id)
		var below []gm.Node
		for b := n.NextSibling(); b != nil && b.Kind() == gm.KindParagraph; b = b.NextSibling() {
			below = append(below, b)
		}
		if len(below) < 3 || string(plain(below[0], p.text)) != text || !strings.HasPrefix(string(plain(below[len(below)-1], p.text)), "What to do: ") {
			t.Errorf("docs/handbook.md, %s: want its text (%s), what it means, and \"*What to do:* …\"", id, text)
		}
	})
	for id, text := range ids {
		t.Errorf("docs/handbook.md lacks %s: %s", id, text)
	}
}
