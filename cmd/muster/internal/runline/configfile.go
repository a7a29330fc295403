package runline

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/format/yamlfile"
)

// The keys of a config file beside the options' names.
const (
	keyScript = "training_script"
	keyArgs   = "training_script_args"
)

// key is an option's name in a config file, "" if it cannot be there.
func (o *option) key() string {
	if o.group == groupOther || o.name == "config" {
		return ""
	}
	return strings.ReplaceAll(o.name, "-", "_")
}

// readConfig adds to a line what the file of --config says.
func (l *line) readConfig(lookup func(string) (string, bool)) []error {
	o := byName("config")
	all := l.sources(o, lookup)
	if len(all) == 0 || all[0].text == "" {
		return nil
	}
	file := all[0].text
	content, err := yamlfile.Read(file)
	if err != nil {
		return []error{o.refuse(unreadable(file, "a config file", err), all[0].from)}
	}
	values := map[string]yaml.Node{}
	if err := yamlfile.Decode(content, file, &values); err != nil {
		return console.Split(err)
	}
	f := configFile{name: file}
	l.file = map[*option]told{}
	script, args := f.read(values, l.file)
	if !l.hasScript && script != "" {
		l.script, l.hasScript, l.args = script, true, args
	}
	return f.errs
}

// A configFile gathers what is wrong with a file.
type configFile struct {
	name string
	errs []error
}

func (f *configFile) fail(n *yaml.Node, format string, a ...any) {
	f.errs = append(f.errs, &yamlfile.Error{File: f.name, Line: n.Line, Message: fmt.Sprintf(format, a...)})
}

// read reads what the keys of a file say, in the order of its lines.
func (f *configFile) read(values map[string]yaml.Node, to map[*option]told) (script string, args []string) {
	args = []string{}
	lines := map[string]int{} // of the keys, with underscores
	keys := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(values[a].Line, values[b].Line), cmp.Compare(values[a].Column, values[b].Column))
	})
	for _, key := range keys {
		n, name := values[key], strings.ReplaceAll(key, "-", "_")
		o := slices.IndexFunc(options[:], func(o option) bool { return o.key() == name })
		switch {
		case lines[name] > 0:
			f.fail(&n, "a config file has %s twice; the first is in line %d", key, lines[name])
		case name == keyScript:
			script, _ = f.scalar(keyScript, &n)
		case name == keyArgs && n.Kind != yaml.SequenceNode:
			f.fail(&n, "%s is %s and not a list; give one, such as [a, 90]", keyArgs, yamlfile.Shown(&n))
		case name == keyArgs:
			for _, item := range n.Content {
				arg, _ := f.scalar(keyArgs, item)
				args = append(args, arg)
			}
		case o < 0 || name == "":
			f.fail(&n, "a config file has no key %s; see muster help run", yamlfile.Quote(key))
		default:
			if text, ok := f.text(&options[o], &n); ok {
				to[&options[o]] = told{text, fmt.Sprintf("%s:%d", f.name, n.Line)}
			}
		}
		lines[name] = n.Line
	}
	if lines[keyArgs] > 0 && lines[keyScript] == 0 {
		f.fail(&yaml.Node{Line: lines[keyArgs]}, "%s without a %s; name the script, too", keyArgs, keyScript)
	}
	return script, args
}

// unreadable says why a file of YAML cannot be read, with its name.
func unreadable(file, what string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w; give the path of %s in YAML", file, pathErr.Err, what)
	}
	return err
}

// text is an option's value as the command line would have it, false if it has none.
func (f *configFile) text(o *option, n *yaml.Node) (string, bool) {
	var items []string
	add := func(n *yaml.Node, before string) {
		text, ok := f.scalar("--"+o.name, n)
		item := before + text
		if o.name == "env" && ok {
			if err := checkVariable(item); err != nil {
				f.fail(n, "--env: %v", err)
				ok = false
			}
		}
		if ok {
			items = append(items, item)
		}
	}
	separator := ","
	if o.kind == kindEach {
		separator = "\x00"
	}
	switch {
	case o.kind == kindFlag:
		if n.ShortTag() != "!!bool" {
			f.fail(n, "--%s: %s is not a choice; give true or false", o.name, yamlfile.Shown(n))
			return "", false
		}
		return map[bool]string{true: "1", false: "0"}[strings.EqualFold(n.Value, "true")], true
	case n.Kind == yaml.MappingNode && strings.HasPrefix(o.arg, "K"): // K=V,... or K[=V]
		for pair := range slices.Chunk(n.Content, 2) {
			key, value := pair[0], pair[1]
			switch {
			case o.kind == kindEach && value.ShortTag() == "!!null":
				add(key, "") // its present value
			case o.kind != kindEach && key.Value != "allow" && strings.Contains(value.Value, ","):
				f.fail(value, "--%s: the value of %s has a comma, which it cannot have; leave it out", o.name,
					console.Quote(key.Value))
			default:
				add(value, key.Value+"=")
			}
		}
	case n.Kind == yaml.SequenceNode && (o.kind == kindEach || strings.HasSuffix(o.arg, ",...")):
		if o.kind != kindEach && len(n.Content) == 0 {
			f.fail(n, "--%s: the list is empty; leave the option out", o.name)
		}
		for _, item := range n.Content {
			if o.kind == kindList {
				item.Value = strings.ReplaceAll(item.Value, ",", ",,")
			}
			add(item, "")
		}
	default:
		add(n, "")
	}
	return strings.Join(items, separator), len(items) > 0
}

// scalar is the text of a node as it stands in the file.
func (f *configFile) scalar(name string, n *yaml.Node) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null":
		f.fail(n, "%s has %s as its value; give a text or a number", name, yamlfile.Shown(n))
	case strings.Contains(n.Value, "\x00"):
		f.fail(n, "%s: a NUL byte, which no argument can have; leave it out", name)
	default:
		return n.Value, true
	}
	return "", false
}
