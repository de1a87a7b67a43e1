"""`coterie report`: write or watch the page of one run or several."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from coterie.core.errors import CheckpointError, SettingError


def add_report(commands: Any) -> None:
    """Add `coterie report` to the command line."""
    report = commands.add_parser("report", help="write or watch the page of one run or several")
    add = report.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    page = "the page (default: report.html, for one run in its folder, for several here)"
    add("--out", type=Path, metavar="FILE", help=page)
    add("--watch", action="store_true", help="serve the page on this machine while runs go on")
    add("--port", type=int, metavar="N", help="of the served page (default: 8765)")
    report.set_defaults(command=report_command)


def report_command(options: argparse.Namespace) -> int:
    from coterie.report.pages import serve_page, write_whole_page

    for folder in options.runs:
        if not (folder / "config.json").is_file():
            raise SettingError(f"{folder} is not a run folder: it has no config.json")
    if options.watch:
        if options.out is not None:
            raise SettingError("--watch serves the page and writes no file; leave out --out")
        serve_page(options.runs, options.port, lambda address: print(address, flush=True))
        return 0
    if options.port is not None:
        raise SettingError("--port is for --watch")
    home = options.runs[0] if len(options.runs) == 1 else Path()
    path = options.out or home / "report.html"
    damaged = write_whole_page(options.runs, path)
    print(path)
    if damaged:
        raise CheckpointError(f"{path} shows what is whole, without {', '.join(damaged)}: damaged")
    return 0
