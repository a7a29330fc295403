package text

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Substitute replaces ${local_rank} and $local_rank in every argument by the
// worker's local rank and $$ by $. Everything else stays as it is, other $ too, but
// ${name} where more has the name. A name is as long as it can be: $local_rank_x is
// another name.
// Source: macros.substitute in torch/distributed/elastic/utils/api.py, which is
// Python's string.Template.safe_substitute. torch has nothing like more.
func Substitute(args []string, localRank int, more map[string]string) []string {
	args = slices.Clone(args)
	for i, arg := range args {
		args[i] = Expand(arg, func(name string, braced bool) (string, bool) {
			if name == "local_rank" {
				return strconv.Itoa(localRank), true
			}
			value, ok := more[name]
			return value, ok && braced
		})
	}
	return args
}

// macro is what may be replaced.
// Source: string.Template.pattern in Python, without what is invalid.
var macro = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(\$|[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)
})

// Expand replaces $name and ${name}, which is braced, by their values, where they have one, and $$ by $.
// What else follows a dollar sign stays as it is.
// Source: string.Template.safe_substitute in Python.
func Expand(template string, value func(name string, braced bool) (string, bool)) string {
	if !strings.Contains(template, "$") {
		return template
	}
	return macro().ReplaceAllStringFunc(template, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if text, known := value(strings.Trim(found, "${}"), found[1] == '{'); known {
			return text
		}
		return found
	})
}
