package cli

import (
	"fmt"
	"io"
	"strings"
)

// completion is `muster completion SHELL`.
func (p program) completion(args []string) int {
	if len(args) == 1 {
		for _, shell := range shells {
			if args[0] == shell {
				return p.printCompletion(shell)
			}
		}
	}
	p.errorf("completion wants one shell: %s", strings.Join(shells, ", "))
	return exitUsage
}

// printCompletion writes the script that completes the command under which the
// program was started: torchrun, or muster with its subcommands.
func (p program) printCompletion(shell string) int {
	name, subcommands := "muster", commands
	if p.name == torchrunName {
		name, subcommands = torchrunName, nil
	}
	io.WriteString(p.stdout, completionScript(shell, name, subcommands))
	return exitOK
}

// completionScript makes the script for one shell. With subcommands the options
// are those of name's subcommand run.
func completionScript(shell, name string, subcommands []string) string {
	switch shell {
	case "bash":
		return bashCompletion(name, subcommands)
	case "zsh":
		return zshCompletion(name, subcommands)
	case "fish":
		return fishCompletion(name, subcommands)
	default:
		return tcshCompletion(name, subcommands)
	}
}

// words lists what an option's argument may be, as far as it can be listed.
func (o *option) words() []string {
	switch o.name {
	case "nproc-per-node":
		return []string{"auto", "cpu", "gpu", "xpu"}
	case "rdzv-backend":
		return []string{"static", "c10d"}
	case "event-log-handler":
		return []string{"null", "console", "file", "dynamic_rendezvous"}
	case "redirects", "tee":
		return []string{"0", "1", "2", "3"}
	}
	return o.choices
}

// spellings lists the ways to write the option in full.
func (o *option) spellings() []string {
	s := []string{"--" + o.name}
	if o.short != 0 {
		s = append(s, "-"+string(o.short))
	}
	if strings.Contains(o.name, "-") {
		s = append(s, "--"+strings.ReplaceAll(o.name, "-", "_"))
	}
	return s
}

func bashCompletion(name string, subcommands []string) string {
	var flags, dashed, underscored, takes []string
	var values strings.Builder
	for i := range options {
		o := &options[i]
		dashed = append(dashed, "--"+o.name)
		underscored = append(underscored, "--"+strings.ReplaceAll(o.name, "-", "_"))
		if o.short != 0 {
			flags = append(flags, "-"+string(o.short))
		}
		if !o.takesArg() {
			continue
		}
		takes = append(takes, o.spellings()...)
		what := ""
		if words := o.words(); words != nil {
			what = `COMPREPLY=($(compgen -W "` + strings.Join(words, " ") + `" -- "$cur"))`
		} else if o.name == "log-dir" {
			what = `COMPREPLY=($(compgen -d -- "$cur"))`
		}
		if what != "" {
			fmt.Fprintf(&values, "        %s) %s ;;\n", strings.Join(o.spellings(), "|"), what)
		}
	}
	first, choose := 1, ""
	if subcommands != nil {
		first = 2
		choose = fmt.Sprintf(`    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "%s" -- "$cur"))
        return
    fi
    case ${COMP_WORDS[1]} in
    run|explain|doctor) ;;
    completion) COMPREPLY=($(compgen -W "%s" -- "$cur")); return ;;
    *) return ;;
    esac
`, strings.Join(subcommands, " "), strings.Join(shells, " "))
	}
	fn := "_" + name
	return fmt.Sprintf(`# bash completion for %[1]s
%[2]s() {
    local cur=${COMP_WORDS[COMP_CWORD]} i=%[3]d word
    COMPREPLY=()
%[4]s    # Find the option whose argument is being typed; at the script, stop.
    # Bash splits --option=value into three words.
    while ((i < COMP_CWORD)); do
        word=${COMP_WORDS[i]}
        case $word in
        --) return ;;
        -*) ;;
        *) return ;;
        esac
        if [[ ${COMP_WORDS[i+1]} == = ]]; then
            ((i + 1 == COMP_CWORD)) && cur=
            ((i += 2))
        elif [[ " %[5]s " == *" $word "* ]]; then
            ((i += 1))
        else
            ((i += 1))
            continue
        fi
        if ((i >= COMP_CWORD)); then
            compopt +o default 2>/dev/null
            case $word in
%[6]s            esac
            return
        fi
        ((i += 1))
    done
    case $cur in
    --*_*) COMPREPLY=($(compgen -W "%[7]s" -- "$cur")) ;;
    --*) COMPREPLY=($(compgen -W "%[8]s" -- "$cur")) ;;
    -*) COMPREPLY=($(compgen -W "%[9]s" -- "$cur")) ;;
    esac
}
complete -o default -F %[2]s %[1]s
`, name, fn, first, choose, strings.Join(takes, " "), values.String(),
		strings.Join(underscored, " "), strings.Join(dashed, " "), strings.Join(append(flags, dashed...), " "))
}

