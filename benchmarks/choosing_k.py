"""How often `k=auto` finds the true number of groups, on tables made for it.

Thirty clients of 200 rows each, six features, one answer in ten replaced by a random one, in 1, 2
or 4 groups that differ in one way: two classes are `flipped`, four classes are `permuted` in turn
or `swapped` in pairs, or the features are `rotated` at random. `coterie run ifca` gets the table
with nothing set.

    python benchmarks/choosing_k.py --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieWarning
from coterie.experiment.plan import make_plan

CLIENTS, ROWS, FEATURES, NOISE = 30, 200, 6, 0.1
CASES = [
    ("flipped", 1),
    ("permuted", 1),
    ("flipped", 2),
    ("permuted", 2),
    ("rotated", 2),
    ("swapped", 4),
    ("permuted", 4),
    ("rotated", 4),
]


def write_table(path: Path, kind: str, groups: int, seed: int) -> None:
    """A table of clients in so many groups of one kind."""
    rng = np.random.default_rng(1000 + seed)
    classes = 4 if kind in ("permuted", "swapped") else 2
    weights = rng.normal(size=(FEATURES, classes))
    lines = [",".join([*(f"f{j}" for j in range(FEATURES)), "label", "client"])]
    turns = [np.linalg.qr(rng.normal(size=(FEATURES, FEATURES)))[0] for _ in range(4)]
    for client in range(CLIENTS):
        group = client % groups
        x = rng.normal(size=(ROWS, FEATURES))
        y = (x @ weights).argmax(1)
        if kind == "rotated":
            x = x @ turns[group]
        else:
            y = labels_of_group(kind, y, group)
        y = np.where(rng.random(ROWS) < NOISE, rng.integers(0, y.max() + 1, ROWS), y)
        rows = zip(x, y, strict=True)
        lines += [",".join([*(f"{v:.4f}" for v in r), f"c{c}", f"s{client}"]) for r, c in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def labels_of_group(kind: str, y: NDArray[np.int64], group: int) -> NDArray[np.int64]:
    """The labels as a group has them; those of group 0 are as they are."""
    if kind == "permuted":
        return (y + group) % 4
    if kind == "flipped":
        return y ^ group
    first, second = y < 2, y >= 2  # pairs of classes
    return np.where(first & bool(group & 1), 1 - y, np.where(second & bool(group & 2), 5 - y, y))


def chosen_k(path: Path, seed: int) -> tuple[int, float, float]:
    """The k that is chosen, its validation loss less that of k = 1, and the error of that."""
    plan = make_plan(["ifca", str(path), "client=client", f"seed={seed}"])
    selection = plan.run(plan.config()).complete().result["selection"]
    losses = dict(zip(selection["values"], selection["validation_loss"], strict=True))
    errors = dict(zip(selection["values"], selection["standard_error"], strict=True))
    return selection["taken"], losses[selection["taken"]] - losses[1], errors[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 11)))
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore", CoterieWarning)
    print("| groups differ by | true groups | found | k that was chosen, by seed |")
    print("| --- | --- | --- | --- |")
    worse = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind, groups in CASES:
            found = []
            for seed in seeds:
                path = Path(folder) / f"{kind}-{groups}-{seed}.csv"
                write_table(path, kind, groups, seed)
                k, more, error = chosen_k(path, seed)
                worse += more > error
                found.append(k)
            told = f"- ({4 if kind == 'permuted' else 2} classes)" if groups == 1 else kind
            right = f"{found.count(groups)} of {len(seeds)}"
            print(f"| {told} | {groups} | {right} | {' '.join(map(str, found))} |", flush=True)
    print(f"\nworse in validation loss than k = 1 by more than the standard error: {worse} runs")


if __name__ == "__main__":
    main()
