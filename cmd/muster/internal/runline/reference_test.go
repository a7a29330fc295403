package runline

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/golden"
)

// docs/reference/options.md is what the table of options says; `make reference` writes it.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Options

<!-- Written by "make reference" from cmd/muster/internal/runline/flags.go. -->

The options of ` + "`muster run`" + `, also under the name ` + "`torchrun`" + `. Dashes and underscores are the same. The command line overrides the
variable, the variable overrides the [config file](#in-a-file), that overrides what the scheduler says, and that overrides the default;
` + "`muster explain`" + ` prints where each setting comes from. [Coming from torchrun](../migrate.md#every-option) compares each option with
torchrun's.

## In a file

` + "`--config FILE`, or the variable `MUSTER_CONFIG`," + ` names a config file: a YAML mapping of option names to values.

` + "```yaml" + `
nproc_per_node: 8
max_restarts: 3
hang_timeout: 30m
collapse: true
rdzv_conf: {join_timeout: 1800, token_file: token}
env: {NCCL_DEBUG: WARN, WANDB_API_KEY: }
training_script: train.py
training_script_args: [--epochs, 90]
` + "```" + `

- Names have underscores or dashes. A switch takes ` + "`true` or `false`" + `; every other value is the text that the command line takes.
- An option whose value has commas also takes a list; ` + "`rdzv_conf` and `env` also take a mapping. A name in `env`" + ` without a value takes
  over the present value, as ` + "`--env NAME`" + ` does.
- ` + "`env` and `env_file`" + ` of the command line are added to those of the file; every other option replaces the file's.
- ` + "`training_script` and `training_script_args`" + ` count if the command line names no script.
- Relative paths start from the current directory, as on the command line.
- Errors are reported together, each with ` + "`FILE:LINE`" + `.
`)
	for g := range groups {
		fmt.Fprintf(&b, "\n## %s\n", g)
		for i := range options {
			if options[i].group == g {
				b.WriteString(options[i].reference())
			}
		}
	}
	golden.Is(t, "../../../../docs/reference/options.md", b.String())
}

// codeInHelp is what a help text has of options, variables and fields.
var codeInHelp = regexp.MustCompile("`[^`]*`|\"[^\"]*\"|\\B--?[a-z][a-z-]*|\\$\\{?\\w+\\}?")

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
	b.WriteString(codeInHelp.ReplaceAllStringFunc(o.help, func(s string) string { return "`" + strings.Trim(s, "`\"") + "`" }))
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

// docs/reference/environment.md has the variable of each option.
func TestReferenceEnvironment(t *testing.T) {
	var b strings.Builder
	b.WriteString("| variable | option | value |\n|---|---|---|\n")
	for i := range options {
		if o := &options[i]; o.env != "" {
			value := o.valueType()
			if o.kind == kindFlag {
				value = "1 or 0"
			}
			fmt.Fprintf(&b, "| `%s` | [`--%s`](options.md#--%s) | %s |\n", o.env, o.name, o.name, value)
		}
	}
	golden.Parts(t, "../../../../docs/reference/environment.md", map[string]string{"options": b.String()})
}
