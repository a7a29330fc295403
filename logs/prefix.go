package logs

import "strings"

// DefaultLinePrefix is the template of a tee'd line's prefix.
const DefaultLinePrefix = "[${role_name}${local_rank}]:"

// expand replaces ${name} and $name by vars[name], and $$ by one dollar sign.
// What else follows a dollar sign, unknown names too, stays as it is. Names
// are ASCII letters, digits and underscores, no digit first.
// Source: string.Template.safe_substitute in Python.
func expand(template string, vars map[string]string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(template, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if strings.HasPrefix(rest, "$") {
			b.WriteByte('$')
			template = rest[1:]
			continue
		}
		braced := strings.HasPrefix(rest, "{")
		from := 0
		if braced {
			from = 1
		}
		end := from
		for end < len(rest) && isNameByte(rest[end], end == from) {
			end++
		}
		value, known := vars[rest[from:end]]
		closed := !braced || end < len(rest) && rest[end] == '}'
		if !known || !closed {
			b.WriteByte('$')
			template = rest
			continue
		}
		if braced {
			end++
		}
		b.WriteString(value)
		template = rest[end:]
	}
}

func isNameByte(c byte, first bool) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || !first && c >= '0' && c <= '9'
}
