"""`coterie data`: get data sets, say where they are, and describe data before a run."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_data(commands: Any) -> None:
    """Add `coterie data` and its actions to the commands of the parser."""
    data = commands.add_parser("data", help="get data sets and say where they are")
    actions = data.add_subparsers(title="actions", required=True, metavar="ACTION")
    get = actions.add_parser("get", help="bring a data set into the cache and verify it")
    get.add_argument("source")
    get.set_defaults(command=get_command)
    every = actions.add_parser("list", help="list data sets and where they are")
    every.set_defaults(command=list_sources_command)
    describe = actions.add_parser(
        "describe", help="say what is in a table or federation, and what looks wrong"
    )
    describe.add_argument("data", metavar="FILE|FEDERATION")
    describe.add_argument("words", nargs="*", metavar="key=value", help="client=... label=...")
    describe.set_defaults(command=describe_data_command)
    path = actions.add_parser("path", help="print where data are looked for")
    path.set_defaults(command=path_command)


def get_command(options: argparse.Namespace) -> int:
    from coterie.data import sources

    folder = sources.get(options.source, lambda text: print(text, file=sys.stderr))
    print(f"{options.source} is in {folder}")
    return 0


def list_sources_command(options: argparse.Namespace) -> int:
    from coterie.data import sources

    print(sources.list_sources())
    return 0


def describe_data_command(options: argparse.Namespace) -> int:
    """Describe a file, a folder or a federation by its name."""
    from coterie.data.tables.describe import describe_federation_data, describe_source
    from coterie.data.tables.table import Table
    from coterie.experiment.plan import build_federation, names_a_file
    from coterie.experiment.settings import make_settings, parse_settings
    from coterie.registry import resolve

    name, words = options.data, options.words
    if names_a_file(name):
        table = make_settings(Table, parse_settings([f"path={name}", *words], [Table]))
        print(describe_source(table))
    else:
        kind = resolve("federation", name)
        settings = make_settings(kind, parse_settings(words, [kind]))
        print(describe_federation_data(build_federation(name, settings, seed=0)))
    return 0


def path_command(options: argparse.Namespace) -> int:
    from coterie.data import sources

    print("\n".join(map(str, sources.folders())))
    return 0
