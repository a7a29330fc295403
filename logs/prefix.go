package logs

import "strings"

// DefaultLinePrefixTemplate is torchrun's.
const DefaultLinePrefixTemplate = "[${role_name}${local_rank}]:"

// Expand replaces ${name} and $name in a template by the values given, and $$ by
// $. Names without a value, and every other $, stay as they are.
// Source: Python's string.Template.safe_substitute.
func Expand(template string, values map[string]string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(template, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		if strings.HasPrefix(rest, "$") {
			out.WriteByte('$')
			template = rest[1:]
			continue
		}
		name, after := identifier(rest), ""
		if inner, ok := strings.CutPrefix(rest, "{"); ok {
			name = identifier(inner)
			if !strings.HasPrefix(inner[len(name):], "}") {
				name = ""
			} else {
				after = inner[len(name)+1:]
			}
		} else {
			after = rest[len(name):]
		}
		if value, ok := values[name]; ok && name != "" {
			out.WriteString(value)
			template = after
			continue
		}
		out.WriteByte('$')
		template = rest
	}
}

// identifier returns the name that text begins with.
func identifier(text string) string {
	for i := range len(text) {
		c := text[i]
		letter := c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return text[:i]
		}
	}
	return text
}
