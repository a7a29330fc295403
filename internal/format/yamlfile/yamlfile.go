// Package yamlfile decodes YAML that a person has written, strictly, and says what is wrong with
// it in which line: a restart policy, a config file of muster run. What the values mean is the
// caller's business.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/format/text"
)

const (
	maxSize  = 64 << 10 // bytes of a file
	maxShown = 300      // characters of an error of the library's
)

// An Error is one thing that is wrong with a file.
type Error struct {
	File    string
	Line    int // from 1; 0 where it is about the whole file
	Message string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
}

// Read returns the text of a file, for Decode, which refuses one of more than 64 KiB.
func Read(file string) ([]byte, error) {
	return safeopen.ReadAtMost(file, maxSize+1)
}

// Decode decodes the one document of a file; without one it leaves to as it is. It refuses keys
// that to does not have. The error joins everything that the library has found, each an *Error.
func Decode(content []byte, file string, to any) error {
	if len(content) > maxSize {
		return &Error{File: file, Message: fmt.Sprintf("it is larger than %d bytes", maxSize)}
	}
	var more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	err := decode(d, to)
	if err == nil {
		if err = decode(d, &more); err == nil {
			return &Error{file, more.Line, "a second document; make two files of them"}
		}
	}
	if err == io.EOF {
		return nil
	}
	wrong, ok := errors.AsType[*yaml.TypeError](err)
	if !ok {
		line, message := cutLine(strings.TrimPrefix(err.Error(), "yaml: "))
		return &Error{file, line, "this is not YAML: " + text.Line(message, maxShown)}
	}
	var errs []error
	for _, message := range wrong.Errors {
		line, message := cutLine(message)
		errs = append(errs, &Error{file, line, text.Line(plain.Replace(message), maxShown)})
	}
	return errors.Join(errs...)
}

// decode is d.Decode. The YAML library is not ours, so a panic of it is an error of the file.
func decode(d *yaml.Decoder, to any) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("cannot be read: %v", fault)
		}
	}()
	return d.Decode(to)
}

// cutLine takes the number off "line 3: did not find …".
func cutLine(s string) (line int, message string) {
	if n, _ := fmt.Sscanf(s, "line %d:", &line); n == 1 {
		_, s, _ = strings.Cut(s, ": ")
	}
	return line, s
}

// plain says what the library has found without its tags and the names of Go's types: "`soon` is
// not a time with its unit, …", "exits is not a key of match".
var plain = strings.NewReplacer(
	"field ", "", " not found in type policy.reaction", " is not a key of the default",
	" not found in type policy.", " is not a key of ",
	"cannot unmarshal ", "", "!!seq into ", "a list is not ", "!!map into ", "a mapping is not ", "` into ", "` is not ",
	"!!str ", "", "!!int ", "", "!!float ", "", "!!bool ", "", "policy.reaction", "a mapping (key: value) for default",
	"time.Duration", "a time with its unit, such as 30s, 5m or 1h30m", "float64", "a number", "string", "a text", "bool", "true or false",
	"[]policy.", "a list of ", "policy.", "a mapping (key: value) for ", "map[string]yaml.Node", "a mapping",
)

// Wrong is an error of an UnmarshalYAML, in the line of its node; the decoder continues after it.
func Wrong(n *yaml.Node, format string, a ...any) error {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: ", n.Line) + fmt.Sprintf(format, a...)}}
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
