package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testName   = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark|Example)[A-Z]\w*…?`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	sourcePath = regexp.MustCompile(`^(?:agent|bench|cmd|docs|events|examples|failure|health|internal|launch|logs|metrics|policy|process|python|rendezvous|store|test|timer)(?:/[\w.*-]+)+/?$`)
)

// Each test and each file that a page names is there.
func TestNames(t *testing.T) {
	pages, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	tests := readTests(t, "../../..")
	named := 0
	for _, p := range pages {
		for _, name := range testName.FindAllString(string(p.text), -1) {
			named++
			prefix, open := strings.CutSuffix(name, "…")
			if !slices.ContainsFunc(tests, func(test string) bool { return test == name || open && strings.HasPrefix(test, prefix) }) {
				t.Errorf("%s names %s, which is not a test", p.source, name)
			}
		}
		for _, span := range codeSpans(p, false) {
			if !sourcePath.MatchString(span) {
				continue
			}
			named++
			if found, _ := filepath.Glob(filepath.Join("../../..", filepath.FromSlash(span))); found == nil {
				t.Errorf("%s names %s, which is not there", p.source, span)
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d names were found", named)
	}
}

// readTests are the names of all tests below a directory.
func readTests(t *testing.T, root string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(content, -1) {
			names = append(names, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
