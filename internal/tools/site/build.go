package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

//go:embed style.css
var style string

// order is that of the pages in the list; others follow by name.
var order = []string{
	"README", "quickstart", "tutorial", "migrate", "many-hosts", "slurm", "kubernetes", "python", "frameworks",
	"production", "hangs", "observe", "logs", "restart-policy", "after-a-failure", "troubleshooting", "handbook", "doctor",
	"reliability", "benchmarks", "differences", "comparison", "exit-codes", "library", "formats", "tcpstore", "timers", "decisions",
}

// A page is one Markdown file.
type page struct {
	source  string // below the root: docs/hangs.md
	name    string // of its HTML file, without .html
	title   string
	text    []byte
	tree    ast.Node
	anchors map[string]bool
	files   map[string]string // files that are no pages and that it links to, below the root, and below the site
}

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.Table),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
)

// Build writes the site and returns how many pages it has. All broken links are
// reported at once.
func Build(root, dir string) (int, error) {
	pages, err := read(root)
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return 0, err
	}
	var errs []error
	for _, p := range pages {
		errs = append(errs, p.relink(root, pages)...)
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	for _, p := range pages {
		if err := os.WriteFile(filepath.Join(dir, p.name+".html"), p.render(pages), 0o666); err != nil {
			return 0, err
		}
		for from, to := range p.files {
			if err := copyFile(filepath.Join(root, from), filepath.Join(dir, to)); err != nil {
				return 0, err
			}
		}
	}
	return len(pages), nil
}

// read parses all pages, in their order.
func read(root string) ([]*page, error) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	var pages []*page
	for _, file := range append(files, filepath.Join(root, "README.md")) {
		source, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		p := &page{source: filepath.ToSlash(source), name: strings.TrimSuffix(filepath.Base(file), ".md"), anchors: map[string]bool{}, files: map[string]string{}}
		if p.text, err = os.ReadFile(file); err != nil {
			return nil, err
		}
		p.tree = markdown.Parser().Parse(text.NewReader(p.text))
		p.title = p.name
		_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			if h, ok := n.(*ast.Heading); ok && entering {
				if id, ok := h.AttributeString("id"); ok {
					p.anchors[string(id.([]byte))] = true
				}
				if h.Level == 1 {
					p.title = string(plain(h, p.text))
				}
			}
			return ast.WalkContinue, nil
		})
		if p.name == "README" {
			p.name = "index"
		}
		pages = append(pages, p)
	}
	slices.SortStableFunc(pages, func(a, b *page) int { return a.place() - b.place() })
	return pages, nil
}

func (p *page) place() int {
	name := p.name
	if name == "index" {
		name = "README"
	}
	if i := slices.Index(order, name); i >= 0 {
		return i
	}
	return len(order)
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

// relink makes links between the files links between the pages.
func (p *page) relink(root string, pages []*page) []error {
	var errs []error
	fix := func(target []byte) []byte {
		to, err := p.resolve(root, string(target), pages)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: link to %s: %w", p.source, target, err))
		}
		return []byte(to)
	}
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			if entering {
				n.Destination = fix(n.Destination)
			}
		case *ast.Image:
			if entering {
				n.Destination = fix(n.Destination)
			}
		}
		return ast.WalkContinue, nil
	})
	return errs
}

// resolve returns what a link is on the site. A file that is no page is put there under
// its path in the repository; what is in docs lies beside the pages.
func (p *page) resolve(root, target string, pages []*page) (string, error) {
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return target, nil
	}
	file, anchor, _ := strings.Cut(target, "#")
	to := p
	if file != "" {
		below := path.Join(path.Dir(p.source), file)
		i := slices.IndexFunc(pages, func(q *page) bool { return q.source == below })
		if i < 0 {
			info, err := os.Stat(filepath.Join(root, below))
			switch {
			case err != nil || !filepath.IsLocal(below):
				return target, errors.New("there is no such file")
			case !info.Mode().IsRegular():
				return target, errors.New("a directory has no page; link to a file in it")
			case anchor != "":
				return target, errors.New("a file that is no page has no headings")
			}
			to := strings.TrimPrefix(below, "docs/")
			p.files[below] = to
			return to, nil
		}
		to = pages[i]
	}
	if anchor != "" && !to.anchors[anchor] {
		return target, fmt.Errorf("%s has no such heading", to.source)
	}
	out := to.name + ".html"
	if anchor != "" {
		out += "#" + anchor
	}
	return out, nil
}

func (p *page) render(pages []*page) []byte {
	var b bytes.Buffer
	title := p.title
	if p.name != "index" {
		title += " – muster"
	}
	fmt.Fprintf(&b, "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>%s</title>\n<style>\n%s</style>\n<nav>\n",
		html.EscapeString(title), style)
	for _, q := range pages {
		here := ""
		if q == p {
			here = " aria-current=\"page\""
		}
		fmt.Fprintf(&b, "<a href=\"%s.html\"%s>%s</a>\n", q.name, here, html.EscapeString(q.title))
	}
	b.WriteString("</nav>\n<main>\n")
	if err := markdown.Renderer().Render(&b, p.text, p.tree); err != nil {
		panic(err) // a bytes.Buffer takes everything
	}
	b.WriteString("</main>\n</html>\n")
	return b.Bytes()
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o777)
	}
	if err == nil {
		err = os.WriteFile(to, text, 0o666)
	}
	return err
}
