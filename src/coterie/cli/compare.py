"""`coterie compare`: run several algorithms side by side."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from coterie.cli.common import add_sweep_options, new_folder, run_sweep
from coterie.core.errors import CoterieError, SettingError
from coterie.core.names import short_name


def add_compare(commands: Any) -> None:
    """Add `coterie compare` to the command line."""
    compare = commands.add_parser("compare", help="run several algorithms side by side")
    add, names = compare.add_argument, "ALGORITHMS FEDERATIONS key=value"
    example = "as in: ifca,fedavg,local rotated-digits seeds=5 ifca.k=4"
    add("words", nargs="*", metavar=names, help=example)
    add("--format", default="markdown", help="of the table: markdown, latex or csv")
    add_sweep_options(compare, "runs/compare-...")
    compare.set_defaults(command=compare_command)


def compare_command(options: argparse.Namespace) -> int:
    from coterie.experiment.comparison import Comparison, results_of_jobs
    from coterie.report.pages import write_page
    from coterie.report.text_tables import TABLE_FORMATS

    comparison = Comparison.parse(options.words)
    formats = [*TABLE_FORMATS, "csv"]
    if options.format not in formats:
        raise SettingError(f"--format must be one of {', '.join(formats)}, got {options.format}")
    place = options.out or new_folder("compare", "-".join(map(short_name, comparison.algorithms)))
    jobs = comparison.jobs(place)
    again = shlex.join(["coterie", "compare", *options.words, "--out", str(place)])
    results, failure = run_sweep("compare", jobs, options.workers, f"continue with: {again}")
    outcome = results_of_jobs(comparison, results)
    done = [job.folder for job, result in zip(jobs, results, strict=True) if result]
    written = write_page(done, place / "report.html")
    if options.format == "csv":
        print(outcome.csv())
    else:
        for federation in comparison.federations:
            table, caption = outcome.table(federation), outcome.caption(federation)
            print(f"{federation}\n\n{TABLE_FORMATS[options.format](*table, caption)}\n")
        print(f"The runs are in {place}, the report is {written}")
    if failure:
        raise CoterieError(failure)
    return 0
