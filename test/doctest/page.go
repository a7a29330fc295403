package doctest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// A Page is one Markdown file.
type Page struct {
	Name   string // below the root: "docs/hangs.md"
	Blocks []Block
	Spans  []string // code within text, on one line each
}

// A Block is a block of code.
type Block struct {
	Kind string // what stands behind the fence: "sh"; empty where nothing does, or is not a fence
	Text string
	Line int // of the file, from 1, where the text begins

	section int // how many headings precede it
}

// A Command is a command line of a page.
type Command struct {
	// Line is the command as it stands there. One that continues in the next line has
	// both. A comment at its end belongs to it.
	Line string
	// Output is what the page shows below it; empty if it shows none.
	Output string
	At     int // the line of the file, 0 for a command within text
}

// A Script is a block of sh, to be run as a whole, and what it prints to stdout.
type Script struct {
	Text     string
	Output   string
	Compared bool // whether the page says what it prints
	At       int
}

var markdown = goldmark.New(goldmark.WithExtensions(extension.Table))

// Read reads a page of the source tree at root, by its name below that.
func Read(root, name string) (*Page, error) {
	source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	return parse(name, source), nil
}

// ReadAll reads README.md and all pages of docs/.
func ReadAll(root string) ([]*Page, error) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no pages in %s/docs", root)
	}
	names := []string{"README.md"}
	for _, file := range files {
		names = append(names, "docs/"+filepath.Base(file))
	}
	var pages []*Page
	for _, name := range names {
		p, err := Read(root, name)
		if err != nil {
			return nil, err
		}
		pages = append(pages, p)
	}
	return pages, nil
}

func parse(name string, source []byte) *Page {
	p, section := &Page{Name: name}, 0
	_ = ast.Walk(markdown.Parser().Parse(text.NewReader(source)), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			section++
		case *ast.CodeBlock:
			p.add(Block{section: section}, n, source)
		case *ast.FencedCodeBlock:
			p.add(Block{Kind: string(n.Language(source)), section: section}, n, source)
		case *ast.CodeSpan:
			var b strings.Builder
			for c := n.FirstChild(); c != nil; c = c.NextSibling() {
				if t, ok := c.(*ast.Text); ok {
					b.Write(t.Value(source))
					b.WriteByte(' ')
				}
			}
			p.Spans = append(p.Spans, strings.Join(strings.Fields(b.String()), " "))
		}
		return ast.WalkContinue, nil
	})
	return p
}

func (p *Page) add(b Block, n ast.Node, source []byte) {
	if n.Lines().Len() == 0 {
		return
	}
	b.Text = string(n.Lines().Value(source))
	b.Line = 1 + bytes.Count(source[:n.Lines().At(0).Start], []byte("\n"))
	p.Blocks = append(p.Blocks, b)
}

// Scripts are the page's blocks of sh, each with the block of output after it.
func (p *Page) Scripts() []Script {
	var found []Script
	for _, b := range p.Blocks {
		switch {
		case b.Kind == "sh":
			found = append(found, Script{Text: b.Text, At: b.Line})
		case b.Kind == "output" && len(found) > 0:
			last := &found[len(found)-1]
			last.Output, last.Compared = b.Text, true
		}
	}
	return found
}

var (
	// What is shown by `set -x` is a command, too. Output may begin with a program's
	// name, but then continues with something else than the name of a command or an option.
	typed = regexp.MustCompile(`^(\+ )?(bin/)?((muster|torchrun|make) [a-z-]+|(srun|sbatch|mpirun) -[^ ]+)( |$)`)
	// What the reader has to fill in: DIR, HOST:PORT, or whatever fits.
	form = regexp.MustCompile(`(^|[ /:=])[A-Z]+\b|…`)
	// The name of a command with something that is neither an option nor a word.
	argument = regexp.MustCompile(`^help [a-z]+$| --help$| ([a-z][^ ]*[^a-z ]|[^a-z -])[^ ]*( |$)`)
	// What the name of a command is followed by in a message of it, or muster's own name in one
	// of a job in an adopted environment.
	message = regexp.MustCompile(`^([a-z]+|\(adopted\)): `)
	// Options to be put into the command before them.
	options = regexp.MustCompile(`^--rdzv-backend [a-z]+ --`)
)

// inText reports whether a span of code is a command. The bare name of one is not, nor
// is that of one of its options, nor a message that begins with muster's name.
func inText(span string) bool {
	if form.MatchString(span) {
		return false
	}
	rest, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimPrefix(span, "srun "), "python -m "), "muster ")
	return options.MatchString(span) || ok && argument.MatchString(rest) && !message.MatchString(rest)
}

// Commands are the command lines of a page, in their order, those within text last.
// In blocks they are lines that begin with the name of a program; what follows
// until the next is its output, or else the next block of the section, if that has no command. Within
// text they are those without anything to be filled in. A line of options that choose a
// rendezvous is one, too, wherever it stands.
func (p *Page) Commands() []Command {
	var found []Command
	open, section := false, 0 // whether the next block may be the output of the last command
	for _, b := range p.Blocks {
		commands, output := []Command(nil), b.Text
		if b.Kind == "" || b.Kind == "sh" {
			commands, output = split(b)
		}
		if open && b.section == section && (b.Kind == "" || b.Kind == "output") && len(commands) == 0 {
			found[len(found)-1].Output = strings.Trim(output, "\n")
		}
		found = append(found, commands...)
		open, section = len(commands) > 0 && found[len(found)-1].Output == "", b.section
	}
	for _, s := range p.Spans {
		if inText(s) && !slices.ContainsFunc(found, func(c Command) bool { return c.Line == s }) {
			found = append(found, Command{Line: s})
		}
	}
	return found
}

// split finds the commands of a block, and what precedes the first.
func split(b Block) (commands []Command, rest string) {
	at := b.Line
	for line := range strings.Lines(strings.ReplaceAll(b.Text, "\\\n", "\\\r")) {
		whole := strings.TrimRight(strings.ReplaceAll(line, "\\\r", "\\\n"), " \n")
		switch {
		case typed.MatchString(whole), options.MatchString(whole):
			commands = append(commands, Command{Line: whole, At: at})
		case len(commands) == 0:
			rest += whole + "\n"
		default:
			commands[len(commands)-1].Output += whole + "\n"
		}
		at += 1 + strings.Count(whole, "\n")
	}
	for i := range commands {
		commands[i].Output = strings.Trim(commands[i].Output, "\n")
	}
	return commands, strings.Trim(rest, "\n")
}
