"""How good predicted probabilities are: AUC, average precision, log-loss, calibration, confusion.

Where all predictions are at hand, AUC and average precision are exact. Else they are those of
histograms, which clients add up: each class has `BINS` bins of the probability that it was given,
finer towards 0 and 1. A bin keeps neither the order in it nor the rows.

Of two classes, AUC and average precision are those of the second one. Of more, they are means over
classes, each against all others; a class that does not occur, or alone, is left out.

Calibration: the expected calibration error is sum_b n_b/n |accuracy_b - confidence_b| over
`CONFIDENCE_BINS` bins of the probability of the predicted class (Guo et al., On Calibration of
Modern Neural Networks, ICML 2017). The curve shows `CURVE_BINS` bins; of two classes of the
probability of the second one, and how often that is the label; of more, of the predicted class.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.evaluation.ranking import (
    RankedCounts,
    auc,
    auc_error,
    average_precision,
    precision_error,
    rank_samples,
)

BINS = 1000
CONFIDENCE_BINS = 15
CURVE_BINS = 10


class ProbabilitySums(NamedTuple):
    """What predicted probabilities of c classes add up to; s classes are ranked, 1 or all c."""

    histogram: Tensor  # [s, 2, BINS] samples of other classes, and of the class
    confusion: Tensor  # [c, c] samples of a class, by that which was predicted
    confidence: Tensor  # [CONFIDENCE_BINS, 3] samples, their confidence, and how many are right
    curve: Tensor  # [CURVE_BINS, 3] samples, their probability, and how many have that label
    log_loss: Tensor  # [1] minus the logarithm of the probability of the label
    by_client: Tensor  # [2, 2] AUC and average precision: their sums, and how many clients have one

    def plus(self, other: ProbabilitySums) -> ProbabilitySums:
        """Those of the samples of both."""
        return ProbabilitySums(*(one + two for one, two in zip(self, other, strict=True)))


class Ranks(NamedTuple):
    """AUC and average precision of groups of samples, NaN where they are not defined."""

    auc: Tensor  # [g]
    average_precision: Tensor  # [g]


def sum_probabilities(p: Tensor, log_p: Tensor, labels: Tensor, sizes: Tensor) -> ProbabilitySums:
    """The sums of samples with probabilities p [N, c]; clients have `sizes` [m] of them each."""
    classes, guess = p.shape[1], p.argmax(1)
    scores, positive = ranked_classes(p, labels)
    bins = probability_bins(scores)
    width = 2 * BINS
    place = positive.long() * BINS + bins + width * torch.arange(scores.shape[1])
    histogram = torch.bincount(place.flatten(), minlength=scores.shape[1] * width)
    confidence = p.gather(1, guess[:, None])[:, 0]
    right = guess == labels
    shown, true = (p[:, 1], labels == 1) if classes == 2 else (confidence, right)
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    each = torch.stack([*rank_groups(scores, positive, owner, len(sizes))])
    known = ~each.isnan()
    return ProbabilitySums(
        histogram.view(-1, 2, BINS),
        torch.bincount(labels * classes + guess, minlength=classes**2).view(classes, classes),
        sum_bins(confidence, right, CONFIDENCE_BINS),
        sum_bins(shown, true, CURVE_BINS),
        -log_p.gather(1, labels[:, None]).sum()[None],
        torch.stack([each.nan_to_num(nan=0.0).sum(1), known.sum(1).double()], 1),
    )


def ranked_classes(p: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities [N, s] of the classes that are ranked, and which samples are of them."""
    if p.shape[1] == 2:
        return p[:, 1:], (labels == 1)[:, None]
    return p, labels[:, None] == torch.arange(p.shape[1])


def probability_bins(p: Tensor) -> Tensor:
    """The bin of each probability: 2/pi arcsin(sqrt(p)) is cut into equal parts.

    >>> probability_bins(torch.tensor([0.0, 0.001, 0.5, 1.0])).tolist()
    [0, 20, 500, 999]
    """
    share = p.double().clamp(0, 1).sqrt().asin() * (2 / torch.pi)
    return (share * BINS).long().clamp_max(BINS - 1)


