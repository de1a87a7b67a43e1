"""`coterie run`: run an algorithm on a federation and write a report."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.cli.common import new_folder
from coterie.core.errors import CoterieError, SettingError
from coterie.core.names import short_name

if TYPE_CHECKING:
    from coterie.experiment.plan import Plan

FAILED = 1  # exit code of a run whose models are no longer finite


def add_run(commands: Any) -> None:
    """Add `coterie run` to the command line."""
    run = commands.add_parser("run", help="run an algorithm on a federation and write a report")
    add = run.add_argument
    names, example = "ALGORITHM FEDERATION key=value", "as in: ifca rotated-digits k=4"
    add("words", nargs="*", metavar=names, help=example)
    add("--out", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)")
    resume = "continue the run in DIR; rounds=N gives it another number of rounds"
    add("--resume", type=Path, metavar="DIR", help=resume)
    add("--json", action="store_true", help="print one JSON object on stdout, nothing else")
    add("--shards", type=int, metavar="N", help="run the clients in N Ray actors (0: one per core)")
    add("--ray", default="", metavar="ADDRESS", help="of the Ray cluster to use, as in auto")
    track = "write the numbers to mlflow or tensorboard[:DIR] as well"
    add("--track", action="append", default=[], metavar="WHERE", help=track)
    run.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    from coterie.cli.progress_bar import RunProgressBar, outcome_text
    from coterie.engine.kernels.large_products import tune_products
    from coterie.engine.malloc import tune_malloc
    from coterie.experiment.folder import Record
    from coterie.experiment.run import Run
    from coterie.experiment.trackers import make_tracker
    from coterie.files import to_json

    tune_malloc()
    tune_products()
    plan, path, config = find_plan(options)
    run = plan.run(config)
    if plan.says:
        print(f"coterie: {plan.says}", file=sys.stderr)
    if options.shards is not None or options.ray:
        if not isinstance(run, Run):
            raise SettingError("several starts or values run in one process; leave out --shards")
        run.use_ray(options.shards or 0, options.ray)
    algorithm, federation = short_name(plan.algorithm_name), short_name(plan.federation_name)
    if path is None:
        path = new_folder(algorithm, federation)
    folder = run.use(path, resume=options.resume is not None)
    progress = RunProgressBar(f"{algorithm} on {federation}", run.settings.rounds, run.rounds)
    trackers = [make_tracker(word, path, run.rounds) for word in options.track]

    def on_round(record: Record, _: Run) -> None:
        progress.on_round(record)
        for tracker in trackers:
            tracker.round(record)

    for tracker in trackers:
        tracker.begin(config)
    try:
        with progress.bar or nullcontext():
            done = run.complete(on_round, progress.on_reply)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"the checkpoint holds {folder.rounds_saved} rounds",
            f"continue with: coterie run --resume {shlex.quote(str(path))}",
        ) from None
    except OSError as error:
        raise CoterieError(
            f"the run stopped: {error}; `coterie run --resume {path}` continues it"
        ) from error
    for tracker in trackers:
        tracker.end(done.result)
    if "selection" in done.chosen:
        print(f"coterie: {done.chosen['selection']['reason']}", file=sys.stderr)
    print(to_json(done.result) if options.json else outcome_text(done))
    if done.failure:
        print(f"coterie: {done.failure}", file=sys.stderr)
    return FAILED if done.failure else 0


def find_plan(options: argparse.Namespace) -> tuple[Plan, Path | None, dict[str, Any]]:
    """What is to be run, the folder if it is known already, and the configuration."""
    from coterie.experiment.folder import RunFolder
    from coterie.experiment.plan import make_plan, plan_again

    if options.resume is not None:
        if options.out is not None:
            raise SettingError("--resume continues in its own folder; leave out --out")
        config = RunFolder.existing(options.resume).config
        plan = plan_again(config, options.words)
        now = {"settings": plan.values(), "command": plan.command}
        return plan, options.resume, config | now
    if options.out is not None and not options.out.name:
        raise SettingError(f"--out must name a folder, got {str(options.out)!r}")
    spread = options.shards is not None or bool(options.ray)
    plan = make_plan(options.words, alone=spread)
    return plan, options.out, plan.config()
