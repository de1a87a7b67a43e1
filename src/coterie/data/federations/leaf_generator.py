"""The synthetic data that LEAF's own program makes, of 1,000 devices and 5 classes.

Caldas et al.: LEAF, A Benchmark for Federated Settings, 2018, https://arxiv.org/abs/1812.01097;
the program is `data/synthetic` of https://github.com/TalwalkarLab/leaf. It is "Synthetic" in Table
4.1 of the multi-center thesis (Xie, 2022), with 107,553 samples, and is not Synthetic(alpha, beta)
of FedProx, which is `leaf-synthetic` here.

    Q ~ N(0, 1)^((d + 1) x classes x groups), one for all devices
    cluster c: l_c ~ N(0, 1), mu_c ~ N(l_c, 1)^groups
    device t:  c drawn with equal probabilities
               n_t = min(int(lognormal(3, 2)) + 5, 1000)
               B_t ~ N(0, 1), v_t ~ N(B_t, 1)^d, x ~ N(v_t, diag(j^-1.2))
               u_t ~ N(mu_c, 0.1^2)^groups, W_t = Q u_t
               y = argmax over classes of softmax(W_t (1, x) + N(0, 0.1^2))

Numbers are drawn as the program draws them, one after another from NumPy's old generator with the
seed 931231, so that its data are had bit for bit, to rounding to single precision.

The softmax of the program divides by sums over the device's samples, not over classes. A softmax
over classes leaves the largest class the largest; that one does not, but prefers classes that are
rare on the device: `softmax=samples` labels as the program does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from coterie.core import seeds
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, between, in_range, one_of
from coterie.data.federation import Federation, select_federation, split_parts

LEAF_SEED = 931231
FEWEST, MOST = 5, 1000  # samples of a device


@dataclass(frozen=True, kw_only=True)
class LeafGenerator(Settings):
    """The synthetic data of LEAF's own program: devices of some clusters, one by default."""

    clients: int = setting(1000, "devices m", at_least(1))
    classes: int = setting(5, "classes", at_least(2))
    features: int = setting(60, "features d of a sample", at_least(1))
    groups: int = setting(1, "true clusters", at_least(1))
    softmax: str = setting(
        "classes",
        "sums that scores are divided by; samples: as LEAF's program does",
        one_of("classes", "samples"),
    )
    leaf_seed: int = setting(
        LEAF_SEED, "what the data are drawn from; 0: the run's seed", in_range(0, 2**32 - 1)
    )
    train_share: float = setting(0.8, "share of a device's samples to train on", between(0, 1))

    pixel_scale: ClassVar[float] = 1.0
    suggests: ClassVar[dict[str, Any]] = dict(
        k=2, lr=0.01, epochs=10, batch=10, fraction=0.1, rounds=100, network="linear"
    )

    @property
    def class_count(self) -> int:
        return self.classes

    def build(self, seed: int) -> Federation:
        drawn_from = self.leaf_seed or seeds.derive(seed, "leaf-generator") % 2**32
        sizes = device_sizes(drawn_from, self.clients)
        x, y, cluster = self._draw(drawn_from, sizes)
        parts = torch.arange(len(y)).split(sizes.tolist())
        split = split_parts(parts, self.train_share, seed)
        return select_federation(self, x, y, *split, cluster=cluster, name="leaf-generator")

    def _draw(
        self, seed: int, sizes: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Features [n, d] and labels [n] of all devices, and the cluster of each [m]."""
        rng = np.random.RandomState(seed)  # begun anew after the sizes, as LEAF does
        d, k = self.features, self.groups
        q = rng.normal(0, 1, (d + 1, self.classes, k))
        variance = np.diag((np.arange(d) + 1.0) ** -1.2)
        mu = np.stack([rng.normal(rng.normal(0, 1), 1, k) for _ in range(k)])
        x = np.empty((sizes.sum(), d), dtype=np.float32)
        y = np.empty(len(x), dtype=np.int64)
        cluster = np.empty(len(sizes), dtype=np.int64)
        end = np.cumsum(sizes)
        for t, n in enumerate(sizes):
            cluster[t] = rng.choice(k, p=np.full(k, 1 / k))
            centre = rng.normal(rng.normal(0, 1), 1, d)
            features = np.ones((n, d + 1))
            features[:, 1:] = rng.multivariate_normal(centre, variance, n)
            w = q @ rng.normal(mu[cluster[t]], 0.1)
            scores = features @ w + rng.normal(0, 0.1, (n, self.classes))
            rows = slice(end[t] - n, end[t])
            x[rows], y[rows] = features[:, 1:], label_scores(scores, self.softmax)
        return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(cluster)


def device_sizes(seed: int, clients: int) -> np.ndarray:
    """How many samples each device has.

    >>> int(device_sizes(931231, 1000).sum())
    107553
    """
    drawn = np.random.RandomState(seed).lognormal(3, 2, clients)
    # What is beyond the largest number is beyond the bound as well.
    return np.minimum(np.minimum(drawn, MOST).astype(np.int64) + FEWEST, MOST)


def label_scores(scores: np.ndarray, softmax: str) -> np.ndarray:
    """The class [n] of every sample by its scores [n, c].

    >>> label_scores(np.log([[4.0, 1.0], [8.0, 1.0]]), "samples").tolist()  # 4/12 < 1/2 < 8/12
    [1, 0]
    """
    if softmax == "samples":
        scores = scores - np.logaddexp.reduce(scores, axis=0)
    found: np.ndarray = scores.argmax(1)
    return found
