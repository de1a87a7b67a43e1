"""How UIFCA makes the sets of samples: by the losses under models, and at the start.

Everything here happens on clients; `r` restarts are followed side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from coterie.algorithms.uifca_start import k_fed_label
from coterie.core import seeds
from coterie.core.cohort import Cohort
from coterie.core.errors import DataError
from coterie.core.local_training import LocalTraining
from coterie.core.settings import setting
from coterie.core.validate import at_least, in_range, one_of
from coterie.data.federation import Federation

TINY = 1e-12  # a set that weighs no more has no samples

STARTS = ("random", "noise", "k-fed", "truth")
PRIOR_STEPS = 10  # in which a client's own shares of clusters come to rest


@dataclass(frozen=True, kw_only=True)
class SetSettings(LocalTraining):
    """The settings of UIFCA that say how sets are made."""

    k: int = setting(2, "clusters", at_least(1))
    start: str = setting(
        "random",
        "first sets; random: each sample by itself, noise: by one drawn model and noise, k-fed: by "
        "k-FED, truth: by the labels, for reference",
        one_of(*STARTS),
    )
    start_errors: float = setting(
        0.0, "share of samples in a random set, with start=truth", in_range(0, 1)
    )
    k_local: int = setting(
        0, "clusters that a client looks for with start=k-fed; 0: as many as k", at_least(0)
    )
    components: int = setting(
        0,
        "principal components of all samples, each of deviation 1, that k-FED sees with "
        "start=k-fed; 0: the samples as they are",
        at_least(0),
        added=True,
    )
    assign: str = setting(
        "hard", "soft: samples count in all sets, by their posterior", one_of("hard", "soft")
    )
    folds: int = setting(1, "parts of the samples that take turns in cluster rounds", at_least(1))
    prior: float = setting(
        0.0,
        "weight of losses against a client's own share of clusters; 0: no such prior",
        at_least(0),
    )
    constant: str = setting(
        "kept",
        "removed: the mean loss of all samples under a model is subtracted before sets are made",
        one_of("kept", "removed"),
    )


def check_start(settings: SetSettings, federation: Federation) -> None:
    """Refuse to begin with true clusters that are not there."""
    if settings.start == "truth" and not federation.train.has_labels:
        raise DataError(
            "UIFCA with start=truth begins with the labels of samples, which must be classes, but "
            f"{federation.name} has none"
        )


def make_sets(
    settings: SetSettings,
    cohort: Cohort,
    judges: Tensor,
    constants: Tensor,
    chosen: Tensor,
    components: Tensor,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """How much each sample counts in each set, and its loss under each judge, [m, n, r, k].

    Without judges [r k, d] it is the start that makes the sets. `constants` [r, k] are subtracted
    from losses before these are compared.
    """
    (r, k), mask = constants.shape, cohort.mask
    if not len(judges):
        label = first_label(settings, cohort, chosen, components, seed, r)
        weight = one_hot(label, k, mask).to(constants.dtype)
        return weight, torch.zeros_like(weight)
    loss = cohort.losses(judges).view(*mask.shape, r, k)
    if settings.assign == "soft":
        return posterior(loss - constants, mask, settings.prior), loss
    label = nearest(loss - constants, mask, settings.prior)
    return one_hot(label, k, mask).to(loss.dtype), loss


def fold_of_turn(settings: SetSettings, cohort: Cohort, number: Tensor, seed: Tensor) -> Cohort:
    """Clients with the samples whose turn it is in a cluster round."""
    if settings.folds == 1:
        return cohort
    fold = draw_label(cohort, settings.folds, int(seed), "folds", 1)[:, :, 0]
    return cohort.among(fold == int(number) % settings.folds)


def first_label(
    settings: SetSettings,
    cohort: Cohort,
    chosen: Tensor,
    components: Tensor,
    seed: Tensor,
    r: int,
) -> Tensor:
    """The first sets, as the index of each sample's set, [m, n, r]."""
    k = settings.k
    if settings.start == "k-fed":
        return fill_rows(k_fed_label(settings, cohort, chosen, components, int(seed)), cohort)
    drawn = draw_label(cohort, k, int(seed), "sets", r)
    if settings.start != "truth":
        return drawn
    true = true_label(cohort, k)[:, :, None]
    errors = torch.stack(
        [
            torch.rand(cohort.mask.shape[1], generator=each) < settings.start_errors
            for each in client_generators(cohort, int(seed), "errors")
        ]
    )
    return torch.where(errors[:, :, None], drawn, true)


def true_label(cohort: Cohort, k: int) -> Tensor:
    """The set [m, n] of each sample by its label, of which there may be more than sets."""
    return fill_rows(pad_sequence([y for _, y in cohort], batch_first=True) % k, cohort)


def fill_rows(label: Tensor, cohort: Cohort) -> Tensor:
    """Labels [m, a, ...] in as many rows as a cohort has: one even where nobody has a sample."""
    behind = [0, 0] * (label.dim() - 2)
    return pad(label, [*behind, 0, cohort.mask.shape[1] - label.shape[1]])


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


def mean_of_sets(loss: Tensor, weight: Tensor, size: Tensor) -> Tensor:
    """The mean loss [m, r k, 1] of each set, from losses and weights [m, n, r, k]."""
    total = torch.where(weight > 0, loss * weight, 0.0).sum(1).flatten(1)
    return divide(total, size)[:, :, None]


def divide(total: Tensor, size: Tensor) -> Tensor:
    """Sums divided by sizes; of a set without samples the sum, which is 0."""
    return total / torch.where(size > TINY, size, 1.0)
