package pages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Messages reach consoles, log collectors and mail of any locale, so they are ASCII. Left
// out are pages in UTF-8 and programs for developers.
func TestMessagesAreASCII(t *testing.T) {
	skipped := []string{"bench", "health", "test/doctest", "internal/tools", "store/storetest"}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains(skipped, rel) || len(rel) > 1 && strings.HasPrefix(rel, ".") || entry.Name() == "testdata"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING && lit.Kind != token.CHAR {
				return true
			}
			if quoted := strconv.QuoteToASCII(lit.Value); quoted != strconv.Quote(lit.Value) && !strings.Contains(lit.Value, "\ufffd") {
				t.Errorf("%s: %s", set.Position(lit.Pos()), quoted)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
