package pages

import (
	"bufio"
	"bytes"
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/pypeer"
)

// torchNames prints the public names of modules of torch.distributed.elastic: classes, functions and
// what __all__ has, and the methods that a class defines.
const torchNames = `
import ast, importlib.util, os, sys
root = os.path.dirname(importlib.util.find_spec("torch").origin) + "/distributed/elastic/"
for module in sys.argv[1:]:
    with open(root + module) as f:
        tree = ast.parse(f.read())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            print("\n".join(ast.literal_eval(node.value)))
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        print(node.name)
        for m in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(m, ast.FunctionDef) and not m.name.startswith("_"):
                print(node.name, m.name)
`

// The page says what in Go stands for each public name of these modules, or why there is none.
func TestLibraryHasTorchsNames(t *testing.T) {
	out, err := exec.Command(pypeer.Python(t), "-c", torchNames, "timer/api.py", "timer/local_timer.py",
		"timer/file_based_local_timer.py", "agent/server/local_elastic_agent.py", "multiprocessing/api.py",
		"multiprocessing/subprocess_handler/subprocess_handler.py", "multiprocessing/subprocess_handler/handlers.py",
		"multiprocessing/tail_log.py", "multiprocessing/redirects.py", "multiprocessing/__init__.py",
		"multiprocessing/errors/__init__.py", "multiprocessing/errors/error_handler.py", "multiprocessing/errors/handlers.py",
		"agent/server/api.py", "rendezvous/api.py", "events/__init__.py", "events/api.py", "events/handlers.py",
		"metrics/__init__.py", "metrics/api.py").Output()
	if err != nil {
		t.Fatal(err)
	}
	rows := readTables(readPage(t, "library.md"))["Coming from TorchElastic"]
	count := 0
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); count++ {
		names := strings.Fields(lines.Text())
		if !slices.ContainsFunc(rows, func(r row) bool {
			return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(r.first, name) })
		}) {
			t.Errorf("docs/library.md lacks %s", lines.Text())
		}
	}
	if count < 150 {
		t.Errorf("only %d names were found:\n%s", count, out)
	}
}

var goName = regexp.MustCompile(`^([a-z][a-z0-9]*)\.([A-Z]\w*)(?:\.([A-Z]\w*))?$`)

// The names of Go on the page exist.
func TestLibraryHasGoNames(t *testing.T) {
	dirs := map[string]string{"tcpstore": "store/tcpstore", "c10d": "rendezvous/c10d"}
	known := map[string]map[string]bool{}
	count := 0
	for _, r := range readTables(readPage(t, "library.md"))["Coming from TorchElastic"] {
		for _, span := range r.rest {
			m := goName.FindStringSubmatch(span)
			if m == nil {
				t.Errorf("docs/library.md: %s is not written as package.Name", span)
				continue
			}
			dir := m[1]
			if d := dirs[dir]; d != "" {
				dir = d
			}
			if known[dir] == nil {
				known[dir] = exported(t, dir)
			}
			if name := strings.TrimPrefix(span, m[1]+"."); !known[dir][name] {
				t.Errorf("docs/library.md: there is no %s", span)
			}
			count++
		}
	}
	if count < 120 {
		t.Errorf("only %d names were found", count)
	}
}

// Each type of Go on the page is in an example of its package.
func TestLibraryTypesHaveExamples(t *testing.T) {
	dirs := map[string]string{"tcpstore": "store/tcpstore", "c10d": "rendezvous/c10d"}
	sources := map[string][]string{}
	count := 0
	for _, r := range readTables(readPage(t, "library.md"))["Coming from TorchElastic"] {
		for _, span := range r.rest {
			m := goName.FindStringSubmatch(span)
			if m == nil {
				continue // TestLibraryHasGoNames complains
			}
			dir := cmp.Or(dirs[m[1]], m[1])
			if sources[dir] == nil {
				sources[dir] = readSources(t, dir)
			}
			types, examples := sources[dir][0], sources[dir][1]
			if !regexp.MustCompile(`(?m)^(type ` + m[2] + ` |\t` + m[2] + ` (struct|interface)\b)`).MatchString(types) {
				continue // a function or a value
			}
			count++
			if !regexp.MustCompile(`func Example` + m[2] + `[_(]|\b` + m[1] + `\.` + m[2] + `\b`).MatchString(examples) {
				t.Errorf("no example in %s has %s.%s", dir, m[1], m[2])
			}
		}
	}
	if count < 60 {
		t.Errorf("only %d types were found", count)
	}
}

// readSources returns a package's code and its examples.
func readSources(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	code, examples := "", ""
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(filepath.Base(file), "example") {
			examples += string(text)
		} else if !strings.HasSuffix(file, "_test.go") {
			code += string(text)
		}
	}
	return []string{code, examples}
}

// exported has what a package declares: names, and Type.Method and Type.Field.
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				name := n.Name.Name
				if n.Recv != nil {
					of := n.Recv.List[0].Type
					if star, ok := of.(*ast.StarExpr); ok {
						of = star.X
					}
					if of, ok := of.(*ast.Ident); ok {
						name = of.Name + "." + name
					}
				}
				found[name] = true
				return false
			case *ast.ValueSpec:
				for _, name := range n.Names {
					found[name.Name] = true
				}
			case *ast.TypeSpec:
				found[n.Name.Name] = true
				var parts *ast.FieldList
				switch of := n.Type.(type) {
				case *ast.StructType:
					parts = of.Fields
				case *ast.InterfaceType:
					parts = of.Methods
				default:
					return false
				}
				for _, part := range parts.List {
					for _, name := range part.Names {
						found[n.Name.Name+"."+name.Name] = true
					}
				}
				return false
			}
			return true
		})
	}
	return found
}
