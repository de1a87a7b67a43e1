"""`coterie list` and `coterie describe`: what there is, and what it is."""

from __future__ import annotations

import argparse
from typing import Any


def add_list(commands: Any) -> None:
    """Add `coterie list` and `coterie describe` to the command line."""
    every = commands.add_parser("list", help="list algorithms, federations and networks")
    every.set_defaults(command=list_command)

    describe = commands.add_parser(
        "describe", help="explain an algorithm, a federation or a network"
    )
    describe.add_argument("name")
    describe.set_defaults(command=describe_command)


def list_command(options: argparse.Namespace) -> int:
    from coterie.cli.describe import list_names

    print(list_names())
    return 0


def describe_command(options: argparse.Namespace) -> int:
    from coterie.cli.describe import describe_name

    print(describe_name(options.name))
    return 0
