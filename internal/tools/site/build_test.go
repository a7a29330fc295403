package main

import (
	"html"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The site of this repository has every page, and no link that leads nowhere.
func TestSite(t *testing.T) {
	dir := t.TempDir()
	n, err := Build("../../..", dir)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob("../../../docs/*.md")
	if n != len(files)+1 {
		t.Errorf("%d pages of %d files and the README", n, len(files))
	}
	index, err := os.ReadFile(filepath.Join(dir, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"<title>muster</title>", `<a href="hangs.html">`, "<table>"} {
		if !strings.Contains(string(index), text) {
			t.Errorf("index.html has no %s", text)
		}
	}
	checkLinks(t, dir)
}

var (
	reference = regexp.MustCompile(`\s(?:href|src)="([^"]*)"`)
	heading   = regexp.MustCompile(`\sid="([^"]*)"`)
)

// checkLinks follows every link of a site that stays in it.
func checkLinks(t *testing.T, dir string) {
	t.Helper()
	pages, _ := filepath.Glob(filepath.Join(dir, "*.html"))
	followed := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range reference.FindAllStringSubmatch(string(text), -1) {
			target, err := url.Parse(html.UnescapeString(m[1]))
			if err != nil {
				t.Fatal(err)
			}
			if target.IsAbs() {
				continue
			}
			followed++
			to := page
			if target.Path != "" {
				to = filepath.Join(dir, target.Path)
			}
			there, err := os.ReadFile(to)
			if err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(page), m[1], err)
				continue
			}
			if target.Fragment == "" {
				continue
			}
			if !slices.ContainsFunc(heading.FindAllStringSubmatch(string(there), -1), func(h []string) bool { return h[1] == target.Fragment }) {
				t.Errorf("%s links to %s, which has no such heading", filepath.Base(page), m[1])
			}
		}
	}
	if followed < 100 {
		t.Errorf("only %d links", followed)
	}
}

func TestBrokenLinks(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "docs"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"README.md":  "# A\n[gone](docs/gone.md) [good](docs/b.md#two-words) [bad](docs/b.md#three) [web](https://example.org/x.md)\n",
		"docs/b.md":  "# B\n## Two words\n[up](../README.md) ![no](c.png) [dir](../docs) [out](../../etc) [line](c.svg#L1) ![picture](c.svg)\n",
		"docs/c.svg": "",
	} {
		if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(name)), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Build(root, filepath.Join(root, "site"))
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range []string{"README.md: link to docs/gone.md: there is no such file", "README.md: link to docs/b.md#three: docs/b.md has no such heading", "docs/b.md: link to c.png: there is no such file",
		"docs/b.md: link to ../docs: a directory has no page", "docs/b.md: link to ../../etc: there is no such file", "docs/b.md: link to c.svg#L1: a file that is no page has no headings"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("it does not say %q: %v", text, err)
		}
	}
	if n := strings.Count(err.Error(), "\n"); n != 5 {
		t.Errorf("%d errors: %v", n+1, err)
	}
}
