"""The command line: `coterie run`, `report`, `compare`, `reproduce`, `data`, `deploy` and more."""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from coterie.cli.data import add_data
from coterie.cli.deploy import add_deploy, deploy_init
from coterie.core.errors import CoterieError, CoterieWarning, SettingError

MISTAKE = 2  # exit code for wrong input
INTERRUPTED = 130  # exit code after Ctrl-C


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence, as all others of coterie."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message} (`coterie --help` shows how it is used)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    stop_on_terminate()
    try:
        options, rest = parser().parse_known_args(arguments)
        options.words = [*getattr(options, "words", []), *rest]
        strays = [word for word in rest if word.startswith("-")]
        if strays or (rest and options.command not in (run_command, compare_command, deploy_init)):
            raise SettingError(f"unrecognized arguments: {' '.join(strays or rest)}")
        warnings.showwarning = show_warning
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has had enough; nothing may be written when Python closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("coterie: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (CoterieError, OSError) as error:
        print(f"coterie: {error}", file=sys.stderr)
    return MISTAKE


def stop_on_terminate() -> None:
    """Let SIGTERM end a command as Ctrl-C does: with a checkpoint, and without what it started."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="coterie", description="Clustered federated learning.")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run an algorithm on a federation and write a report")
    run.add_argument(
        "words",
        nargs="*",
        metavar="ALGORITHM FEDERATION key=value",
        help="as in: ifca rotated-digits k=4",
    )
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)"
    )
    run.add_argument(
        "--resume", type=Path, metavar="DIR", help="continue the interrupted run in DIR"
    )
    run.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout, nothing else"
    )
    run.add_argument(
        "--shards", type=int, metavar="N", help="run the clients in N Ray actors (0: one per core)"
    )
    run.add_argument(
        "--ray", default="", metavar="ADDRESS", help="of the Ray cluster to use, as in auto"
    )
    run.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="WHERE",
        help="write the numbers to mlflow or tensorboard[:DIR] as well",
    )
    run.set_defaults(command=run_command)

    report = commands.add_parser("report", help="write or watch the page of one run or several")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    report.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (default: report.html, for one run in its folder, for several here)",
    )
    report.add_argument(
        "--watch", action="store_true", help="serve the page on this machine while runs go on"
    )
    report.add_argument("--port", type=int, metavar="N", help="of the served page (default: 8765)")
    report.set_defaults(command=report_command)

    compare = commands.add_parser("compare", help="run several algorithms side by side")
    compare.add_argument(
        "words",
        nargs="*",
        metavar="ALGORITHMS FEDERATIONS key=value",
        help="as in: ifca,fedavg,local rotated-digits seeds=5 ifca.k=4",
    )
    compare.add_argument(
        "--format", default="markdown", help="of the table: markdown, latex or csv"
    )
    add_sweep_options(compare, "runs/compare-...")
    compare.set_defaults(command=compare_command)

    reproduce = commands.add_parser("reproduce", help="run a table or figure of the papers")
    reproduce.add_argument("name", nargs="?", help="as in fpfc/table1; without it, a list of all")
    reproduce.add_argument("--quick", action="store_true", help="in minutes, with fewer rounds")
    reproduce.add_argument("--full", action="store_true", help="in the setting of the paper")
    reproduce.add_argument("--seeds", type=int, default=0, metavar="N", help="in place of its own")
    reproduce.add_argument("--only", default="", metavar="TEXT", help="lines with this in the name")
    add_sweep_options(reproduce, "runs/reproduce")
    reproduce.set_defaults(command=reproduce_command)

    listing = commands.add_parser("list", help="list algorithms and federations")
    listing.set_defaults(command=list_command)

    describe = commands.add_parser("describe", help="explain an algorithm or a federation")
    describe.add_argument("name")
    describe.set_defaults(command=describe_command)

    add_data(commands)
    add_deploy(commands)
    return top


def add_sweep_options(command: argparse.ArgumentParser, folder: str) -> None:
    """Options of the commands that do many runs."""
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"the folder of the runs (default: {folder}); what is there is not run again",
    )
    command.add_argument(
        "--workers", type=int, default=0, metavar="N", help="runs at a time (default: one per core)"
    )


def run_command(options: argparse.Namespace) -> int:
    from coterie.cli.progress import Progress, summary
    from coterie.experiment import plan as catalogue
    from coterie.experiment.folder import Record, RunFolder
    from coterie.experiment.run import Run
    from coterie.experiment.trackers import tracker
    from coterie.files import to_json

    if options.resume is not None:
        if options.out is not None:
            raise SettingError("--resume continues in its own folder; leave out --out")
        path, config = options.resume, RunFolder.existing(options.resume).config
        plan = catalogue.plan_again(config, options.words)
    else:
        if options.out is not None and not options.out.name:
            raise SettingError(f"--out must name a folder, got {str(options.out)!r}")
        plan = catalogue.make_plan(options.words)
        path, config = options.out, plan.config()
    run = plan.run(config)
    if options.shards is not None or options.ray:
        if not isinstance(run, Run):
            raise SettingError("several starts or values run in one process; leave out --shards")
        run.spread(options.shards or 0, options.ray)
    if path is None:
        path = new_folder(plan.algorithm_name, plan.federation_name)
    run.use(path, resume=options.resume is not None)
    progress = Progress(
        f"{plan.algorithm_name} on {plan.federation_name}", run.settings.rounds, run.rounds
    )
    trackers = [tracker(word, path, run.rounds) for word in options.track]

    def on_round(record: Record) -> None:
        progress.on_round(record)
        for one in trackers:
            one.round(record)

    for one in trackers:
        one.begin(config)
    try:
        with progress:
            done = run.complete(on_round, progress.on_reply)
    except KeyboardInterrupt:
        print(
            f"coterie: interrupted; the checkpoint holds {run.saved} rounds; "
            f"continue with: coterie run --resume {shlex.quote(str(path))}",
            file=sys.stderr,
        )
        return INTERRUPTED
    except OSError as error:
        raise CoterieError(
            f"the run stopped: {error}; `coterie run --resume {path}` continues it"
        ) from error
    for one in trackers:
        one.end(done.result)
    if options.json:
        print(to_json(done.result))
    else:
        print(summary(done))
    return 0


def report_command(options: argparse.Namespace) -> int:
    from coterie.report.pages import watch, write_page

    for folder in options.runs:
        if not (folder / "config.json").is_file():
            raise SettingError(f"{folder} is not a run folder: it has no config.json")
    if options.watch:
        if options.out is not None:
            raise SettingError("--watch serves the page and writes no file; leave out --out")
        watch(options.runs, options.port, lambda address: print(address, flush=True))
        return 0
    if options.port is not None:
        raise SettingError("--port is for --watch")
    home = options.runs[0] if len(options.runs) == 1 else Path()
    print(write_page(options.runs, options.out or home / "report.html"))
    return 0


def compare_command(options: argparse.Namespace) -> int:
    from coterie.cli.progress import SweepProgress
    from coterie.experiment import comparison as compare
    from coterie.experiment.sweeps import sweep
    from coterie.report.pages import write_page

    comparison = compare.Comparison.of(options.words)
    formats = [*compare.FORMATS, "csv"]
    if options.format not in formats:
        raise SettingError(f"--format must be one of {', '.join(formats)}, got {options.format}")
    place = options.out or new_folder("compare", "-".join(comparison.algorithms))
    jobs = comparison.jobs(place)
    try:
        with SweepProgress("compare") as progress:
            results = sweep(jobs, workers=options.workers, tell=progress.on_rounds)
    except KeyboardInterrupt:
        again = shlex.join(["coterie", "compare", *options.words, "--out", str(place)])
        print(f"coterie: interrupted; continue with: {again}", file=sys.stderr)
        return INTERRUPTED
    outcome = compare.Outcome.of(comparison, results)
    written = write_page([job.folder for job in jobs], place / "report.html")
    if options.format == "csv":
        print(outcome.csv())
        return 0
    for federation in comparison.federations:
        print(f"{federation}, {len(comparison.seeds)} seeds, mean ± standard deviation\n")
        print(compare.FORMATS[options.format](*outcome.table(federation)) + "\n")
    print(f"The runs are in {place}, the report is {written}")
    return 0


def reproduce_command(options: argparse.Namespace) -> int:
    from coterie.cli.progress import SweepProgress
    from coterie.experiment import comparison as compare
    from coterie.experiment import recipes
    from coterie.experiment.sweeps import sweep

    if options.name is None:
        print(recipes.listing())
        return 0
    if options.quick and options.full:
        raise SettingError("a recipe is run --quick or --full, not both")
    recipe = recipes.recipe(options.name)
    mode = "full" if options.full else "quick"
    seeds = options.seeds or recipe.seeds[mode]
    if seeds < 1:
        raise SettingError(f"--seeds must be at least 1, got {seeds}")
    place = options.out or Path("runs") / "reproduce"
    print(
        f"{recipe.item} of {recipe.paper}\n{recipe.title}\n"
        f"{mode}: about {recipe.minutes[mode]:g} minutes on two cores for all of it",
        file=sys.stderr,
    )
    jobs = recipe.jobs(mode, seeds, place, options.only)
    try:
        with SweepProgress(recipe.name) as progress:
            results = sweep(jobs, workers=options.workers, tell=progress.on_rounds)
    except KeyboardInterrupt:
        print("coterie: interrupted; the same command continues", file=sys.stderr)
        return INTERRUPTED
    numbers = recipe.numbers(mode, seeds, results, options.only)
    head, rows, orders = recipe.verdicts(numbers)
    print(compare.markdown(head, rows))
    print("\n".join(orders))
    if recipe.notes:
        print("\n" + recipe.notes.strip())
    print(f"\nWritten to {recipe.keep(mode, seeds, numbers)}; the runs are in {place}")
    return 0


def list_command(options: argparse.Namespace) -> int:
    from coterie.cli.describe import list_names

    print(list_names())
    return 0


def describe_command(options: argparse.Namespace) -> int:
    from coterie.cli.describe import describe_name

    print(describe_name(options.name))
    return 0


def new_folder(algorithm: str, federation: str) -> Path:
    """A new folder in runs/, named by time and what is run; no other run can have the same one."""
    stem = f"{datetime.now():%Y-%m-%d-%H%M%S}-{algorithm}-{federation}"
    for count in itertools.count(1):
        path = Path("runs") / (stem if count == 1 else f"{stem}-{count}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            raise CoterieError(
                f"cannot write to the run folder {path}: {error.strerror}"
            ) from error
    raise AssertionError("counting does not end")


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Warnings of coterie as one line; those of libraries are not the user's concern here."""
    if issubclass(category, CoterieWarning):
        print(f"coterie: warning: {message}", file=sys.stderr)
