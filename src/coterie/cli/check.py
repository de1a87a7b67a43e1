"""`coterie check`: the conformance suite on an algorithm by its name."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coterie.core.errors import SettingError

BROKEN = 1  # exit code where a promise is broken


def add_check(commands: Any) -> None:
    """Add `coterie check` to the command line."""
    check = commands.add_parser("check", help="try whether an algorithm keeps every promise")
    names, example = "ALGORITHM FEDERATION key=value", "as in: mypackage.mine:Method k=3"
    check.add_argument("words", nargs="*", metavar=names, help=example)
    check.set_defaults(command=check_command)


def check_command(options: argparse.Namespace) -> int:
    """Check an algorithm on the suite's own data, and on a federation if one is named."""
    from coterie.checks import check_algorithm
    from coterie.experiment.plan import build_federation, make_plan
    from coterie.experiment.settings import make_settings, parse_settings, split_words
    from coterie.registry import resolve
    from coterie.tasks.defaults import default_task

    names, pairs = split_words(options.words)
    if not names:
        raise SettingError("say which algorithm to check, as in: coterie check ifca k=3")
    found: list[str] = []

    def tell(promise: str, broken: str) -> None:
        found.append(broken)
        print(
            f"broken  {promise}\n        {broken}" if broken else f"ok      {promise}", flush=True
        )

    with each_warning_once():
        if len(names) == 1:
            kind = resolve("algorithm", names[0])
            check_algorithm(make_settings(kind, parse_settings(pairs, [kind])), tell=tell)
        else:
            plan = make_plan(options.words)
            data = build_federation(plan.federation_name, plan.federation, plan.settings.data_seed)
            check_algorithm(plan.algorithm, default_task(data, plan.network), data, tell=tell)
    print(f"{found.count('')} of {len(found)} promises are kept")
    return BROKEN if any(found) else 0


@contextmanager
def each_warning_once() -> Iterator[None]:
    """Show each warning once, however many of the small runs inside give it."""
    said: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_once(message: Warning | str, *rest: Any, **more: Any) -> None:
            if str(message) not in said:
                said.add(str(message))
                show(message, *rest, **more)

        warnings.showwarning = show_once
        yield