// zshText makes a text safe inside single quotes and _arguments' brackets.
var zshText = strings.NewReplacer("'", "'\\''", "[", "\\[", "]", "\\]", ":", "\\:", "`", "")

func zshCompletion(name string, subcommands []string) string {
	var specs strings.Builder
	for i := range options {
		o := &options[i]
		tail := "[" + zshText.Replace(o.help) + "]"
		if o.takesArg() {
			action := ""
			if words := o.words(); words != nil {
				action = "(" + strings.Join(words, " ") + ")"
			} else if o.name == "log-dir" {
				action = "_directories"
			}
			tail += ":" + zshText.Replace(o.arg) + ":" + action
		}
		for _, s := range o.spellings() {
			if o.takesArg() && strings.HasPrefix(s, "--") {
				s += "=" // --option=value as well as --option value
			} else if o.takesArg() {
				s += "+"
			}
			fmt.Fprintf(&specs, "        '%s%s' \\\n", s, tail)
		}
	}
	run := "    _arguments -S -A '-*' \\\n" + specs.String() +
		"        '1:training script:_files' \\\n        '*::script argument:_files'\n"
	if subcommands == nil {
		return fmt.Sprintf("#compdef %[1]s\n_%[1]s() {\n%[2]s}\n%[3]s", name, run, zshEnd(name))
	}
	return fmt.Sprintf(`#compdef %[1]s
_%[1]s() {
    if ((CURRENT == 2)); then
        compadd %[2]s
        return
    fi
    case ${words[2]} in
    completion) compadd %[3]s; return ;;
    run|explain|doctor) ;;
    *) return ;;
    esac
    shift words
    ((CURRENT--))
%[4]s}
%[5]s`, name, strings.Join(subcommands, " "), strings.Join(shells, " "), run, zshEnd(name))
}

// zshEnd makes the script work both as a file in fpath and when sourced.
func zshEnd(name string) string {
	return fmt.Sprintf("if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then _%[1]s \"$@\"; else compdef _%[1]s %[1]s; fi\n", name)
}

func fishCompletion(name string, subcommands []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# fish completion for %s\n", name)
	condition := ""
	if subcommands != nil {
		condition = " -n '__fish_seen_subcommand_from run explain doctor'"
		fmt.Fprintf(&b, "complete -c %s -n __fish_use_subcommand -x -a '%s'\n", name, strings.Join(subcommands, " "))
		fmt.Fprintf(&b, "complete -c %s -n '__fish_seen_subcommand_from completion' -x -a '%s'\n", name, strings.Join(shells, " "))
	}
	for i := range options {
		o := &options[i]
		line := "complete -c " + name + condition + " -l " + o.name
		if o.short != 0 {
			line += " -s " + string(o.short)
		}
		switch words := o.words(); {
		case !o.takesArg():
		case words != nil:
			line += " -x -a '" + strings.Join(words, " ") + "'"
		case o.name == "log-dir":
			line += " -x -a '(__fish_complete_directories)'"
		default:
			line += " -x"
		}
		fmt.Fprintf(&b, "%s -d '%s'\n", line, strings.ReplaceAll(strings.ReplaceAll(o.help, `\`, `\\`), "'", `\'`))
	}
	return b.String()
}

func tcshCompletion(name string, subcommands []string) string {
	var rules, names []string
	for i := range options {
		o := &options[i]
		names = append(names, o.name)
		if words := o.words(); words != nil && o.takesArg() {
			for _, s := range o.spellings() {
				rules = append(rules, fmt.Sprintf("'n/%s/(%s)/'", s, strings.Join(words, " ")))
			}
		}
	}
	rules = append(rules, "'n/--log-dir/d/'", "'n/--log_dir/d/'", fmt.Sprintf("'c/--/(%s)/'", strings.Join(names, " ")))
	if subcommands != nil {
		rules = append(rules, fmt.Sprintf("'p/1/(%s)/'", strings.Join(subcommands, " ")),
			fmt.Sprintf("'n/completion/(%s)/'", strings.Join(shells, " ")))
	}
	return fmt.Sprintf("# tcsh completion for %s\ncomplete %s %s 'p/*/f/'\n", name, name, strings.Join(rules, " "))
}
