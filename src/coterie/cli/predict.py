"""`coterie predict`: what the models of a run say of new rows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_predict(commands: Any) -> None:
    """Add `coterie predict` to the command line."""
    predict = commands.add_parser("predict", help="predict new rows with the models of a run")
    add = predict.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a run")
    add("rows", type=Path, metavar="FILE", help="a table like that of the run")
    add("--out", type=Path, metavar="FILE", help="where to write (default: CSV on stdout)")
    client = "whose rows these are, where no column says it"
    add("--client", metavar="NAME", help=client)
    predict.set_defaults(command=predict_command)


def predict_command(options: argparse.Namespace) -> int:
    import sys

    from coterie.prediction.load_run import load_run
    from coterie.prediction.scored_table import predict_table, prediction_counts

    run = load_run(options.run)
    found = predict_table(run, options.rows, options.out, options.client, sys.stdout)
    where = "" if options.out is None else f", in {options.out}"
    print(f"coterie: {prediction_counts(found)}{where}", file=sys.stderr)
    return 0
