package runline

import (
	"fmt"
	"strings"

	"github.com/muster-run/muster/cmd/muster/internal/console"
)

// helpIndent is where the texts of the options begin.
const helpIndent = 28

// Help is the text of --help.
func Help(name string) string {
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
	b.WriteString(console.ExitText(console.Endings))
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
	lines := console.Wrap(text, console.HelpWidth-helpIndent)
	b.WriteString(strings.Join(lines, "\n"+strings.Repeat(" ", helpIndent)) + "\n")
	return b.String()
}

// A Described is an option as help and completion describe it. A switch has no Arg.
type Described struct {
	Name, Arg, Help string
	Short           byte
	Choices         []string
}

// Describe lists the options of run.
func Describe() (all []Described) {
	for _, o := range options {
		all = append(all, Described{o.name, o.arg, o.help, o.short, o.choices})
	}
	return all
}
