package text

import (
	"slices"
	"strconv"
	"strings"
)

// Substitute replaces ${local_rank} and $local_rank in every argument by the
// worker's local rank and $$ by $. Everything else stays as it is, other $ too.
// A name is as long as it can be: $local_rank_x is another name.
// Source: macros.substitute in torch/distributed/elastic/utils/api.py, which is
// Python's string.Template.safe_substitute.
func Substitute(args []string, localRank int) []string {
	args = slices.Clone(args)
	for i, arg := range args {
		if strings.Contains(arg, "$") {
			args[i] = substitute(arg, strconv.Itoa(localRank))
		}
	}
	return args
}

const localRankMacro = "local_rank"

func substitute(text, localRank string) string {
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
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteByte('$')
			text = rest[1:]
		case !braced && name == localRankMacro:
			out.WriteString(localRank)
			text = rest[n:]
		case braced && name == localRankMacro && strings.HasPrefix(rest[1+n:], "}"):
			out.WriteString(localRank)
			text = rest[n+2:]
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
