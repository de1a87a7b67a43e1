"""`coterie list` and `coterie describe`: what there is, and what it is."""

from __future__ import annotations

import argparse
from typing import Any

from coterie.shelves import SHELVES, entry_points_of


def add_list(commands: Any) -> None:
    """Add `coterie list` and `coterie describe` to the command line."""
    every = commands.add_parser("list", help="list algorithms, federations and networks")
    every.set_defaults(command=list_command, prints_names=lambda _: not offered_names())

    describe = commands.add_parser(
        "describe", help="explain an algorithm, a federation or a network"
    )
    describe.add_argument("name")
    describe.set_defaults(command=describe_command, prints_names=lambda o: is_built_in(o.name))


def offered_names() -> list[str]:
    """What installed packages offer: these may need more than placeholders."""
    return [name for kind in SHELVES for name in entry_points_of(kind)]


def is_built_in(name: str) -> bool:
    """Whether a name is one of coterie's own."""
    return any(name in shelf for shelf in SHELVES.values())


def list_command(options: argparse.Namespace) -> int:
    from coterie.cli.describe import list_names

    print(list_names())
    return 0


def describe_command(options: argparse.Namespace) -> int:
    from coterie.cli.describe import describe_name

    print(describe_name(options.name))
    return 0
