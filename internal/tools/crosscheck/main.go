// Command crosscheck type-checks packages and their tests as another system's compiler would, from
// source: `go vet` for that system would first compile all of the standard library for it.
//
//	go run ./internal/tools/crosscheck linux/arm64,darwin/arm64 ./...
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: crosscheck GOOS/GOARCH[,GOOS/GOARCH...] PACKAGE...")
		os.Exit(2)
	}
	failed := false
	for target := range strings.SplitSeq(os.Args[1], ",") {
		checked, err := check(target, os.Args[2:])
		if err != nil {
			fmt.Fprintf(os.Stderr, "crosscheck: %s: %v\n", target, err)
			failed = true
			continue
		}
		fmt.Fprintf(os.Stderr, "crosscheck: %s: %d packages\n", target, checked)
	}
	if failed {
		os.Exit(1)
	}
}

// A pkg is what `go list` says of a package, or of one compiled anew for a test.
type pkg struct {
	ImportPath, Dir, Name string
	GoFiles               []string
	ImportMap             map[string]string // where an import's path is not the package's
	Module                *struct {
		Main      bool
		GoVersion string
	}
	Error *struct{ Err string }
}

// check returns how many packages of ours it has checked.
func check(target string, patterns []string) (int, error) {
	goos, goarch, _ := strings.Cut(target, "/")
	sizes := types.SizesFor("gc", goarch)
	if sizes == nil {
		return 0, errors.New("unknown architecture")
	}
	cmd := exec.Command("go", append([]string{"list", "-deps", "-test", "-json=ImportPath,Dir,Name,GoFiles,ImportMap,Module,Error"}, patterns...)...)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("go list: %w", err)
	}
	checked := 0
	known := map[string]*types.Package{"unsafe": types.Unsafe}
	// Each comes after those that it imports.
	for list := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := list.Decode(&p); err == io.EOF {
			return checked, nil
		} else if err != nil {
			return 0, err
		}
		if p.Error != nil {
			return 0, errors.New(p.Error.Err)
		}
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue // the latter's source is made by `go test`
		}
		ours := p.Module != nil && p.Module.Main
		if known[p.ImportPath], err = p.types(known, sizes, ours); err != nil {
			return 0, err
		}
		if ours {
			checked++
		}
	}
}

// types checks a package, and of one that is not ours only what others see of it.
func (p pkg) types(known map[string]*types.Package, sizes types.Sizes, ours bool) (*types.Package, error) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	var all []error
	conf := types.Config{Sizes: sizes, IgnoreFuncBodies: !ours, Error: func(err error) { all = append(all, err) },
		Importer: importer(func(path string) (*types.Package, error) {
			if mapped, ok := p.ImportMap[path]; ok {
				path = mapped
			}
			if found := known[path]; found != nil {
				return found, nil
			}
			return nil, errors.New("not listed")
		})}
	if p.Module != nil && p.Module.GoVersion != "" {
		conf.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ")
	checked, err := conf.Check(path, fset, files, nil)
	if len(all) > 0 && ours {
		err = errors.Join(all...)
	}
	return checked, err
}

type importer func(path string) (*types.Package, error)

func (f importer) Import(path string) (*types.Package, error) { return f(path) }