def sum_bins(p: Tensor, true: Tensor, bins: int) -> Tensor:
    """Of probabilities [N] in equal bins: how many there are, their sum, how many came true."""
    place = (p * bins).long().clamp(0, bins - 1)
    parts = torch.stack([torch.ones_like(p), p, true.to(p.dtype)], 1)
    return parts.new_zeros(bins, 3).index_add(0, place, parts)


def rank_groups(scores: Tensor, positive: Tensor, group: Tensor, groups: int) -> Ranks:
    """AUC and average precision of each group of samples [N], means over ranked classes [N, s]."""
    found = []
    owner = group.numpy()
    for score, own in zip(scores.T.numpy(), positive.T.numpy(), strict=True):
        ranked = rank_samples(owner, score, own.astype(float), (~own).astype(float), groups)
        both = auc(ranked)
        found.append([both, np.where(np.isnan(both), np.nan, average_precision(ranked))])
    return Ranks(*torch.from_numpy(np.array(found)).nanmean(0))


def rank_histogram(sums: ProbabilitySums) -> tuple[Ranks, Ranks]:
    """AUC and average precision [1] of all samples by their bins, and how far they are off."""
    values: list[list[Any]] = []
    for others, own in sums.histogram.double().numpy():
        bins, place = np.arange(BINS, dtype=float), np.zeros(BINS, dtype=np.int64)
        used = (others + own) > 0
        ranked: RankedCounts = rank_samples(place[used], bins[used], own[used], others[used], 1)
        if np.isnan(auc(ranked)[0]):
            continue
        measures = (auc, average_precision, auc_error, precision_error)
        values.append([measure(ranked) for measure in measures])
    nothing = np.full((1, 4, 1), np.nan)
    mean = torch.from_numpy(np.array(values) if values else nothing).mean(0)
    return Ranks(mean[0], mean[1]), Ranks(mean[2], mean[3])


def probability_metrics(sums: ProbabilitySums, ranks: Ranks) -> dict[str, float]:
    """The metrics of probabilities; `ranks` are those of all samples [1].

    One that is not defined, because all samples are of one class, is left out.
    """
    total, counts = sums.by_client.T
    means = torch.where(counts > 0, total / counts, torch.nan)
    found = {
        "auc": float(ranks.auc[0]),
        "average_precision": float(ranks.average_precision[0]),
        "auc_macro": float(means[0]),
        "average_precision_macro": float(means[1]),
    }
    defined = {name: value for name, value in found.items() if value == value}
    samples = float(sums.confusion.sum())
    rest = {"log_loss": float(sums.log_loss) / samples, "ece": calibration_error(sums.confidence)}
    return defined | rest


def calibration_error(bins: Tensor) -> float:
    """The expected calibration error of bins [b, 3].

    >>> calibration_error(torch.tensor([[10.0, 8.0, 6.0], [10.0, 9.5, 9.5]]))
    0.1
    """
    count, probability, true = bins.double().T
    return float((probability - true).abs().sum() / count.sum())


def constant_sums(sums: ProbabilitySums, logits: Tensor) -> ProbabilitySums:
    """The sums of the same samples if all had these logits [c].

    What a constant has as average precision with single clients they do not tell.
    """
    log_p = logits.double().log_softmax(0)
    counts = sums.confusion.sum(1)  # [c]
    classes = torch.nonzero(counts).flatten()
    # One sample of each class that occurs, which counts as often as the class.
    p, one = log_p.exp()[None], torch.tensor([1])
    parts = [sum_probabilities(p, log_p[None], label, one) for label in classes.split(1)]
    count_one = sums.by_client[0, 1]  # a constant has AUC 1/2 with every client that has one
    by_client = torch.stack([count_one / 2, count_one])
    total = ProbabilitySums(*(torch.zeros_like(each) for each in sums))
    for part, count in zip(parts, counts[classes], strict=True):
        total = total.plus(ProbabilitySums(*(each * count for each in part)))
    return total._replace(by_client=torch.stack([by_client, torch.zeros_like(by_client)]))
