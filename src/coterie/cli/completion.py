"""`coterie completion`: names, settings and their values by the tab key of a shell.

A shell asks `coterie complete` for what may follow a line; the script that makes it ask is printed
by `coterie completion bash`, `zsh` or `fish`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from coterie.core.errors import SettingError, did_you_mean

# Bash cuts words at `=` and `:` and replaces what is behind the last of them only.
BASH = """_coterie() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\\n' separator
    local word="${line##* }" done=""
    for separator in = :; do
        if [[ $COMP_WORDBREAKS == *$separator* && $word == *$separator* ]]; then
            local before="${word%"$separator"*}$separator"
            (( ${#before} > ${#done} )) && done=$before
        fi
    done
    COMPREPLY=($("${COMP_WORDS[0]}" complete -- "$line" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$done"}")
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _coterie coterie
"""
ZSH = """_coterie() {
    local -a found
    found=("${(@f)$("${words[1]}" complete -- "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n ${found[*]} ]]; then
        compadd -S '' -- ${(M)found:#*=}
        compadd -- ${found:#*=}
    else
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _coterie coterie
"""
FISH = """function __coterie_complete
    coterie complete -- (commandline --cut-at-cursor | string collect) 2>/dev/null
end
complete --command coterie --arguments '(__coterie_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
HOW = """how to use it:
  bash    add to ~/.bashrc                       eval "$(coterie completion bash)"
  zsh     add to ~/.zshrc                        eval "$(coterie completion zsh)"
  fish    coterie completion fish > ~/.config/fish/completions/coterie.fish
"""


def add_completion(commands: Any) -> None:
    """Add `coterie completion` to the command line, and what the scripts ask."""
    completion = commands.add_parser(
        "completion",
        help="print what lets a shell complete names and settings",
        epilog=HOW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    completion.add_argument("shell", metavar="SHELL", help=", ".join(SCRIPTS))
    completion.set_defaults(command=completion_command)
    ask = commands.add_parser("complete")  # without help: it is not listed
    ask.add_argument("line", help="the line so far, from the name of the program on")
    ask.set_defaults(command=complete_command, prints_names=is_about_names)


def completion_command(options: argparse.Namespace) -> int:
    if options.shell not in SCRIPTS:
        raise SettingError(
            f"completion is for {', '.join(SCRIPTS)}, got {options.shell}"
            f"{did_you_mean(options.shell, SCRIPTS)}"
        )
    sys.stdout.write(SCRIPTS[options.shell])
    return 0


def is_about_names(options: argparse.Namespace) -> bool:
    """Whether a line holds nothing of a user's own, which has to be imported as it is."""
    return ":" not in options.line


def complete_command(options: argparse.Namespace) -> int:
    """Print what may follow a line; nothing where a line is wrong, for nobody could read it."""
    from coterie.cli.main import build_parser
    from coterie.cli.next_words import complete_line

    try:
        found = complete_line(options.line, build_parser())
    except Exception:
        return 1
    print("\n".join(found))
    return 0
