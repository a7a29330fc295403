package embedtest

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// exampleFiles are the files of examples, by package. They stand for themselves: what
// they need of the tests around them would be missing in the reader's program.
func exampleFiles() (map[string][]string, error) {
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "internal" || d.Name() == "test" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "dist" || d.Name() == "bin") {
			return fs.SkipDir
		}
		if !d.IsDir() && strings.Contains(d.Name(), "example") && strings.HasSuffix(d.Name(), "_test.go") {
			name := strings.ReplaceAll(filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), root+"/")), "/", "_")
			found[name] = append(found[name], path)
		}
		return nil
	})
	return found, err
}

// writeExamples makes one program of all examples: its first argument names the package,
// its second the example.
func writeExamples(dir string) error {
	files, err := exampleFiles()
	if err != nil {
		return err
	}
	var imports, prepare, all strings.Builder
	for name, paths := range files {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
		var list strings.Builder
		prepared := false
		for _, path := range paths {
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
					if strings.HasPrefix(f.Name.Name, "Example") {
						fmt.Fprintf(&list, "%q: %s,\n", f.Name.Name, f.Name.Name)
					}
					prepared = prepared || f.Name.Name == "register"
				}
			}
			file.Name.Name = "examples"
			var text strings.Builder
			if err := format.Node(&text, set, file); err != nil {
				return err
			}
			base := strings.TrimSuffix(filepath.Base(path), "_test.go") + ".go"
			if err := os.WriteFile(filepath.Join(dir, name, base), []byte(text.String()), 0o600); err != nil {
				return err
			}
		}
		text := "package examples\n\nvar All = map[string]func(){\n" + list.String() + "}\n"
		if prepared {
			text += "\nfunc Register() { register() }\n"
			fmt.Fprintf(&prepare, "in_%s.Register()\n", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "all.go"), []byte(text), 0o600); err != nil {
			return err
		}
		fmt.Fprintf(&imports, "in_%s \"example.test/embed/examples/%s\"\n", name, name)
		fmt.Fprintf(&all, "%q: in_%s.All,\n", name, name)
	}
	main := "package main\n\nimport (\n\"os\"\n\"github.com/muster-run/muster/process\"\n" + imports.String() + ")\n\n" +
		"func main() {\nprocess.GuardMain()\n" + prepare.String() + "process.FuncMain()\n" +
		"map[string]map[string]func(){\n" + all.String() + "}[os.Args[1]][os.Args[2]]()\n}\n"
	return os.WriteFile(filepath.Join(dir, "main.go"), []byte(main), 0o600)
}

// Every example is a program that runs by itself, and prints what it says.
func TestExamples(t *testing.T) {
	files, err := exampleFiles()
	if err != nil {
		t.Fatal(err)
	}
	for name, paths := range files {
		for _, path := range paths {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range doc.Examples(file) {
				if e.Output == "" && !e.EmptyOutput {
					continue // it is only compiled
				}
				t.Run(name+"/Example"+e.Name, func(t *testing.T) {
					cmd := command(t, "examples", name, "Example"+e.Name)
					out, err := cmd.Output()
					if err != nil {
						t.Fatal(err)
					}
					want, got := strings.Split(strings.TrimSpace(e.Output), "\n"), strings.Split(strings.TrimSpace(string(out)), "\n")
					if e.Unordered {
						slices.Sort(want)
						slices.Sort(got)
					}
					if d := cmp.Diff(want, got); d != "" {
						t.Error(d)
					}
				})
			}
		}
	}
	for _, name := range publicPackages(t) {
		if files[name] == nil {
			t.Errorf("package %s has no example", name)
		}
	}
}

// publicPackages are named as exampleFiles has them.
func publicPackages(t *testing.T) (names []string) {
	t.Helper()
	cmd := exec.Command("go", "list", "./...")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for path := range strings.FieldsSeq(string(list)) {
		name := strings.TrimPrefix(path, "github.com/muster-run/muster/")
		if parts := strings.Split(name, "/"); slices.Contains([]string{"cmd", "examples", "bench", "test"}, parts[0]) || slices.Contains(parts, "internal") {
			continue
		}
		names = append(names, strings.ReplaceAll(name, "/", "_"))
	}
	return names
}

// All examples stand where they are found.
func TestNoOtherExamples(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") || strings.Contains(d.Name(), "example") || strings.Contains(path, "/internal/") {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "\nfunc Example") {
			t.Errorf("%s: put its examples into a file of their own, as example_test.go", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
