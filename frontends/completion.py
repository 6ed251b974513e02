"""Command `completion`: the code by which bash, zsh or fish completes command lines, by click's protocol.

click's own code does not complete the value in `--launcher=m`, which each shell divides in another way.
"""

import click

from frontends.shared_command import SharedCommand

# All three shells call the command as fish does: with the line up to the cursor, and its last word.
BASH = """\
_@_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            plain) COMPREPLY+=("${value%%$'\\t'*}") ;;
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
        esac
    done < <(COMP_WORDS="$line" COMP_CWORD="${line##*[[:space:]]}" _%_COMPLETE=fish_complete "$1" 2> /dev/null)
}
complete -o nosort -F _@_completion @
"""

ZSH = """\
#compdef @
_@_completion() {
    local type rest
    local -a found
    local last="${words[CURRENT]}"
    local line="${(j: :)words[1,CURRENT]}"
    [[ $PREFIX == -*=* ]] && compset -P '*='
    while IFS=, read -r type rest; do
        case $type in
            plain) found+=("${rest%%$'\\t'*}") ;;
            dir) _path_files -/ ;;
            file) _path_files -f ;;
        esac
    done < <(COMP_WORDS="$line" COMP_CWORD="$last" _%_COMPLETE=fish_complete @ 2> /dev/null)
    (( ${#found} )) && compadd -V unsorted -a found
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _@_completion "$@"
else
    compdef _@_completion @
fi
"""

FISH = """\
function _@_completion
    set -l last (commandline -ct)
    set -l option (string match -r -- '^-[^=]*=' $last)
    for found in (env COMP_WORDS=(commandline -cp) COMP_CWORD=$last _%_COMPLETE=fish_complete @ 2> /dev/null)
        set -l parts (string split -m 1 , -- $found)
        switch $parts[1]
            case plain
                echo "$option$parts[2]"
            case dir
                __fish_complete_directories (string replace -- "$option" '' $last) | string replace -r '^' -- "$option"
            case file
                __fish_complete_path (string replace -- "$option" '' $last) | string replace -r '^' -- "$option"
        end
    end
end
complete --no-files --command @ --arguments '(_@_completion)'
"""

SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
EXAMPLES = """\b
Examples, for one shell and for all later ones:
  . <(hfdt completion bash)         hfdt completion bash >> ~/.bashrc
  . <(hfdt completion zsh)          hfdt completion zsh > ~/.zfunc/_hfdt, a folder of fpath
  hfdt completion fish | source     hfdt completion fish > ~/.config/fish/completions/hfdt.fish
"""


@click.command("completion", cls=SharedCommand, epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion_command(shell: str) -> None:
    """Print the shell code that completes this command's options and arguments."""
    name = str(click.get_current_context().find_root().info_name)
    click.echo(SHELLS[shell].replace("@", name).replace("%_COMPLETE", f"{name.upper()}_COMPLETE"), nl=False)
