package pages

import (
	"bufio"
	"bytes"
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
		"metrics/__init__.py", "metrics/api.py", "agent/server/health_check_server.py", "timer/debug_info_logging.py").Output()
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

// anOption is one of muster run's, in a text.
var anOption = regexp.MustCompile("(?:^|[\\s(`])--[a-z][a-z-]+")

// forPeople are texts of the library that name options all the same: those of a report, a page or a file for people, and
// what a policy's author reads.
var forPeople = []string{
	"this host collects no evidence (--autopsy-timeout 0)", "without --no-python it runs under", "name another --log-dir; what the worker",
	"--hang-timeout: ", "by one that --health-names has", "--redirects or --tee to keep it", "that were started with --warm",
	"set max_restarts in the file, or --max-restarts",
}

// Errors and log lines of packages that programs import name fields. The command line replaces them by options.
func TestLibraryNamesFields(t *testing.T) {
	found := map[string]bool{}
	files := 0
	for _, dir := range []string{"agent", "events", "failure", "health", "launch", "logs", "metrics", "policy", "process", "rendezvous", "store", "timer", "internal/wire"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || d.Name() == "simulate"):
				return filepath.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files++
			set := token.NewFileSet()
			tree, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil || !anOption.MatchString(text) {
					return true
				}
				i := slices.IndexFunc(forPeople, func(known string) bool { return strings.Contains(text, known) })
				if i < 0 {
					t.Errorf("%s: %q names an option; name the field, and add both to text.AsOptions", set.Position(lit.Pos()), text)
					return true
				}
				found[forPeople[i]] = true
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 250 || len(found) != len(forPeople) {
		t.Errorf("in %d files, of the texts for people only these were found: %q", files, slices.Sorted(maps.Keys(found)))
	}
}

// The fields of AsOptions exist.
func TestOptionsOfFields(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root, "internal/format/text/options.go"))
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string][]string{"Spec": {"rendezvous"}, "Rendezvous": {"launch"}, "Records": {"launch"}, "Workers": {"launch"}}
	fields := regexp.MustCompile(`\b(?:(logs|events)\.)?([A-Z]\w+)\.([A-Z]\w+)`).FindAllStringSubmatch(string(source), -1)
	for _, m := range fields {
		where := dirs[m[2]]
		if m[1] != "" {
			where = []string{m[1]}
		} else if m[2] == "Config" { // of launch, which embeds agent.Options
			where, m[2] = []string{"agent"}, "Options"
		}
		if len(where) == 0 || !exported(t, where[0])[m[2]+"."+m[3]] {
			t.Errorf("there is no field %s", m[0])
		}
	}
	if len(fields) < 15 {
		t.Errorf("only %d fields were found", len(fields))
	}
}
