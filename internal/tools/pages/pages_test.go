// Package pages checks README.md and docs/: their links, their place in the navigation of
// the site, and that they have what the code has. It has tests only; docs.sh builds the site.
package pages

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

const root = "../../.."

// A page is one Markdown file.
type page struct {
	source  string // below the root: docs/hangs.md
	text    []byte
	tree    ast.Node
	anchors map[string]bool
}

var markdown = goldmark.New(goldmark.WithExtensions(extension.Table))

// read parses all pages.
func read(root string) ([]*page, error) {
	var pages []*page
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			source, err := filepath.Rel(root, file)
			if err != nil {
				return nil, err
			}
			p := &page{source: filepath.ToSlash(source), anchors: map[string]bool{}}
			if p.text, err = os.ReadFile(file); err != nil {
				return nil, err
			}
			p.tree = markdown.Parser().Parse(text.NewReader(p.text))
			p.walk(func(n ast.Node) {
				if n.Kind() == ast.KindHeading {
					p.anchors[slug(string(plain(n, p.text)))] = true
				}
			})
			pages = append(pages, p)
		}
	}
	return pages, nil
}

func (p *page) walk(f func(ast.Node)) {
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			f(n)
		}
		return ast.WalkContinue, nil
	})
}

// plain is the text of a heading.
func plain(n ast.Node, source []byte) []byte {
	var b bytes.Buffer
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.Bytes()
}

// slug is the anchor of a heading, on GitHub and on the site.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func TestLinks(t *testing.T) {
	pages, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range brokenLinks(root, pages) {
		t.Error(broken)
	}
}

// brokenLinks lists the links within the repository that lead nowhere.
func brokenLinks(root string, pages []*page) (broken []string) {
	for _, p := range pages {
		p.walk(func(n ast.Node) {
			var target []byte
			switch n := n.(type) {
			case *ast.Link:
				target = n.Destination
			case *ast.Image:
				target = n.Destination
			}
			if target == nil || bytes.Contains(target, []byte(":")) {
				return
			}
			if wrong := p.follow(root, string(target), pages); wrong != "" {
				broken = append(broken, fmt.Sprintf("%s: link to %s: %s", p.source, target, wrong))
			}
		})
	}
	return broken
}

// follow returns what is wrong with a link.
func (p *page) follow(root, target string, pages []*page) string {
	file, anchor, _ := strings.Cut(target, "#")
	below := p.source
	if file != "" {
		below = path.Join(path.Dir(p.source), file)
	}
	if i := slices.IndexFunc(pages, func(q *page) bool { return q.source == below }); i >= 0 {
		if anchor != "" && !pages[i].anchors[anchor] {
			return below + " has no such heading"
		}
		return ""
	}
	info, err := os.Stat(filepath.Join(root, below))
	switch {
	case err != nil || !filepath.IsLocal(below):
		return "there is no such file"
	case !info.Mode().IsRegular():
		return "a directory has no page; link to a file in it"
	case anchor != "":
		return "a file that is not a page has no headings"
	}
	return ""
}

func TestBrokenLinks(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "docs"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"README.md":  "# A\n[gone](docs/gone.md) [good](docs/b.md#two--words-é) [bad](docs/b.md#three) [web](https://example.org/x.md)\n",
		"docs/b.md":  "# B\n## Two / `words`: é\n[up](../README.md) ![no](c.png) [dir](../docs) [out](../../etc) [line](c.svg#L1) ![picture](c.svg)\n",
		"docs/c.svg": "",
	} {
		if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(name)), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	pages, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"README.md: link to docs/gone.md: there is no such file",
		"README.md: link to docs/b.md#three: docs/b.md has no such heading",
		"docs/b.md: link to c.png: there is no such file",
		"docs/b.md: link to ../docs: a directory has no page; link to a file in it",
		"docs/b.md: link to ../../etc: there is no such file",
		"docs/b.md: link to c.svg#L1: a file that is not a page has no headings",
	}
	if got := brokenLinks(root, pages); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// Each page has one place in the navigation of the site, and nothing else has.
func TestNavigation(t *testing.T) {
	config, err := os.ReadFile("zensical.toml")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{}
	for _, p := range pages {
		want = append(want, strings.Replace(p.source, "README.md", "index.md", 1))
	}
	var got []string
	for _, m := range regexp.MustCompile(`"([\w/-]+\.md)"`).FindAllSubmatch(config, -1) {
		got = append(got, string(m[1]))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the navigation in zensical.toml has\n%q\nand the pages are\n%q", got, want)
	}
}
