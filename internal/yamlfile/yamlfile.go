// Package yamlfile reads YAML that a person has written, and says everything that is wrong
// with it, each thing with its place: a restart policy, a config file of muster run. It
// knows mappings, lists and scalars only, and bounds them; what the values mean is the
// caller's business.
package yamlfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/muster-run/muster/internal/text"
)

const (
	maxSize   = 64 << 10 // bytes of a file
	maxShown  = 50       // errors that are reported
	maxListed = 20       // keys that are listed to who has mistyped one
)

// An Error is one thing that is wrong with a file.
type Error struct {
	File         string
	Line, Column int // from 1; 0 where it is about the whole file
	Message      string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Read returns the text of a file, for Root, which refuses one of more than 64 KiB.
func Read(file string) ([]byte, error) {
	info, err := os.Stat(file) // or opening a FIFO would wait for who writes it
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &Error{File: file, Message: "it is no regular file; name one that is"}
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSize+1))
}

// A Reader goes through the nodes of a file and gathers what is wrong. It does not stop
// at the first error: whoever writes a file wants to see them all.
type Reader struct {
	File string // its name in errors
	errs []*Error
}

// Fail notes what is wrong with a node.
func (r *Reader) Fail(n *yaml.Node, format string, a ...any) {
	r.errs = append(r.errs, &Error{r.File, n.Line, n.Column, fmt.Sprintf(format, a...)})
}

// Err joins the errors, each an *Error, in the order of the text.
func (r *Reader) Err() error {
	slices.SortStableFunc(r.errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	var errs []error
	for i, e := range r.errs {
		if i == maxShown {
			errs = append(errs, &Error{File: r.File, Message: fmt.Sprintf("and %d more", len(r.errs)-i)})
			break
		}
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// Root returns the root of the one document in text; nil if there is none.
func (r *Reader) Root(text []byte) *yaml.Node {
	if len(text) > maxSize {
		r.Fail(&yaml.Node{}, "it is larger than %d bytes", maxSize)
		return nil
	}
	docs, err := decode(text)
	switch {
	case err != nil:
		r.errs = append(r.errs, r.syntax(text, err))
		return nil
	case len(docs) == 0:
		return nil
	case len(docs) > 1:
		r.Fail(docs[1], "a second document; make two files of them")
	}
	root := docs[0].Content[0]
	r.plain(root)
	return root
}

// decode reads all documents of a text. The YAML library is not ours, so a panic of it
// is an error of the file.
func decode(text []byte) (docs []*yaml.Node, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("yaml: cannot be read: %v", fault)
		}
	}()
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		doc := &yaml.Node{}
		if err := d.Decode(doc); errors.Is(err, io.EOF) {
			return docs, nil
		} else if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
}

// syntax makes an Error of one of the library's: "yaml: line 3: did not find …". Some
// name the line in which the unfinished thing begins; the line that matters is then the
// first one after which the text cannot be completed any more.
func (r *Reader) syntax(text []byte, err error) *Error {
	e := &Error{File: r.File, Message: strings.TrimPrefix(err.Error(), "yaml: ")}
	if rest, ok := strings.CutPrefix(e.Message, "line "); ok {
		number, message, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil {
			e.Line, e.Column, e.Message = n, 1, message
		}
	}
	if strings.HasPrefix(e.Message, "did not find expected") {
		lines := bytes.SplitAfter(text, []byte("\n"))
		e.Column, e.Line = 1, 1+sort.Search(len(lines), func(i int) bool {
			_, again := decode(bytes.Join(lines[:i+1], nil))
			return again != nil && again.Error() == err.Error()
		})
	}
	e.Message = "this is not YAML: " + e.Message
	return e
}

// plain refuses what makes a text mean more than it shows. An alias is not followed, so
// that a small file cannot stand for a huge one.
func (r *Reader) plain(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		r.Fail(n, "an alias (*%s); write out what it stands for", n.Value)
	case n.Anchor != "":
		r.Fail(n, "an anchor (&%s); leave it out", n.Anchor)
	case n.Style&yaml.TaggedStyle != 0:
		r.Fail(n, "a tag (%s); leave it out", n.Tag)
	}
	for _, child := range n.Content {
		r.plain(child)
	}
}

// Keys says what to do with the value of each key that a mapping may have. In the file a
// key may have - for _.
type Keys map[string]func(*yaml.Node)

// Mapping reads a mapping, and returns its values; nil if n is something else.
func (r *Reader) Mapping(n *yaml.Node, what string, known Keys) (values map[string]*yaml.Node) {
	if n.Kind != yaml.MappingNode {
		r.Fail(n, "%s: want a mapping of keys to values, got %s", what, Shown(n))
		return nil
	}
	values = map[string]*yaml.Node{}
	lines := map[string]int{}
	for pair := range slices.Chunk(n.Content, 2) {
		key, value := pair[0], pair[1]
		name := strings.ReplaceAll(key.Value, "-", "_")
		read := known[name]
		switch {
		case key.Kind != yaml.ScalarNode:
			r.Fail(key, "%s: a key is %s", what, Shown(key))
		case read == nil:
			all := slices.Sorted(maps.Keys(known))
			hint := Suggest(key.Value, all)
			if hint == "" && len(all) <= maxListed {
				hint = "; there are " + strings.Join(all, ", ")
			}
			r.Fail(key, "%s has no key %s%s", what, Quote(key.Value), hint)
		case values[name] != nil:
			r.Fail(key, "%s has %s twice; the first is in line %d", what, key.Value, lines[name])
		case value.ShortTag() == "!!null":
			r.Fail(key, "%s has no value", key.Value)
		default:
			read(value)
		}
		values[name], lines[name] = value, key.Line
	}
	return values
}

// Suggest is what somebody may have meant: "; did you mean rules?".
func Suggest(typed string, words []string) string {
	if best := text.Nearest(typed, words...); best != "" {
		return "; did you mean " + best + "?"
	}
	return ""
}

// Shown says what a node is, for people.
func Shown(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias"
	case n.ShortTag() == "!!null":
		return "nothing"
	}
	return Quote(n.Value)
}

// Quote shows a text of the file, all of it if that is short.
func Quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "..."
	}
	return strconv.Quote(s)
}
