"""How UIFCA makes the sets of samples: by the losses under models, and at the start.

Everything here happens on clients; `r` restarts are followed side by side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coterie.algorithms.k_fed import KFed
from coterie.core import seeds
from coterie.core.cohort import Cohort

STARTS = ("random", "noise", "k-fed", "truth")
PRIOR_STEPS = 10  # in which a client's own shares of clusters come to rest


def first_label(settings: Any, cohort: Cohort, chosen: Tensor, seed: Tensor, r: int) -> Tensor:
    """The first sets, as the index of each sample's set, [m, n, r]."""
    k = settings.k
    if settings.start == "k-fed":
        k_fed = KFed(k=k, server="k-means")
        return k_fed.label(cohort, models=chosen, chosen=chosen, seed=seed)[:, :, None]
    drawn = draw_label(cohort, k, int(seed), "sets", r)
    if settings.start != "truth":
        return drawn
    true = pad_sequence([y for _, y in cohort], batch_first=True)[:, :, None] % k
    errors = torch.stack(
        [
            torch.rand(cohort.mask.shape[1], generator=each) < settings.start_errors
            for each in client_generators(cohort, int(seed), "errors")
        ]
    )
    return torch.where(errors[:, :, None], drawn, true)


def draw_label(cohort: Cohort, k: int, seed: int, purpose: str, r: int) -> Tensor:
    """r random numbers below k for every sample, [m, n, r], the same in every round."""
    n = cohort.mask.shape[1]
    drawn = [
        torch.randint(k, (n, r), generator=each, device="cpu")
        for each in client_generators(cohort, seed, purpose)
    ]
    return torch.stack(drawn).to(cohort.mask.device)


def client_generators(cohort: Cohort, seed: int, purpose: str) -> list[torch.Generator]:
    """A generator for each client, which does not depend on the round."""
    return [seeds.generator(seed, purpose, i) for i in cohort.ids.tolist()]


def nearest(losses: Tensor, mask: Tensor, beta: float) -> Tensor:
    """The set [m, n, r] with the lowest loss [m, n, r, k] for each sample.

    With `beta` it is argmin_k beta loss - log pi_k, where pi are the shares of the client's own
    samples in its sets, which are found in turns with these.

    >>> losses = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.2, 0.0]])[None, :, None]
    >>> mask = torch.ones(1, 4, dtype=torch.bool)
    >>> nearest(losses, mask, 0).flatten().tolist(), nearest(losses, mask, 1.0).flatten().tolist()
    ([0, 0, 0, 1], [0, 0, 0, 0])
    """
    label = losses.argmin(3)
    if not beta:
        return label
    for _ in range(PRIOR_STEPS):
        counts = one_hot(label, losses.shape[3], mask).sum(1, keepdim=True) + 1
        after = (beta * losses - counts.to(losses.dtype).log()).argmin(3)
        if torch.equal(after, label):
            break
        label = after
    return label


def posterior(losses: Tensor, mask: Tensor, beta: float) -> Tensor:
    """The probability [m, n, r, k] of each set for each sample, 0 for padding.

    That is softmax(-loss), or with `beta` softmax(log pi - beta loss), where pi is the mean of
    that over the client's own samples.
    """
    inside = mask[:, :, None, None]
    finite = losses.nan_to_num(nan=1e30, posinf=1e30)
    weight = torch.where(inside, (-(beta or 1.0) * finite).softmax(3), 0.0)
    if not beta:
        return weight
    for _ in range(PRIOR_STEPS):
        share = (weight.sum(1, keepdim=True) + 1).log()
        weight = torch.where(inside, (share - beta * finite).softmax(3), 0.0)
    return weight


def one_hot(label: Tensor, k: int, mask: Tensor) -> Tensor:
    """Whether each sample is in each set, [..., k] for labels [m, n, ...]; padding is in none."""
    inside = mask.view(*mask.shape, *(1 for _ in label.shape[2:]), 1)
    return (label[..., None] == torch.arange(k, device=label.device)) & inside
