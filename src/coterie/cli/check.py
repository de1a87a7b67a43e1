"""`coterie check`: the conformance suite on an algorithm by its name."""

from __future__ import annotations

import argparse
from typing import Any

from coterie.core.errors import SettingError

FAILED = 1  # exit code where a promise is broken


def add_check(commands: Any) -> None:
    """Add `coterie check` to the command line."""
    check = commands.add_parser("check", help="try whether an algorithm keeps every promise")
    example = "as in: mypackage.mine:Method k=3"
    check.add_argument("words", nargs="*", metavar="ALGORITHM key=value", help=example)
    check.set_defaults(command=check_command)


def check_command(options: argparse.Namespace) -> int:
    from coterie.checks import applicable_checks
    from coterie.experiment.settings import make_settings, parse_settings, split_words
    from coterie.registry import resolve

    names, pairs = split_words(options.words)
    if len(names) != 1:
        raise SettingError("say which algorithm to check, as in: coterie check ifca k=3")
    kind = resolve("algorithm", names[0])
    algorithm, broken = make_settings(kind, parse_settings(pairs, [kind])), 0
    checks = applicable_checks(algorithm)
    for check in checks:
        promise = (check.__doc__ or check.__name__).partition("\n")[0]
        try:
            check(algorithm)
            print(f"ok      {promise}", flush=True)
        except AssertionError as error:
            broken += 1
            print(f"broken  {promise}\n        {error}", flush=True)
    print(f"{len(checks) - broken} of {len(checks)} promises are kept")
    return FAILED if broken else 0
