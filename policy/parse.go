package policy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a file.
const (
	maxSize    = 64 << 10 // bytes
	maxRules   = 200
	maxList    = 100  // members of one list
	maxPattern = 1000 // bytes of one
	maxName    = 64   // bytes of a rule's name
	maxCount   = 1_000_000
	maxShown   = 50 // errors that are reported
)

// An Error is one thing that is wrong with a file. Parse and Load join all of them, so
// that an editor can show each in its place.
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

// Load reads the policy in a file of at most 64 KiB. What is wrong with it comes as
// from Parse.
func Load(file string) (*Policy, error) {
	info, err := os.Stat(file) // or opening a FIFO would wait for who writes it
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &Error{File: file, Message: "it is no regular file"}
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, err
	}
	return Parse(text, file)
}

// Parse reads a policy. The error joins everything that is wrong, each an *Error, in
// the order of the text; file is its name in them.
func Parse(text []byte, file string) (*Policy, error) {
	r := &reader{file: file}
	p := &Policy{File: file, MaxRestarts: -1, Default: Rule{Name: defaultName, Action: Retry}}
	if root := r.document(text); root != nil {
		r.plain(root)
		r.policy(root, p)
	}
	if r.errs != nil {
		return nil, r.err()
	}
	return p, nil
}

// A reader goes through the nodes of a file and gathers what is wrong. It does not stop
// at the first error: whoever writes a policy wants to see them all.
type reader struct {
	file string
	errs []*Error
}

func (r *reader) fail(n *yaml.Node, format string, a ...any) {
	r.errs = append(r.errs, &Error{r.file, n.Line, n.Column, fmt.Sprintf(format, a...)})
}

// err joins the errors in the order of the text.
func (r *reader) err() error {
	slices.SortStableFunc(r.errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if more := len(r.errs) - maxShown; more > 0 {
		r.errs = append(r.errs[:maxShown], &Error{File: r.file, Message: fmt.Sprintf("and %d more", more)})
	}
	var errs []error
	for _, e := range r.errs {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// document returns the root of the one document in text; nil if there is none.
func (r *reader) document(text []byte) *yaml.Node {
	if len(text) > maxSize {
		r.fail(&yaml.Node{}, "it is larger than %d bytes", maxSize)
		return nil
	}
	docs, err := decode(text)
	switch {
	case err != nil:
		r.errs = append(r.errs, r.syntax(text, err))
		return nil
	case len(docs) == 0:
		r.fail(&yaml.Node{}, "it is empty; an empty policy is {}")
		return nil
	case len(docs) > 1:
		r.fail(docs[1], "a second document; a policy is one")
	}
	return docs[0].Content[0]
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
func (r *reader) syntax(text []byte, err error) *Error {
	e := &Error{File: r.file, Message: strings.TrimPrefix(err.Error(), "yaml: ")}
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
func (r *reader) plain(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		r.fail(n, "an alias (*%s); write out what it stands for", n.Value)
	case n.Anchor != "":
		r.fail(n, "an anchor (&%s); a policy has none", n.Anchor)
	case n.Style&yaml.TaggedStyle != 0:
		r.fail(n, "a tag (%s); a policy has none", n.Tag)
	}
	for _, child := range n.Content {
		r.plain(child)
	}
}
