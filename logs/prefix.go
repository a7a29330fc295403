package logs

import (
	"regexp"
	"strings"
	"sync"
)

// defaultLinePrefix is the template of a tee'd line's prefix.
const defaultLinePrefix = "[${role_name}${local_rank}]:"

// placeholder is Python's pattern of what a dollar sign begins, without what is invalid.
// Source: string.Template.pattern in Python.
var placeholder = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(?:\$|[A-Za-z_][A-Za-z_0-9]*|\{[A-Za-z_][A-Za-z_0-9]*\})`)
})

// expand replaces ${name} and $name by vars[name], and $$ by one dollar sign.
// What else follows a dollar sign, unknown names too, stays as it is.
// Source: string.Template.safe_substitute in Python.
func expand(template string, vars map[string]string) string {
	return placeholder().ReplaceAllStringFunc(template, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, known := vars[strings.Trim(found, "${}")]; known {
			return value
		}
		return found
	})
}

// latePrefix is the prefix of a line that comes after another attempt has begun.
func latePrefix(prefix, attempt string) string {
	bare := strings.TrimRight(prefix, " ")
	if begin, ok := strings.CutSuffix(bare, "]:"); ok {
		return begin + " " + attempt + "]:" + prefix[len(bare):]
	}
	return prefix + "[" + attempt + "]:"
}
