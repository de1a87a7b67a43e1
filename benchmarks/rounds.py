"""`make bench`: every contender in one go on the same data, and a table of ratios.

    python benchmarks/rounds.py [--quick] [--threads N] [--only PART] [--write] [--against CHECKOUT]

Contenders of other libraries run in environments of their own (`benchmarks/.venv/NAME`), one after
another and alone, on as many cores as there are threads. `--write` puts the tables into
`benchmarks/README.md`. `--against` names another checkout of coterie, in which `make` has made the
environment: peers and the plain loop are then measured with both, in turns.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import against_loop
import alone
import numpy as np
import scaling
import speed

import coterie
from coterie.core.errors import CoterieError
from coterie.report.text_tables import markdown_table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "contenders"))
import work  # noqa: E402

SHAPE = (784, 200, 10)
BEGIN, END = "<!-- measured: written by make bench -->", "<!-- end -->"


class Contender(NamedTuple):
    """Who takes part: its name, its script, and the environment that it runs in."""

    name: str
    script: str
    environment: str = ""  # empty: that of coterie
    checkout: Path | None = None  # of coterie, if it is not this one


CONTENDERS = [
    Contender("plain PyTorch loop", "plain"),
    Contender("coterie", "ours"),
    Contender("pfl", "pfl_research", "pfl"),
    Contender("fedjax", "fed_jax", "fedjax"),
    Contender("Flower simulation", "flower", "flower"),
]
OTHER = Contender("coterie, the other checkout", "ours")


class Outcome(NamedTuple):
    """What a contender handed in."""

    weights: np.ndarray  # [d] at the end
    seconds: np.ndarray  # [rounds] of each round
    steps: int  # gradient steps that were made


def peers(options: argparse.Namespace) -> str:
    """FedAvg by every contender: the table of seconds, ratios, differences and steps."""
    clients, samples = (20, 50) if options.quick else (100, 200)
    rounds, turns = (3, 1) if options.quick else (options.repeats + 1, options.turns)
    given = work.drawn(clients, samples, SHAPE, rounds=rounds, threads=options.threads)
    contenders = CONTENDERS + [OTHER._replace(checkout=options.against)] * bool(options.against)
    found: dict[str, list[Outcome | str]] = {contender.name: [] for contender in contenders}
    with tempfile.TemporaryDirectory() as folder:
        task = os.path.join(folder, "work.npz")
        work.store(task, given)
        print("reference in double precision ...", file=sys.stderr, flush=True)
        reference = handed_in(CONTENDERS[0], task, options, "double")
        assert isinstance(reference, Outcome), reference
        # In turns, so that nobody has the minutes to himself in which the machine is quiet.
        for turn in range(turns):
            for contender in contenders:
                print(f"{contender.name}, turn {turn + 1} ...", file=sys.stderr, flush=True)
                found[contender.name].append(handed_in(contender, task, options))
    title = (
        f"FedAvg, {clients} clients x {samples} samples, MLP {'-'.join(map(str, SHAPE))}, "
        f"{given.steps} full-batch steps, median of {turns} x {rounds - 1} warm rounds"
    )
    head = ["contender", "s per round", "first round, s", "speed against the loop"]
    head += ["times coterie's", "difference", "gradient steps"]
    rows = lines(found, reference.weights, clients * given.steps * rounds)
    return f"{title}:\n\n{markdown_table(head, rows)}"


def lines(
    found: dict[str, list[Outcome | str]], exact: np.ndarray, expected: int
) -> list[list[str]]:
    """The lines of the table; who failed in one turn has no numbers, but a reason."""
    ran = {
        name: [outcome for outcome in outcomes if isinstance(outcome, Outcome)]
        for name, outcomes in found.items()
    }
    warm = {
        name: float(np.median([outcome.seconds[1:] for outcome in outcomes]))
        for name, outcomes in ran.items()
        if len(outcomes) == len(found[name])
    }
    loop, ours = warm.get("plain PyTorch loop"), warm.get("coterie")
    rows = []
    for name, outcomes in ran.items():
        if name not in warm:
            why = next(outcome for outcome in found[name] if isinstance(outcome, str))
            rows.append([name, f"did not run: {why}", "", "", "", "", ""])
            continue
        apart = max(np.abs(outcome.weights - exact).max() for outcome in outcomes)
        apart /= np.abs(exact).max()
        steps = {outcome.steps for outcome in outcomes}
        rows.append(
            [
                name,
                f"{warm[name]:.2f}",
                f"{np.median([outcome.seconds[0] for outcome in outcomes]):.2f}",
                "" if loop is None else f"{loop / warm[name]:.2f}",
                "" if ours is None else f"{warm[name] / ours:.1f}",
                f"{apart:.0e}{'' if apart < 1e-3 else ' (differs)'}",
                f"{expected}" if steps == {expected} else f"{min(steps)} of {expected}",
            ]
        )
    return rows


def handed_in(
    contender: Contender, task: str, options: argparse.Namespace, *words: str
) -> Outcome | str:
    """What a contender handed in, or why there is nothing."""
    python, here = sys.executable, HERE
    if contender.checkout:
        python, here = alone.other_python(contender.checkout), contender.checkout / "benchmarks"
    elif contender.environment:
        python = str(HERE / ".venv" / contender.environment / "bin" / "python")
        if not os.path.exists(python):
            return "not installed"
    with tempfile.TemporaryDirectory() as folder:
        answer = os.path.join(folder, "answer.npz")
        try:
            done = subprocess.run(
                [python, str(here / "contenders" / f"{contender.script}.py"), task, answer, *words],
                env=environment(options.threads),
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=options.timeout,
            )
        except subprocess.TimeoutExpired:
            return f"took more than {options.timeout} s"
        if not os.path.exists(answer):
            complaints = [line for line in done.stderr.splitlines() if line.strip()]
            return (complaints or ["no word"])[-1].strip()[:80]
        with np.load(answer) as file:
            return Outcome(file["weights"], file["seconds"], int(file["steps"]))


def environment(threads: int) -> dict[str, str]:
    """The same number of threads for every library."""
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
    return {**os.environ, **dict.fromkeys(names, str(threads))}


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "peers": peers,
    "loop": against_loop.table,
    "scaling": scaling.table,
    "speed": speed.table,
}


def count(text: str) -> int:
    """A whole number of at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=count, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=count, default=5, help="warm rounds of each contender")
    parser.add_argument("--turns", type=count, default=3, help="times that each peer is started")
    parser.add_argument("--timeout", type=count, default=300, help="seconds a contender may take")
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    parser.add_argument("--only", choices=PARTS, action="append", help="some of the tables")
    parser.add_argument("--against", type=Path, help="another checkout of coterie, with its .venv")
    parser.add_argument("--write", action="store_true", help="put the tables into README.md")
    options = parser.parse_args()
    # Libraries that choose their own number of threads count the cores they may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    options.environment = environment(options.threads)
    if options.against:
        options.against = options.against.resolve()
        if not Path(alone.other_python(options.against)).exists():
            parser.error(f"there is no environment in {options.against}: `make demo` makes it")
    parts = options.only or list(PARTS)
    if "loop" in parts:
        try:  # before all else, not in the middle of it
            coterie.load("rotated-mnist", clients=4)
        except CoterieError as error:
            parser.error(str(error))
    tables = [PARTS[name](options) for name in parts]
    cores = len(os.sched_getaffinity(0))
    machine = f"{platform.machine()}, {cores} cores, {options.threads} threads for every contender."
    text = "\n\n".join([machine, *tables])
    print(text)
    if options.write:
        page = HERE / "README.md"
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
