"""`coterie predict`: what the models of a run say of new rows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.prediction.predictor import Predictor


def add_predict(commands: Any) -> None:
    """Add `coterie predict` to the command line."""
    predict = commands.add_parser("predict", help="predict new rows with the models of a run")
    add = predict.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a run")
    add("rows", type=Path, metavar="FILE", help="a table like that of the run")
    add_prediction_options(predict)
    predict.set_defaults(command=predict_command)


def add_prediction_options(command: Any) -> None:
    """Options of the commands that predict the rows of a table."""
    add = command.add_argument
    add("--out", type=Path, metavar="FILE", help="where to write (default: CSV on stdout)")
    client = "whose rows these are, where no column says it"
    add("--client", metavar="NAME", help=client)


def predict_command(options: argparse.Namespace) -> int:
    from coterie.prediction.load_run import load_run

    return write_predictions(load_run(options.run), options.rows, options)


def write_predictions(run: Predictor, rows: Path, options: argparse.Namespace) -> int:
    """Write the rows of a table with what is predicted for them, and say how many there are."""
    import sys

    from coterie.prediction.scored_table import predict_table, prediction_counts

    found = predict_table(run, rows, options.out, options.client, sys.stdout)
    where = "" if options.out is None else f", in {options.out}"
    print(f"coterie: {prediction_counts(found)}{where}", file=sys.stderr)
    return 0
