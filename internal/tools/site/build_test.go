package main

import (
	"os"
	"path/filepath"
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
	for _, text := range []string{"<title>muster – muster</title>", `<a href="hangs.html">`, "<table>"} {
		if !strings.Contains(string(index), text) {
			t.Errorf("index.html has no %s", text)
		}
	}
}

func TestBrokenLinks(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "docs"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"README.md":  "# A\n[gone](docs/gone.md) [good](docs/b.md#two-words) [bad](docs/b.md#three) [web](https://example.org/x.md)\n",
		"docs/b.md":  "# B\n## Two words\n[up](../README.md) ![no](c.png)\n",
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
	for _, text := range []string{"README.md: link to docs/gone.md: there is no such file", "README.md: link to docs/b.md#three: docs/b.md has no such heading", "docs/b.md: link to c.png: there is no such file"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("it does not say %q: %v", text, err)
		}
	}
	if n := strings.Count(err.Error(), "\n"); n != 2 {
		t.Errorf("%d errors: %v", n+1, err)
	}
}
