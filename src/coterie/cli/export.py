"""`coterie export`: the models of a run for others."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_export(commands: Any) -> None:
    """Add `coterie export` to the command line."""
    about = "write the models of a run for others: weights, programs, a card, a script that scores"
    export = commands.add_parser("export", help=about)
    add = export.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a run")
    add("folder", type=Path, metavar="DIR", help="where to write: a new folder")
    client = "a client whose own model is exported (default: all); may be given several times"
    add("--client", action="append", default=[], metavar="NAME", help=client)
    export.set_defaults(command=export_command)


def export_command(options: argparse.Namespace) -> int:
    from coterie.core.errors import CheckpointError
    from coterie.files import changed_files, read_json
    from coterie.prediction.export import export_run
    from coterie.prediction.load_run import load_run

    run = load_run(options.run)
    if changed_files(options.run, ["result.json"]):
        raise CheckpointError(f"{options.run / 'result.json'} is damaged: it has changed since")
    result = read_json(options.run / "result.json")
    left_out = export_run(run, options.folder, clients=options.client, result=result)
    count = len(list(options.folder.glob("*.safetensors")))
    print(f"{count} model{'s' if count > 1 else ''} in {options.folder}")
    for reason in left_out:
        print(f"left out: {reason}")
    return 0
