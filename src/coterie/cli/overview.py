"""What `coterie` says by itself, `coterie help`, and the sentence about a command nobody knows."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from coterie.core.errors import SettingError, did_you_mean
from coterie.shelves import ALGORITHMS, SHELVES

FIRST_STEPS = """first steps:
  coterie run                                   IFCA on rotated digits, in seconds, with a report
  coterie run ifca patients.csv client=hospital label=outcome     your own table
  coterie predict runs/2026-... new.csv         what its models say of new rows
  coterie compare ifca,fedavg,local rotated-digits                side by side, with p-values
  coterie list                                  algorithms, federations and networks
  coterie describe ifca                         its paper, its settings, what leaves a client
  coterie help run                              the options of a command
  eval "$(coterie completion bash)"             names and settings by the tab key
"""


def add_help(commands: Any) -> None:
    """Add `coterie help` to the command line."""
    about = commands.add_parser("help", help="say how coterie or one of its commands is used")
    about.add_argument("about", nargs="?", default="", metavar="COMMAND")
    about.set_defaults(command=help_command, commands=commands.choices)


def help_command(options: argparse.Namespace) -> int:
    """Print the help of a command; without one the overview, which `main` prints."""
    check_command_name(options.about, options.commands)
    options.commands[options.about].print_help()
    return 0


def check_command_name(word: str, commands: Collection[str]) -> None:
    """Refuse what is no command, in a sentence that says what may be meant."""
    if word in commands:
        return
    if any(word in shelf for shelf in SHELVES.values()):
        kind = "run" if word in ALGORITHMS else "describe"
        near = f"; did you mean `coterie {kind} {word}`?"
    else:
        known = visible_commands(commands)
        near = did_you_mean(word, known) or f" (commands: {', '.join(known)})"
    raise SettingError(f"no command is named {word}{near}")


def visible_commands(commands: Collection[str]) -> list[str]:
    """The commands that are for people: not that by which a shell completes a line."""
    return [name for name in commands if name != "complete"]
