"""What UIFCA's models make of samples in the wrong set, where it begins with mistakes on purpose.

Figures 5 and 6 of the paper: the longer the models of a cluster round are trained, the more they
fit the samples that are wrongly in their set, until these stay there. With `start=truth` and
`start_errors` clients know which samples these are, for the start looks at labels anyway; the
server is told sums over all clients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms import sample_sets
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Loss, Statistic
from coterie.vectors.folds import WeightedRows

PLACES = ("right", "wrong")  # the sets that samples are in


class Mistakes(NamedTuple):
    size: Statistic  # [m, 2] samples in the right set, and in a wrong one
    own: Loss  # [m, 2, 1] their mean loss under the model of their set
    other: Loss  # [m, 2, 1] under the best of the other models
    staying: Statistic  # [m, 2, 1] the share of them that the models leave where they are


@on_client(fold=WeightedRows)
def measure_mistakes(
    self: Any, cohort: Cohort, models: Tensor, chosen: Tensor, number: Tensor, seed: Tensor
) -> Mistakes:
    cohort = sample_sets.fold_of_turn(self, cohort, number, seed)
    given = sample_sets.first_label(self, cohort, chosen, chosen, seed, 1)  # [m, n, 1]
    true = sample_sets.true_label(cohort, self.k)
    weight = sample_sets.one_hot((given[:, :, 0] != true).long(), 2, cohort.mask)  # [m, n, 2]
    losses = cohort.losses(models)
    own = losses.gather(2, given)[:, :, 0]
    other = losses.scatter(2, given, torch.inf).amin(2)
    size = weight.sum(1)
    means = [mean_by_place(each, weight, size) for each in (own, other, (own <= other).to(own))]
    return Mistakes(size.to(own.dtype), *means)


def mean_by_place(values: Tensor, weight: Tensor, size: Tensor) -> Tensor:
    """The mean [m, 2, 1] of values [m, n] over the samples in right and in wrong sets."""
    total = torch.where(weight, values[:, :, None], 0.0).sum(1)
    return sample_sets.divide(total, size)[:, :, None]


def of_start(
    algorithm: Any, models: Tensor, clients: Clients, sets: dict[str, Tensor]
) -> dict[str, float]:
    """Metrics of models [1, k, d] on the mistakes that the start made, as long as sets are its own.

    `sets` is what clients are sent to make these. Nothing where none are made on purpose.
    """
    if algorithm.start != "truth" or not algorithm.start_errors or int(sets["number"]):
        return {}
    sent = {name: sets[name] for name in ("chosen", "number", "seed")}
    return ask_mistakes(algorithm.measure_mistakes, models[0], clients, **sent)


def ask_mistakes(step: Any, models: Tensor, clients: Clients, **sent: Tensor) -> dict[str, float]:
    """Metrics of models [k, d] on the samples that are in the right set and in a wrong one.

    `given_accuracy` is the share of the right ones. Of each kind there is the mean loss under the
    own model and under the best other one, and the share that stays; nothing where it has no
    sample.
    """
    fold = WeightedRows(2, "size", updates={"own": 1, "other": 1, "staying": 1})
    ids, up = clients.run(step, fold=fold, models=models, **sent)
    if len(ids) == 0 or not up.weight:
        return {}
    metrics = {"given_accuracy": float(up.weights[0] / up.weight)}
    for row, place in enumerate(PLACES):
        if size := float(up.weights[row]):
            own, other, staying = (float(up.sum(n)[row, 0]) / size for n in fold.updates)
            metrics |= {f"{place}_own_loss": own, f"{place}_other_loss": other}
            metrics[f"{place}_staying"] = staying
    return metrics
