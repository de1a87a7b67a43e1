"""Synthetic mixtures with known parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.settings import Settings, setting
from coterie.core.validate import above, at_least, at_least_as_many, one_of
from coterie.data.federation import Federation, Samples


@dataclass(frozen=True, kw_only=True)
class LinearMixture(Settings):
    """Linear regressions of a few hidden kinds: section 6.1 of the IFCA paper.

    True parameters are Bernoulli(0.5) draws scaled to norm R, as the paper writes; the code of its
    authors multiplies the draw by R without normalising (`scale=raw`). Models have no intercept and
    start as an unscaled Bernoulli(0.5) draw.
    """

    clients: int = setting(100, "clients m, equal contiguous blocks for each group", at_least(1))
    samples: int = setting(100, "training samples n of each client", at_least(1))
    features: int = setting(1000, "dimension d", at_least(1))
    groups: int = setting(2, "true clusters", at_least(1))
    separation: float = setting(1.0, "R: the norm of every true parameter vector", above(0))
    noise: float = setting(0.1, "sigma: standard deviation of the noise", at_least(0))
    scale: str = setting(
        "norm",
        "true parameters; norm: of norm R, raw: R times a draw of zeros and ones",
        one_of("norm", "raw"),
    )

    class_count: ClassVar[int] = 0  # targets are real numbers
    pixel_scale: ClassVar[float] = 1.0
    resplits: ClassVar[bool] = False  # data are drawn anew
    suggests: ClassVar[dict[str, Any]] = dict(
        lr=0.05, steps=1, rounds=300, network="linear", bias=False, weights="bernoulli"
    )
    suggests_for: ClassVar[dict[str, dict[str, Any]]] = {
        "ifca": dict(k=2, average="gradients", lr=0.5, start="restarts", tries=10, start_rounds=30)
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_as_many(self, "clients", "groups")

    def build(self, seed: int) -> Federation:
        truth = torch.stack(
            [self._truth(seeds.generator(seed, "truth", j)) for j in range(self.groups)]
        )
        cluster = torch.arange(self.clients) * self.groups // self.clients
        train = self._samples(truth[cluster], self.samples, seeds.generator(seed, "train"))
        fresh = max(1, self.samples // 5)
        test = self._samples(truth[cluster], fresh, seeds.generator(seed, "test"))
        return Federation(
            train, test, cluster, truth=truth, noise=self.noise, name="linear-mixture"
        )

    def _truth(self, generator: torch.Generator) -> Tensor:
        draw = torch.randint(2, (self.features,), generator=generator).float()
        # In one dimension a draw may be all zero, which has no direction.
        norm = draw.norm().clamp_min(1.0) if self.scale == "norm" else 1.0
        return self.separation * draw / norm

    def _samples(self, theta: Tensor, n: int, generator: torch.Generator) -> Samples:
        """n samples for each client from its own parameters theta [m, d]."""
        m, d = theta.shape
        x = torch.randn(m, n, d, generator=generator)
        noise = self.noise * torch.randn(m, n, generator=generator)
        y = torch.bmm(x, theta[:, :, None])[:, :, 0] + noise
        return Samples(x.flatten(0, 1), y.flatten(), torch.arange(m + 1) * n)
