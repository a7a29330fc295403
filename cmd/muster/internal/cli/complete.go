package cli

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-run/muster/cmd/muster/internal/runline"
	"github.com/muster-run/muster/launch"
)

// A word is what may be typed, and what it means, if the word does not say it.
type word struct{ name, what string }

// bare are words that say enough.
func bare(names []string) (words []word) {
	for _, name := range names {
		words = append(words, word{name: name})
	}
	return words
}

// join makes one text of words.
func join(words []word, between string, form func(word) string) string {
	var s []string
	for _, w := range words {
		s = append(s, form(w))
	}
	return strings.Join(s, between)
}

func (w word) String() string { return w.name }

// words lists what an option's argument may be, as far as it can be listed.
func words(o *runline.Described) []word {
	switch o.Name {
	case "nproc-per-node":
		return []word{{"auto", "one for each device, or for each core if there is none"}, {"cpu", "one for each core"},
			{"gpu", "one for each GPU"}, {"xpu", "one for each Intel GPU"}}
	case "rdzv-backend":
		var words []word
		for _, b := range launch.Backends() {
			words = append(words, word{b.Name, b.What})
		}
		return words
	case "event-log-handler":
		return []word{{"null", "nowhere"}, {"console", "JSON lines on stderr"}, {"file", "the file of --event-log-file"},
			{"dynamic_rendezvous", "as null"}}
	case "redirects", "tee":
		return []word{{"0", "none"}, {"1", "stdout"}, {"2", "stderr"}, {"3", "both"}}
	case "stream":
		return bare([]string{"stdout", "stderr", "both"})
	}
	return bare(o.Choices)
}

// action is what a shell does to complete the option's argument: with the words, of which
// offer makes a list, with directories, or with files. "" if there is nothing to offer.
func action(o *runline.Described, offer func([]word) string, directories, files string) string {
	switch list := words(o); {
	case o.Arg == "":
	case list != nil:
		return offer(list)
	case o.Arg == "DIR":
		return directories
	case o.Arg == "FILE" || o.Arg == "PATH":
		return files
	}
	return ""
}

// spellings lists the ways to write the option in full. Only those of run may have
// underscores.
func spellings(o *runline.Described, underscores bool) []string {
	s := []string{"--" + o.Name}
	if o.Short != 0 {
		s = append(s, "-"+string(o.Short))
	}
	if underscores && strings.Contains(o.Name, "-") {
		s = append(s, "--"+strings.ReplaceAll(o.Name, "-", "_"))
	}
	return s
}

// names are the commands' names.
func names(commands []subcommand) (s []string) {
	for _, c := range commands {
		s = append(s, c.name)
	}
	return s
}

// described are the commands as words.
func described(commands []subcommand) (words []word) {
	for _, c := range commands {
		words = append(words, word{c.name, c.what})
	}
	return words
}

// bashLines are words and what they mean, one in a line, in single quotes.
func bashLines(words []word) string {
	return "'" + join(words, "\n", func(w word) string {
		return strings.TrimSuffix(w.name+"\t"+strings.ReplaceAll(w.what, "'", `'\''`), "\t")
	}) + "'"
}

// bashScript is a format: the name, the word at which options begin, the choice of a command,
// the cases of the commands, and those of the options with an argument.
//
//go:embed completion.bash
var bashScript string

func bashCompletion(name string, commands []subcommand) string {
	var cases, values strings.Builder
	first, choose, done := 1, "", map[string]bool{}
	if name != runline.Torchrun {
		first = 2
		choose = fmt.Sprintf("    ((COMP_CWORD == 1)) && { _%s_offer %s; return; }\n", name, bashLines(described(commands)))
	}
	for _, c := range commands {
		var opts []word
		var underscored, takes []string
		for _, o := range c.options() {
			plain, all := spellings(&o, false), spellings(&o, c.line)
			for _, s := range plain {
				opts = append(opts, word{s, o.Help})
			}
			underscored = append(underscored, all[len(plain):]...)
			if o.Arg == "" {
				continue
			}
			takes = append(takes, all...)
			what := action(&o, func(w []word) string { return "_" + name + "_offer " + bashLines(w) },
				`COMPREPLY=($(compgen -d -- "$cur"))`, "compopt -o default 2>/dev/null")
			if what != "" && !done[o.Name] {
				done[o.Name] = true
				fmt.Fprintf(&values, "            %s) %s ;;\n", strings.Join(all, "|"), what)
			}
		}
		script := ""
		if c.line {
			script = "1"
		}
		fmt.Fprintf(&cases, "    %s) script=%s words=%s takes=%q\n        opts=%s\n        under=%q ;;\n",
			cmp.Or(c.name, "*"), script,
			bashLines(c.words), strings.Join(takes, " "), bashLines(opts), strings.Join(underscored, " "))
	}
	return fmt.Sprintf(bashScript, name, first, choose, cases.String(), values.String())
}

