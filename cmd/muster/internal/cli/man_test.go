package cli

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/internal/test/golden"
	"github.com/muster-run/muster/internal/version"
)

const manPage = "../../../../docs/reference/muster.1"

// docs/reference/muster.1 is what `muster help` and the help of every command say; `make
// reference` writes it, and a release puts its date into it.
func TestReferenceManual(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, `.\" Written by "make reference" from cmd/muster/internal/cli.
.TH MUSTER 1 "" "muster %s" "User Commands"
.ad l
.SH NAME
muster \- run a distributed PyTorch job and keep it alive
.SH SYNOPSIS
.B muster
.I COMMAND
\&...
.SH DESCRIPTION
%s`, version.Version, roff(overview()))
	for _, c := range subcommands() {
		fmt.Fprintf(&b, ".SH MUSTER %s\n%s", strings.ToUpper(c.name), roff(c.help()))
	}
	b.WriteString(".SH SEE ALSO\nhttps://github.com/muster\\-run/muster\n")
	golden.Is(t, manPage, b.String())
}

// gap is between what is explained and its explanation; metavar is an option's argument.
var (
	gap     = regexp.MustCompile(` {2,}`)
	metavar = regexp.MustCompile(`^\[?[A-Z][A-Z_=:|.,\[\]]*$`)
)

var roffText = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

// roff makes help a part of the manual. Help has a usage, paragraphs, examples that are
// indented by four blanks, and rows that are indented by two: what is explained, and below
// that or after it the explanation. A line before rows may be their heading.
func roff(help string) string {
	var b strings.Builder
	usage, row, example := false, false, false
	lines := strings.Split(strings.TrimSuffix(help, "\n"), "\n")
	blank := true
	for i, line := range lines {
		text := strings.TrimSpace(line)
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if example && indent < 4 {
			b.WriteString(".EE\n")
			example = false
		}
		switch {
		case text == "":
			usage, row, blank = false, false, true
			continue
		case strings.HasPrefix(line, "usage: "):
			if usage = true; b.Len() > 0 {
				b.WriteString(".PP\n")
			}
			b.WriteString(roffLine(strings.TrimPrefix(line, "usage: ")))
		case usage && strings.HasPrefix(text, "muster "):
			b.WriteString(".br\n" + roffLine(text))
		case usage, row && indent > 2 && !strings.HasPrefix(text, "muster "):
			b.WriteString(roffLine(text))
		case row && indent > 2: // a command to copy
			b.WriteString(".br\n" + roffLine(text))
		case indent == 2:
			row = true
			b.WriteString(tagged(text))
		case indent >= 4:
			if !example {
				b.WriteString(".PP\n.EX\n")
				example = true
			}
			b.WriteString(roffText.Replace(line) + "\n")
		case blank && i+1 < len(lines) && strings.HasPrefix(lines[i+1], "  ") && lines[i+1][2] != ' ':
			b.WriteString(".SS " + roffText.Replace(strings.TrimSuffix(text, ":")) + "\n")
		default:
			if blank && b.Len() > 0 {
				b.WriteString(".PP\n")
			}
			b.WriteString(roffLine(text))
		}
		blank = false
	}
	if example {
		b.WriteString(".EE\n")
	}
	return b.String()
}

// tagged is the beginning of a row.
func tagged(text string) string {
	what, explanation := text, ""
	if at := gap.FindStringIndex(text); at != nil {
		what, explanation = text[:at[0]], text[at[1]:]
	}
	words := strings.Fields(what)
	for i, word := range words {
		switch {
		case word[0] == '-':
			words[i] = `\fB` + roffText.Replace(word) + `\fR`
		case metavar.MatchString(word):
			words[i] = `\fI` + roffText.Replace(word) + `\fR`
		case i > 0 && explanation == "": // there is no room for a gap
			words, explanation = words[:i], strings.Join(words[i:], " ")
		default:
			words[i] = `\fB` + roffText.Replace(word) + `\fR`
		}
		if i >= len(words) {
			break
		}
	}
	s := ".TP\n" + strings.Join(words, " ") + "\n"
	if explanation != "" {
		s += roffLine(explanation)
	}
	return s
}

// roffLine is a line of text, which is not a request, and in which no option, path or variable
// is divided at the end of a line.
func roffLine(text string) string {
	words := strings.Fields(text)
	for i, word := range words {
		if words[i] = roffText.Replace(word); strings.ContainsAny(word, "-/_$") {
			words[i] = `\%` + words[i]
		}
	}
	line := strings.Join(words, " ")
	if strings.HasPrefix(line, ".") {
		line = `\&` + line
	}
	return line + "\n"
}

// groff and mandoc have nothing to say about the manual, and groff shows every option in it.
func TestManualIsSound(t *testing.T) {
	if mandoc, err := exec.LookPath("mandoc"); err == nil {
		out, _ := exec.Command(mandoc, "-T", "lint", "-W", "warning", manPage).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if !strings.Contains(line, "missing date") { // a release has one
				t.Error(line)
			}
		}
	}
	cmd := exec.Command(shell(t, "groff"), "-man", "-Tascii", "-rHY=0", "-rLL=500n", "-P-cbou", "-ww", manPage)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil || complaints.Len() > 0 {
		t.Fatalf("%v: %s", err, complaints.String())
	}
	text := strings.Join(strings.Fields(string(out)), " ")
	for _, c := range subcommands() {
		_, section, ok := strings.Cut(text, " MUSTER "+strings.ToUpper(c.name)+" ")
		section, _, _ = strings.Cut(section, " MUSTER ")
		if !ok || !strings.Contains(section, "muster "+c.name) {
			t.Errorf("there is no section of %s: %q", c.name, section)
		}
		for _, o := range usageOptions(c.help()) {
			if !strings.Contains(section, command.Dashed(o.Name)) || !strings.Contains(section, o.Help) {
				t.Errorf("%s: nothing on %s: %s", c.name, command.Dashed(o.Name), o.Help)
			}
		}
	}
}
