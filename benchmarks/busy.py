"""How long the same rounds take alone and beside other processes that compute.

    python benchmarks/busy.py [--quick] [--turns N] [--work small|large]

Every figure is that of a process of its own, which makes its data, runs a few rounds to warm up and
then times the others. Contenders take turns, so that nobody has the quiet minutes to himself; the
plain loop, which may take minutes where the machine is busy, is measured in the first turn only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from coterie.report.text_tables import markdown_table

HERE = Path(__file__).parent


class Work(NamedTuple):
    """So many rounds of FedAvg, ten full-batch steps, with an MLP of one hidden layer."""

    features: int
    samples: int
    hidden: int
    clients: int
    rounds: int


WORKS = {"small": Work(16, 20, 16, 400, 600), "large": Work(784, 50, 200, 400, 12)}
CLASSES, WARM = 10, 2
CONTENDERS = {
    "coterie": "0",  # as many threads as help
    "coterie, one thread": "1",
    "coterie, a thread for each core": "all",
    "plain PyTorch loop": "loop",
}
SITUATIONS = ("alone", "beside a process that computes", "two of them side by side")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    parser.add_argument("--turns", type=int, default=3, help="processes for every figure")
    parser.add_argument("--work", choices=list(WORKS), help="one of them only")
    parser.add_argument("--child", nargs=2, metavar=("WORK", "THREADS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(seconds_of_rounds(*options.child, quick=options.quick)))
        return
    print(table(options))


def table(options: argparse.Namespace) -> str:
    """Seconds per round of every contender in every situation."""
    rows = []
    for work in [options.work] if options.work else WORKS:
        found: dict[tuple[str, str], list[float]] = {}
        for turn in range(options.turns):
            for situation in SITUATIONS:
                for name in list(CONTENDERS)[: 3 if turn else 4]:
                    print(f"{work}, {name}, {situation}, turn {turn + 1}", file=sys.stderr)
                    times = found.setdefault((name, situation), [])
                    times.append(measure(work, name, situation, options.quick))
        for (name, situation), times in found.items():
            each = ", ".join(f"{1000 * value:.1f}" for value in times)
            print(f"{work}, {name}, {situation}: {each} ms", file=sys.stderr)
        seconds = {key: statistics.median(times) for key, times in found.items()}
        alone = seconds["coterie, one thread", "alone"]
        for name in CONTENDERS:
            row = [seconds[name, situation] for situation in SITUATIONS]
            texts = (f"{1000 * value:.1f} ({value / alone:.2f})" for value in row)
            rows.append([work, name, *texts])
    return markdown_table(["work", "contender", *SITUATIONS], rows)


def measure(work: str, name: str, situation: str, quick: bool) -> float:
    """Seconds per round; of two processes side by side, those of the slower one."""
    words = [sys.executable, __file__, "--child", work, CONTENDERS[name]]
    words += ["--quick"] if quick else []
    unset = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    other = None
    if situation.startswith("beside"):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        count = 2 if situation.startswith("two") else 1
        children = [
            subprocess.Popen(words, stdout=subprocess.PIPE, env=unset, text=True)
            for _ in range(count)
        ]
        return max(float(child.communicate()[0]) for child in children)
    finally:
        if other is not None:
            other.kill()
            other.wait()


def seconds_of_rounds(name: str, threads: str, *, quick: bool) -> float:
    """The mean seconds of a round after those that warm up."""
    import torch

    import coterie

    work = WORKS[name]
    rounds = 3 if quick else work.rounds
    generator = torch.Generator().manual_seed(0)
    shape = (work.clients, work.samples)
    x = torch.rand(*shape, work.features, generator=generator)
    y = torch.randint(CLASSES, shape, generator=generator)
    if threads == "loop":
        return seconds_of_loop(work, x, y)
    federation = coterie.Federation.from_clients(list(zip(x, y, strict=True)))
    task = coterie.Classification(lambda: mlp(work))
    times: list[float] = []
    coterie.simulate(
        coterie.FedAvg(),
        federation,
        task,
        rounds=WARM + rounds,
        evaluate=WARM + rounds,
        threads=torch.get_num_threads() if threads == "all" else int(threads),
        on_round=lambda *_: times.append(time.perf_counter()),
    )
    return (times[-2] - times[WARM - 1]) / (len(times) - 1 - WARM)


def seconds_of_loop(work: Work, x: object, y: object) -> float:
    """The same rounds by the plain loop, with PyTorch's own number of threads."""
    from plain_loop import Counter, ifca_round

    clients = list(zip(x, y, strict=True))  # type: ignore[call-overload]
    network, local, times = mlp(work), mlp(work), []
    for _ in range(2):  # it takes long where the machine is busy
        states = ifca_round([network], clients, local, lr=0.1, steps=10, counter=Counter())
        network.load_state_dict(states[0])
        times.append(time.perf_counter())
    return times[1] - times[0]


def mlp(work: Work):  # type: ignore[no-untyped-def]
    """The network of a work."""
    from coterie.networks import mlp as build

    return build(work.features, work.hidden, CLASSES)


if __name__ == "__main__":
    main()
