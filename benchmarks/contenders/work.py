"""What every contender is given and what it has to hand in; needs numpy only.

The work is FedAvg with full-batch gradient descent on each client: equal sizes, equal weights, a
multilayer perceptron with one hidden layer of ReLU, mean cross-entropy.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np


class Work(NamedTuple):
    """The same data, start and settings for everybody."""

    x: np.ndarray  # [m, n, f] features
    y: np.ndarray  # [m, n] labels
    w1: np.ndarray  # [h, f] weights at the start, in the order of torch.nn.Linear
    b1: np.ndarray  # [h]
    w2: np.ndarray  # [c, h]
    b2: np.ndarray  # [c]
    lr: float
    steps: int  # of each client in a round
    rounds: int
    threads: int

    @property
    def start(self) -> list[np.ndarray]:
        return [self.w1, self.b1, self.w2, self.b2]


def drawn(
    clients: int, samples: int, shape: tuple[int, int, int], *, rounds: int, threads: int
) -> Work:
    """Work with random data: as sparse as digits, and half of the labels of a client are alike."""
    features, hidden, classes = shape
    rng = np.random.default_rng(0)
    y = rng.integers(classes, size=(clients, samples))
    home = np.arange(clients)[:, None] % classes
    y = np.where(rng.random((clients, samples)) < 0.5, home, y)

    def layer(inputs: int, *size: int) -> np.ndarray:
        bound = inputs**-0.5
        return rng.uniform(-bound, bound, size).astype("float32")

    x = rng.random((clients, samples, features), dtype="float32")
    x[rng.random(x.shape, dtype="float32") > 0.2] = 0
    return Work(
        x,
        y,
        layer(features, hidden, features),
        layer(features, hidden),
        layer(hidden, classes, hidden),
        layer(hidden, classes),
        lr=0.1,
        steps=10,
        rounds=rounds,
        threads=threads,
    )


def store(path: str, work: Work) -> None:
    np.savez(path, **work._asdict())


def load(path: str | None = None) -> Work:
    """The work whose file is the first argument of the command."""
    with np.load(path or sys.argv[1]) as file:
        values = {name: file[name] for name in Work._fields}
    return Work(**{n: value if value.ndim else value.item() for n, value in values.items()})


def hand_in(weights: list[np.ndarray], seconds: list[float], steps: int) -> None:
    """Write the final weights, the seconds of each round and the gradient steps made to the file
    that is the second argument of the command."""
    flat = np.concatenate([np.asarray(weight).ravel() for weight in weights])
    np.savez(sys.argv[2], weights=flat, seconds=np.array(seconds), steps=np.array(steps))
