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
		if strings.Contains(arg, "$") {
			args[i] = substitute(arg, strconv.Itoa(localRank), more)
		}
	}
	return args
}

// macro is what may be replaced.
var macro = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(\$|[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)
})

func substitute(text, localRank string, more map[string]string) string {
	return macro().ReplaceAllStringFunc(text, func(found string) string {
		switch found {
		case "$$":
			return "$"
		case "$local_rank", "${local_rank}":
			return localRank
		}
		if name, braced := strings.CutPrefix(found, "${"); braced {
			if value, ok := more[strings.TrimSuffix(name, "}")]; ok {
				return value
			}
		}
		return found
	})
}
