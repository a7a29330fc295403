# bash completion for %[1]s
# Offers the words of $1, each in a line with a tab and what it means. The meanings are in the
# lists that bash shows ($COMP_TYPE), which it does not insert.
_%[1]s_offer() {
    local line words=() means=() i width=0 blanks
    while IFS= read -r line; do
        word=${line%%%%$'\t'*}
        [[ $word && $word == "$cur"* ]] || continue
        COMPREPLY+=("$word") means+=("${line:${#word}+1}")
        ((width = ${#word} > width ? ${#word} : width))
    done <<< "$1"
    case ${COMP_TYPE-} in 33|63|64) ;; *) return ;; esac
    ((${#COMPREPLY[@]} > 1)) || return
    printf -v blanks '%%*s' "$width" ''
    for i in "${!COMPREPLY[@]}"; do
        word=${COMPREPLY[i]}${blanks:${#COMPREPLY[i]}}
        [[ ${means[i]} ]] && word="$word  ${means[i]}" && COMPREPLY[i]=${word:0:${COLUMNS:-80}-2}
    done
}
_%[1]s() {
    local cur=${COMP_WORDS[COMP_CWORD]} i=%[2]d word script= words= takes= opts= under=
    COMPREPLY=()
%[3]s    case ${COMP_WORDS[1]} in
%[4]s    esac
    # Find the option whose argument is being typed; at the script, stop.
    # Bash splits --option=value into three words.
    while ((i < COMP_CWORD)); do
        word=${COMP_WORDS[i]}
        case $word in
        --) return ;;
        -*) ;;
        *) [[ $script ]] && return ;;
        esac
        if [[ ${COMP_WORDS[i+1]} == = ]]; then
            ((i + 1 == COMP_CWORD)) && cur=
            ((i += 2))
        elif [[ " $takes " == *" $word "* ]]; then
            ((i += 1))
        else
            ((i += 1))
            continue
        fi
        if ((i >= COMP_CWORD)); then
            compopt +o default 2>/dev/null
            case $word in
%[5]s            esac
            return
        fi
        ((i += 1))
    done
    case $cur in
    --*_*) COMPREPLY=($(compgen -W "$under" -- "$cur")) ;;
    -*) _%[1]s_offer "$opts" ;;
    *) ((COMP_CWORD == 2)) && _%[1]s_offer "$words" ;;
    esac
}
complete -o default -F _%[1]s %[1]s
