package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
)

// help is `muster help [command]`.
func (p program) help(_ context.Context, args []string) int {
	if len(args) == 0 {
		return p.print(overview())
	}
	if len(args) > 1 {
		p.errorf("unexpected argument %s; want one command", quote(args[1]))
		return exitUsage
	}
	if c := commandNamed(args[0]); c != nil {
		return p.print(c.help())
	}
	hint := "`muster help` lists the commands"
	if meant := text.Nearest(args[0], names(subcommands())...); meant != "" {
		hint = "did you mean muster help " + meant + "?"
	}
	p.errorf("no help on %s; %s", quote(args[0]), hint)
	return exitUsage
}

// helpWidth is how wide the help is: it fits a terminal of 100 columns.
const (
	helpWidth  = 92
	helpIndent = 28
)

// runHelp is the text of --help.
func runHelp(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "usage: %s [options] training_script [training_script_args...]\n\n", name)
	b.WriteString(`Starts workers on this host, each running the script, and watches them. If one fails, all
are stopped, and started again as often as --max-restarts allows. Everything from the script
on is the script's; ${local_rank}, ${rank}, ${role_name} and ${hostname} in its arguments
are replaced for each worker, and $$ is a $.

An option may be written with _ for - and shortened while that is unambiguous. Most take
their default from the variable PET_<NAME>, for example PET_NPROC_PER_NODE=gpu. SECONDS may
have units: 90s, 10m, 1h30m.
`)
	for g := range groups {
		fmt.Fprintf(&b, "\n%s:\n", g)
		for i := range options {
			if options[i].group == g {
				b.WriteString(options[i].entry())
			}
		}
	}
	b.WriteString(`
Other variables: PYTHON_EXEC is the interpreter (default: that of the virtual environment
in which muster lies, else of the active virtual or conda environment, else python3 from
PATH); LOGLEVEL=INFO tells more of what happens; TORCHELASTIC_ERROR_FILE is where the
failure is written as JSON.
`)
	b.WriteString(exitText(endings))
	return b.String()
}

// entry is an option's lines in the help.
func (o *option) entry() string {
	left := "  "
	if o.short != 0 {
		left += "-" + string(o.short) + ", "
	}
	left += "--" + o.name
	if o.arg != "" {
		left += " " + o.arg
	}
	text := o.help
	if o.def != "" && o.def != "0" && !o.unset && !strings.Contains(text, "(default") {
		text += " (default: " + o.def + ")"
	}
	if o.own && o.env != "" {
		text += " [" + o.env + "]"
	}
	var b strings.Builder
	b.WriteString(left)
	column := len([]rune(left))
	if column > helpIndent-2 {
		b.WriteByte('\n')
		column = 0
	}
	b.WriteString(strings.Repeat(" ", helpIndent-column))
	b.WriteString(strings.Join(wrap(text, helpWidth-helpIndent), "\n"+strings.Repeat(" ", helpIndent)) + "\n")
	return b.String()
}

// wrap breaks a text into lines of at most width characters.
func wrap(text string, width int) (lines []string) {
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last >= 0 && len([]rune(lines[last]))+1+len([]rune(word)) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
