"""Tables with nothing set, beside scikit-learn on the same rows.

    python benchmarks/tables.py [SEEDS] [TABLE...]

Each table is dealt to clients, by chance or by a hidden rule (in the order of a random direction of
its features, with noise), and run with `coterie run local` and `coterie run fedavg` on its CSV
file: only `client` and `label` are named. scikit-learn's logistic or ridge regression, as they are
by default on standardised features, has the rows that clients train on, held out ones included:
those of each client for itself beside `local`, those of all beside `fedavg`. Both are tested on the
same rows.

A line is a table, with means over seeds: accuracy and log-loss over all test rows, or R2; and the
largest shortfall of any seed.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss, r2_score

from coterie.data.federation import Federation, Samples
from coterie.experiment.plan import make_plan

CLIENTS = (5, 15)


class Rows(NamedTuple):
    """A table: features, labels and who has which row."""

    name: str
    x: Any  # [n, d]
    y: Any  # [n]
    owner: Any  # [n]

    @property
    def regression(self) -> bool:
        """Whether labels are real numbers."""
        return bool(np.issubdtype(self.y.dtype, np.floating))


def tables(seed: int) -> Iterator[tuple[str, Any, Any]]:
    """Tables that scikit-learn has or makes, each with its name."""
    for load in (datasets.load_diabetes, datasets.load_wine, datasets.load_breast_cancer):
        yield (load.__name__.removeprefix("load_"), *load(return_X_y=True))
    yield ("digits", *datasets.load_digits(return_X_y=True))
    yield (
        "classes",
        *datasets.make_classification(
            1500, 30, n_informative=8, n_redundant=8, class_sep=0.8, flip_y=0.05, random_state=seed
        ),
    )
    x, y = datasets.make_regression(
        1000, 30, n_informative=10, effective_rank=12, noise=2, random_state=seed
    )
    yield "targets", x, y
    yield "targets in thousands", x, 5e4 + 1e3 * y
    yield "targets in millionths", x, 1e-6 * y
    outliers = np.random.default_rng(seed).random(len(y)) < 0.01
    yield "targets with outliers", x, np.where(outliers, 20 * y, y)


def deal(x: Any, clients: int, rule: str, seed: int) -> Any:
    """Who has which row."""
    rng = np.random.default_rng(seed)
    if rule == "chance":
        return rng.integers(0, clients, len(x))
    scaled = (x - x.mean(0)) / (x.std(0) + 1e-12)
    place = scaled @ rng.normal(size=x.shape[1])
    order = np.argsort(place + rng.normal(size=len(x)) * place.std())
    owner = np.empty(len(x), int)
    owner[order] = np.arange(len(x)) * clients // len(x)
    return owner


def run_ours(rows: Rows, algorithm: str, seed: int, folder: Path) -> tuple[Any, Federation]:
    """Outputs for the test rows of all clients, and the federation as it was split."""
    path = folder / "rows.csv"
    columns = {f"x{j}": rows.x[:, j] for j in range(rows.x.shape[1])}
    frame = pd.DataFrame({"client": rows.owner, **columns, "label": rows.y})
    frame.to_csv(path, index=False)
    plan = make_plan([algorithm, str(path), f"seed={seed}", f"split_seed={seed}"])
    whole = plan.build()
    run: Any = plan.run(plan.config())
    run.complete()
    outputs = []
    with torch.no_grad():
        for i in range(len(whole)):
            x, _ = test_part(whole).client(i)
            outputs.append(run.model(i)(run.training.task.inputs(x)).numpy())
    return np.concatenate(outputs), whole


def test_part(federation: Federation) -> Samples:
    """The test part, which all of these tables have."""
    assert federation.test is not None
    return federation.test


def run_theirs(whole: Federation, algorithm: str) -> Any:
    """The same of scikit-learn: probabilities of the classes, or targets."""
    sizes, tested = whole.train.sizes.tolist(), test_part(whole).sizes.tolist()
    x, y = whole.train.x.numpy().astype(float), whole.train.y.numpy()
    mean, deviation = x.mean(0), x.std(0)
    deviation[deviation < 1e-12] = 1
    new = (test_part(whole).x.numpy() - mean) / deviation
    x = (x - mean) / deviation
    if algorithm == "fedavg":
        sizes, tested = [sum(sizes)], [sum(tested)]
    outputs, begin, first = [], 0, 0
    for size, count in zip(sizes, tested, strict=True):
        own = slice(begin, begin + size)
        outputs.append(fit_theirs(x[own], y[own], new[first : first + count], whole.outputs))
        begin, first = begin + size, first + count
    return np.concatenate(outputs)


def fit_theirs(x: Any, y: Any, new: Any, classes: int) -> Any:
    """What scikit-learn learns from some rows and says of new ones."""
    if np.issubdtype(y.dtype, np.floating):
        return Ridge().fit(x, y).predict(new)[:, None]
    found = np.zeros((len(new), classes))
    if len(np.unique(y)) == 1:
        found[:, y[0]] = 1
        return found
    model = LogisticRegression(max_iter=5000).fit(x, y)
    found[:, model.classes_] = model.predict_proba(new)
    return found


def score(outputs: Any, y: Any, *, logits: bool) -> tuple[float, float]:
    """Accuracy and log-loss, or R2 and nothing."""
    if np.issubdtype(y.dtype, np.floating):
        return float(r2_score(y, outputs[:, 0])), 0.0
    if logits:
        shifted = np.exp(outputs - outputs.max(1, keepdims=True))
        outputs = shifted / shifted.sum(1, keepdims=True)
    known = np.clip(outputs.astype(float), 1e-12, 1)
    known /= known.sum(1, keepdims=True)
    labels = np.arange(known.shape[1])
    return float(accuracy_score(y, known.argmax(1))), float(log_loss(y, known, labels=labels))


def measure(name: str, clients: int, rule: str, algorithm: str, seeds: int) -> str:
    """A line: ours and theirs over some seeds."""
    ours, theirs = [], []
    for seed in range(seeds):
        x, y = next((x, y) for other, x, y in tables(seed) if other == name)
        rows = Rows(name, x, y, deal(x, clients, rule, seed))
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs, whole = run_ours(rows, algorithm, seed, Path(folder))
        y = test_part(whole).y.numpy()
        ours.append(score(outputs, y, logits=True))
        theirs.append(score(run_theirs(whole, algorithm), y, logits=False))
    one, other = np.array(ours), np.array(theirs)
    worst = 100 * (other - one)[:, 0].max()
    means = [f"{100 * each[:, 0].mean():.1f}" for each in (one, other)]
    losses = ["" if whole.outputs == 1 else f"{each[:, 1].mean():.3f}" for each in (one, other)]
    cells = [name, str(clients), rule, algorithm, *means, f"{worst:.1f}", *losses]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table of figures as it is measured."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    names = sys.argv[2:] or [name for name, *_ in tables(0)]
    torch.set_num_threads(1)
    heads = ["table", "clients", "dealt by", "method", "coterie", "scikit-learn", "worst seed"]
    heads += ["log-loss", "scikit-learn's"]
    print(f"| {' | '.join(heads)} |")
    print(f"|{' --- |' * len(heads)}", flush=True)
    for name in names:
        for clients, rule in zip(CLIENTS, ("chance", "a rule"), strict=True):
            for algorithm in ("fedavg", "local"):
                print(measure(name, clients, rule, algorithm, seeds), flush=True)


if __name__ == "__main__":
    main()
