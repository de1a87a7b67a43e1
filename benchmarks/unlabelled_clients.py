"""Who should serve a client that shows no label: the largest group, or all of them?

A quarter of the clients is held out, and scored by the model of the largest group, by all groups
averaged by their clients, and by the group that five labelled rows choose. docs/prediction.md has
the numbers.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import torch
from sklearn import datasets

import coterie
from coterie.networks import Mlp
from coterie.prediction.modules import load_model
from coterie.tasks.defaults import default_task

SEEDS, SHOWN = range(3), 5


def synthetic_table(seed, groups, common, clients=40, rows=100):
    """Groups of clients whose linear rules share a part, groups being of unequal sizes."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=6)
    rules = [base * common + rng.normal(size=6) * (1 - common) for _ in range(groups)]
    shares, parts = rng.dirichlet(np.ones(groups) * 3), []
    for c in range(clients):
        rule, x = rules[rng.choice(groups, p=shares)], rng.normal(size=(rows, 6))
        y = x @ rule + 0.3 * rng.normal(size=rows) > 0
        frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(6)])
        parts.append(frame.assign(client=f"c{c}", label=np.where(y, "a", "b")))
    return pd.concat(parts, ignore_index=True)


def permuted_table(name, seed, groups, clients=20):
    """A table of scikit-learn whose groups of clients call the classes by other names."""
    data = getattr(datasets, f"load_{name}")()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data.data))
    names = [rng.permutation(data.target.max() + 1) for _ in range(groups)]
    parts = []
    for c in range(clients):
        rows = order[c::clients]
        label = [f"l{v}" for v in names[c % groups][data.target[rows]]]
        frame = pd.DataFrame(data.data[rows]).add_prefix("x")
        parts.append(frame.assign(client=f"c{c}", label=label))
    return pd.concat(parts, ignore_index=True)


TABLES = {
    "synthetic, 3, half in common": (lambda seed: synthetic_table(seed, 3, 0.5), 3),
    "synthetic, 4, most in common": (lambda seed: synthetic_table(seed, 4, 0.7), 4),
    "synthetic, 2, nothing in common": (lambda seed: synthetic_table(seed, 2, 0.0), 2),
    "digits, 2, classes permuted": (lambda seed: permuted_table("digits", seed, 2), 2),
    "breast cancer, 2, classes permuted": (lambda s: permuted_table("breast_cancer", s, 2), 2),
    "synthetic, in truth one group, k=3": (lambda seed: synthetic_table(seed, 1, 1.0), 3),
}


def measure(table, k, seed):
    """Accuracy and log-loss by the largest group, by the average, and by five labelled rows."""
    names = sorted(table.client.unique())
    held = set(np.random.default_rng(seed).permutation(names)[: len(names) // 4])
    new = table[table.client.isin(held)].reset_index(drop=True)
    federation = coterie.Federation.from_table(table[~table.client.isin(held)])
    task = default_task(federation, Mlp(hidden=16))
    algorithm = coterie.IFCA(k=k, lr=0.1, epochs=5)
    run = coterie.simulate(algorithm, federation, task, rounds=10, seed=seed).predictor
    y = np.array([run.classes.index(name) for name in new.label])
    largest = load_model(task, run.kept.models[int(run.kept.members.argmax())])
    with torch.no_grad():
        by_largest = torch.softmax(largest(federation.schema.encode(new)), 1).numpy()
    place = new.groupby("client").cumcount()
    few = new.assign(label=new.label.where(place < SHOWN))
    hidden = (place >= SHOWN).to_numpy()
    every = np.ones(len(new), bool)
    return [
        *scores(by_largest, y, every),
        *scores(run.predict_proba(new.drop(columns=["label", "client"])), y, every),
        *scores(run.predict_proba(few), y, hidden),
    ]


def scores(probabilities, y, rows):
    """Accuracy and log-loss on some rows."""
    of_label = np.clip(probabilities[np.arange(len(y)), y], 1e-9, 1)
    hits = probabilities.argmax(1) == y
    return hits[rows].mean(), -np.log(of_label[rows]).mean()


def main():
    warnings.simplefilter("ignore")
    print("| table, groups | largest group | average | five labelled rows |")
    print("| --- | --- | --- | --- |")
    for name, (make, k) in TABLES.items():
        found = np.mean([measure(make(seed), k, seed) for seed in SEEDS], 0)
        cells = [f"{a:.1%}, {b:.3f}".replace("%", " %") for a, b in found.reshape(3, 2)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
