package cli

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// docs/reference/options.md is what the table of options says; `make reference` writes it.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Options

<!-- Written by "make reference" from cmd/muster/internal/cli/flags.go. -->

The options of ` + "`muster run`" + `, also under the name ` + "`torchrun`" + `. Dashes and underscores are the same. The command line overrides the
variable, the variable overrides what the scheduler says, and that overrides the default; ` + "`muster explain`" + ` prints where each
setting comes from. [Coming from torchrun](../migrate.md#every-option) compares each option with torchrun's.
`)
	for g := range groups {
		fmt.Fprintf(&b, "\n## %s\n", g)
		for i := range options {
			if options[i].group == g {
				b.WriteString(options[i].reference())
			}
		}
	}
	golden(t, "../../../../docs/reference/options.md", b.String())
}

// codeInHelp is what a help text has of options, variables and fields.
var codeInHelp = regexp.MustCompile("`[^`]*`|\\B--?[a-z][a-z-]*|\\$\\{?\\w+\\}?")

// reference is an option's part of the page.
func (o *option) reference() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### --%s\n\n`", o.name)
	if o.short != 0 {
		fmt.Fprintf(&b, "-%c, ", o.short)
	}
	b.WriteString("--" + o.name)
	if o.arg != "" {
		b.WriteString(" " + o.arg)
	}
	b.WriteString("`: ")
	b.WriteString(codeInHelp.ReplaceAllStringFunc(o.help, func(s string) string { return "`" + strings.Trim(s, "`") + "`" }))
	b.WriteString(".\n\n" + o.valueType())
	if o.takesArg() && !o.unset && o.def != "" && !strings.Contains(o.help, "(default") {
		b.WriteString(", default `" + o.def + "`")
	}
	if o.env != "" {
		b.WriteString(". Variable: `" + o.env + "`")
		if o.kind == kindFlag {
			b.WriteString(", 1 or 0")
		}
	}
	return b.String() + ".\n"
}

// valueType says what an option takes.
func (o *option) valueType() string {
	switch {
	case o.choices != nil:
		return "One of `" + strings.Join(o.choices, "`, `") + "`"
	case o.arg == "SECONDS":
		return "Seconds, or a time with units such as `10m`"
	case o.kind == kindInt:
		return "A whole number"
	case o.kind == kindList:
		return "A list with commas"
	case !o.takesArg():
		return "A switch"
	}
	return "Text"
}
