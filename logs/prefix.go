package logs

import (
	"strings"

	"github.com/muster-run/muster/internal/format/text"
)

// defaultLinePrefix is the template of a tee'd line's prefix.
const defaultLinePrefix = "[${role_name}${local_rank}]:"

// expand replaces ${name} and $name by vars[name], as text.Expand does.
func expand(template string, vars map[string]string) string {
	return text.Expand(template, func(name string, _ bool) (string, bool) {
		value, known := vars[name]
		return value, known
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
