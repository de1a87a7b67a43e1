"""Progress of runs on the terminal (stderr), and the outcome as text."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from coterie.core.names import short_name
from coterie.evaluation.metrics import metric_label
from coterie.report.headline import metric_text

if TYPE_CHECKING:
    from coterie.experiment.run import Run
    from coterie.experiment.sweeps import Tell

SHOWN_CLUSTERS = 8  # more sizes than this do not fit a line
MEASURES = ("auc", "balanced_accuracy", "log_loss", "r2", "rmse", "mae")  # beside the accuracy
QUIET_SECONDS = 10.0  # between two lines where there is no terminal


class RunProgressBar:
    """A line with rounds, accuracy, cluster sizes and time left.

    On a terminal the line moves; elsewhere a new one is printed every ten seconds.
    """

    def __init__(self, title: str, rounds: int, done: int) -> None:
        self.title = title
        self.rounds = rounds
        self.first = done
        self.round = 0  # the current round; 0: the start
        self.finished_round = False  # whether a round is done
        self.began = self.printed = time.monotonic()
        self.console = Console(stderr=True)
        self.bar: Bar | None = None
        if self.console.is_terminal:
            self.bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[news]}"),
                console=self.console,
                transient=True,
            )
            self.row = self.bar.add_task(title, total=rounds, completed=done, news="starting")

    def on_reply(self, round: int, replies: int) -> None:
        """Show that clients reply, until a round is done: a start may take as long as many."""
        if round and not self.round:
            self.began = time.monotonic()  # the time left is that of rounds
        self.round = round
        if not self.finished_round:
            self._show(f"{f'round {round}/{self.rounds}' if round else 'start'}  {replies} replies")

    def on_round(self, record: dict[str, Any]) -> None:
        """Show a round that is done."""
        self.finished_round = True
        self._show(self._status_text(record), record["round"])

    def _show(self, news: str, done: int | None = None) -> None:
        """Show news, and how many rounds are done where that has changed."""
        if self.bar is not None:
            self.bar.update(self.row, completed=done, news=news)
        elif done == self.rounds or time.monotonic() - self.printed >= QUIET_SECONDS:
            self.printed = time.monotonic()
            print(f"{self.title}: {news}", file=sys.stderr, flush=True)

    def _status_text(self, record: dict[str, Any]) -> str:
        done = record["round"]
        parts = [f"round {done}/{self.rounds}"]
        numbers = record["metrics"]
        for name in ("accuracy", "train_accuracy"):
            if name in numbers:
                parts.append(f"{metric_label(name)} {numbers[name]:.1%}")
        if "r2" in numbers:
            parts.append(f"R2 {numbers['r2']:.3f}")
        elif not any("accuracy" in name for name in numbers) and "loss" in numbers:
            parts.append(f"loss {numbers['loss']:.4g}")
        if record.get("best_round"):
            parts.append(f"best round {record['best_round']}")
        what = " samples" if record.get("counted") == "samples" else ""
        if any(record["sizes"]):  # else nobody was asked in this round
            parts.append(f"clusters {sizes_text(record['sizes'])}{what}")
        elapsed = time.monotonic() - self.began
        left = elapsed / (done - self.first) * (self.rounds - done)
        parts.append(f"{left // 60:.0f}:{left % 60:02.0f} left")
        return "  ".join(parts)


@contextmanager
def sweep_progress(title: str) -> Iterator[Tell]:
    """A line about many runs: rounds of all of them, runs that are done, time left.

    The function that comes with the context is told how far the runs are.
    """
    began = printed = time.monotonic()
    first: int | None = None  # rounds that were there when it began
    console = Console(stderr=True)
    status = console.status(title) if console.is_terminal else None

    def tell(done: int, rounds: int, finished: int, runs: int) -> None:
        nonlocal first, printed
        first = done if first is None else first
        news = f"{title}: {finished} of {runs} runs done, {done} of {rounds} rounds"
        if done > first:
            left = (time.monotonic() - began) / (done - first) * (rounds - done)
            news += f", {left // 60:.0f}:{left % 60:02.0f} left"
        if status is not None:
            status.update(news)
        elif finished == runs or time.monotonic() - printed >= QUIET_SECONDS:
            printed = time.monotonic()
            print(news, file=sys.stderr, flush=True)

    with status or nullcontext():
        yield tell


def sizes_text(sizes: list[int]) -> str:
    """How many clusters somebody is in, and their sizes: the largest ones if there are many.

    >>> sizes_text([20, 0, 40])
    '2: 20 0 40'
    >>> sizes_text([1] * 80)
    '80: 1 1 1 1 1 1 1 1 ...'
    """
    filled = sorted((size for size in sizes if size), reverse=True)
    if len(sizes) <= SHOWN_CLUSTERS:
        return f"{len(filled)}: {' '.join(map(str, sizes))}"
    more = " ..." if len(filled) > SHOWN_CLUSTERS else ""
    return f"{len(filled)}: {' '.join(map(str, filled[:SHOWN_CLUSTERS]))}{more}"


def bytes_text(count: float) -> str:
    """Bytes in the largest unit that fits.

    >>> bytes_text(558 * 2**20)
    '558.0 MiB'
    """
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def tuned_text(run: Run, numbers: Mapping[str, float], prefix: str) -> str:
    """How many clients use the model that they fine-tuned, and the accuracy before."""
    personal = run.personal
    assert personal is not None
    count = len(personal.serving.ids)
    text = f"{round(numbers['tuned'] * count)} of {count} clients use the model they fine-tuned"
    before = numbers.get(f"untuned_{prefix}accuracy")
    return text if before is None else f"{text}; {before:.2%} of samples before"


def kept_text(run: Run) -> str:
    """Which round is kept, and why training ended before it was to."""
    best = run.training.stopping.best
    assert best is not None
    text = f"round {best.round}, the best by validation loss ({best.loss:.4g})"
    waited = run.settings.early_stopping
    return f"{text}; {waited} evaluations brought no lower one" if run.ending == "early" else text


def threat_lines(run: Run, numbers: Mapping[str, float], prefix: str) -> list[str]:
    """Who attacks and how well they are served, and how many a screen left out in the end."""
    lines, attackers = [], run.training.participants.attackers
    count = len(run.federation)
    if attackers is not None:
        line = f"  attackers {int(attackers.sum())} of {count} clients"
        theirs = numbers.get(f"attackers_{prefix}accuracy")
        lines.append(line if theirs is None else f"{line}; {theirs:.2%} of their samples")
    if "excluded" in numbers:
        line = f"  excluded  {numbers['excluded']:.1%} of the clients of the last round"
        if "detection_recall" in numbers:
            line += f"; precision {numbers['detection_precision']:.2f}"
            line += f", recall {numbers['detection_recall']:.2f}"
        lines.append(line)
    return lines


def measure_lines(result: Mapping[str, Any], prefix: str) -> list[str]:
    """What the predictions are worth by other measures, each beside the best constant."""
    numbers, constant = result["metrics"], result.get("baseline") or {}
    lines = []
    for name in (f"{prefix}{measure}" for measure in MEASURES):
        if name in numbers:
            beside = f" ({metric_text(name, constant[name])} by a constant)"
            text = f"{metric_text(name, numbers[name])}{beside if name in constant else ''}"
            lines.append(f"  {metric_label(name):<9} {text}")
    return lines


def outcome_text(run: Run) -> str:
    """The outcome of a run in a few lines."""
    result, numbers = run.result, run.metrics
    names = f"{short_name(result['algorithm'])} on {short_name(result['federation'])}"
    lines = [
        f"{names}: {result['rounds']} rounds, seed {result['seed']}, {result['seconds']:.1f} s"
    ]
    if run.best_round is not None:
        lines.append(f"  kept      {kept_text(run)}")
    prefix = "" if "loss" in numbers else "train_"
    kind = "training " if prefix else ""
    if f"{prefix}accuracy_macro" in numbers:
        pooled, mean = numbers[f"{prefix}accuracy"], numbers[f"{prefix}accuracy_macro"]
        constant = (result.get("baseline") or {}).get(f"{prefix}accuracy")
        beside = "" if constant is None else f" ({constant:.2%} by a constant)"
        text = f"{pooled:.2%} of samples, {mean:.2%} as mean of clients"
        lines.append(f"  {kind}accuracy  {text}{beside}")
    if "tuned" in numbers:
        lines.append(f"  tuned     {tuned_text(run, numbers, prefix)}")
    lines += measure_lines(result, prefix)
    if f"{prefix}loss" in numbers:
        lines.append(f"  {kind}loss      {numbers[f'{prefix}loss']:.4g}")
    count = len(run.federation)
    if run.evaluation.scored < count and not run.federation.unseen:
        lines.append(f"  scored    {run.evaluation.scored} of {count} clients")
    lines += threat_lines(run, numbers, prefix)
    if "distance" in numbers:
        lines.append(
            f"  distance  {numbers['distance']:.4g} one to one, "
            f"{numbers['distance_nearest']:.4g} to the nearest truth"
        )
    clustered = run.clusters if run.labels is None else run.labels
    sizes = clustered[clustered >= 0].bincount().tolist()
    if run.evaluation.groups is not None:  # who is where is withheld
        sizes = run.evaluation.groups.sizes.tolist()
    what = "" if run.labels is None else " samples"
    found = f"  clusters  {sizes_text(sizes)}{what}"
    if "ari" in numbers:
        scores = f"ARI {numbers['ari']:.2f}, NMI {numbers['nmi']:.2f}"
        found += f" ({scores}, purity {numbers['purity']:.2f})"
    lines.append(found)
    down, up = bytes_text(result["bytes_down"]), bytes_text(result["bytes_up"])
    lines.append(f"  network   {down} down, {up} up")
    if run.folder is not None:
        lines.append(f"  report    {run.folder.path / 'report.html'}")
    return "\n".join(lines)