// zshText makes a text safe inside single quotes and _arguments' brackets.
var zshText = strings.NewReplacer("'", "'\\''", "[", "\\[", "]", "\\]", ":", "\\:", "`", "")

// zshWords are words for _arguments, within single quotes.
func zshWords(words []word) string {
	return "((" + join(words, " ", func(w word) string {
		return strings.TrimSuffix(w.name+`\:"`+zshText.Replace(w.what)+`"`, `\:""`)
	}) + "))"
}

func zshCompletion(name string, commands []subcommand) string {
	var list, cases strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&list, " '%s:%s'", c.name, zshText.Replace(c.what))
		rest := "'*:argument:_files'"
		if c.line {
			rest = "-A '-*' '1:training script:_files' '*::script argument:_files'"
		} else if c.words != nil {
			rest = "'1:word:" + zshWords(c.words) + "' " + rest
		}
		fmt.Fprintf(&cases, "    %s) _arguments -S %s", cmp.Or(c.name, "*"), rest)
		for _, o := range c.options() {
			tail := "[" + zshText.Replace(o.Help) + "]"
			if o.Arg != "" {
				tail += ":" + zshText.Replace(o.Arg) + ":" + action(&o, zshWords, "_directories", "_files")
			}
			for _, s := range spellings(&o, c.line) {
				if o.Arg != "" && strings.HasPrefix(s, "--") {
					s += "=" // --option=value as well as --option value
				} else if o.Arg != "" {
					s += "+"
				}
				fmt.Fprintf(&cases, " \\\n        '%s%s'", s, tail)
			}
		}
		cases.WriteString(" ;;\n")
	}
	choose := ""
	if name != runline.Torchrun {
		choose = fmt.Sprintf(`    if ((CURRENT == 2)); then
        local -a list=(%s)
        _describe command list
        return
    fi
    shift words
    ((CURRENT--))
`, list.String())
	}
	// The end makes the script work both as a file in fpath and when sourced.
	return fmt.Sprintf(`#compdef %[1]s
_%[1]s() {
%[2]s    case ${words[1]} in
%[3]s    esac
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then _%[1]s "$@"; else compdef _%[1]s %[1]s; fi
`, name, choose, cases.String())
}

func tcshWords(words []word) string { return "(" + join(words, " ", word.String) + ")" }

// tcshCompletion offers the options of all commands to each: its rules look at one word, and
// have no place for what it means.
func tcshCompletion(name string, commands []subcommand) string {
	var rules, long []string
	for _, c := range commands {
		for _, o := range c.options() {
			if slices.Contains(long, o.Name) {
				continue
			}
			long = append(long, o.Name)
			for _, s := range spellings(&o, c.line) {
				if what := action(&o, tcshWords, "d", "f"); what != "" {
					rules = append(rules, fmt.Sprintf("'n/%s/%s/'", s, what))
				}
			}
		}
	}
	rules = append(rules, fmt.Sprintf("'c/--/(%s)/'", strings.Join(long, " ")))
	if name != runline.Torchrun {
		rules = append(rules, fmt.Sprintf("'p/1/(%s)/'", strings.Join(names(commands), " ")))
	}
	for _, c := range commands {
		if c.words != nil {
			rules = append(rules, fmt.Sprintf("'n/%s/%s/'", c.name, tcshWords(c.words)))
		}
	}
	return fmt.Sprintf("# tcsh completion for %s\ncomplete %s %s 'p/*/f/'\n", name, name, strings.Join(rules, " "))
}

// completionScript makes the script for one shell that completes the command under which the
// program was started: torchrun, a command without a name here, or muster with its subcommands.
func completionScript(shell, name string) string {
	commands := subcommands()
	if name == runline.Torchrun {
		commands = []subcommand{{line: true}}
	} else {
		name = "muster"
	}
	return map[string]func(string, []subcommand) string{
		"bash": bashCompletion, "zsh": zshCompletion, "tcsh": tcshCompletion,
	}[shell](name, commands)
}
