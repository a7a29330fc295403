package text

import (
	"slices"
	"strconv"
	"strings"
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
		if strings.Contains(arg, "$") {
			args[i] = substitute(arg, strconv.Itoa(localRank), more)
		}
	}
	return args
}

const localRankMacro = "local_rank"

func substitute(text, localRank string, more map[string]string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, braced := rest, strings.HasPrefix(rest, "{")
		if braced {
			name = rest[1:]
		}
		n := 0
		for n < len(name) && isNameByte(name[n], n == 0) {
			n++
		}
		name = name[:n]
		braced = braced && strings.HasPrefix(rest[1+n:], "}")
		value, known := more[name]
		known = known && braced
		if name == localRankMacro && (braced || rest[0] != '{') {
			value, known = localRank, true
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteByte('$')
			text = rest[1:]
		case known && braced:
			out.WriteString(value)
			text = rest[n+2:]
		case known:
			out.WriteString(value)
			text = rest[n:]
		default:
			out.WriteByte('$')
			text = rest
		}
	}
}

// isNameByte says whether c may stand in a macro's name, [_a-z][_a-z0-9]* in
// either case.
func isNameByte(c byte, first bool) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || !first && '0' <= c && c <= '9'
}
