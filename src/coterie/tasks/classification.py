"""Classification: cross-entropy, accuracy, balanced accuracy and F1."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.errors import DataError, SettingError
from coterie.tasks.network import NetworkTask, for_each_sample

PROBABILITY_ERROR = 1e-3  # by which probabilities may miss 1 in sum


class ClassLogits(NamedTuple):
    """Predictions of samples, or tokens, client after client."""

    logits: Tensor  # [N, c]
    labels: Tensor  # [N]
    sizes: Tensor  # [m] how many of them each client has


class Classification(NetworkTask):
    """Predict one of c classes with a network of c outputs; labels are 0 to c - 1.

    Targets may also be soft: the probabilities [n, c] of all classes. The likeliest one then counts
    as the label in accuracy and F1. With `class_weight` [c] the loss of a sample that is trained on
    counts as often as its class says; measures, the loss among them, are without.

    >>> task = Classification(torch.nn.Linear(2, 3))
    >>> task.layout.size
    9
    """

    losses_at_least_zero = True
    class_weight: Tensor | None = None  # [c]; None: all count the same

    def with_class_weight(self, weight: Tensor) -> Self:
        """The same task with weights [c] of the classes."""
        classes = len(weight)
        if not bool(weight.isfinite().all()) or not bool((weight >= 0).all()):
            raise SettingError(f"weights of {classes} classes must be finite and at least 0")
        other = copy.copy(self)
        other.class_weight = weight
        return other

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """The weighted cross-entropy of every sample: see `cross_entropies`."""
        if self.class_weight is None:
            return self.cross_entropies(output, y)
        weight = self.class_weight.to(output)
        if y.is_floating_point():
            return -(y * weight * F.log_softmax(output, -1)).sum(-1)
        return self.cross_entropies(output, y) * weight[y]

    def cross_entropies(self, output: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of every sample: logits [..., n, c], labels [..., n] give [..., n]."""
        if y.is_floating_point():
            return -(y * F.log_softmax(output, -1)).sum(-1)
        samples, classes = output.shape[-2:]
        # Classes first: sums over a few classes are several times faster along the samples.
        logits = output.reshape(-1, samples, classes).mT
        flat = F.cross_entropy(logits, y.reshape(-1, samples), reduction="none")
        return flat.view(y.shape)

    def output_gradients(self, output: Tensor, y: Tensor) -> Tensor:
        """softmax - 1 at the label."""
        slopes = torch.softmax(output, 1)
        slopes.scatter_add_(1, y[:, None], slopes.new_full((), -1).expand_as(y[:, None]))
        if self.class_weight is not None:
            slopes *= self.class_weight.to(output)[y][:, None]
        return slopes

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        return mix_probabilities(outputs, shares)

    def targets(self, y: Tensor) -> Tensor:
        """Labels [m, n] as whole numbers; probabilities [m, n, c] in the network's type."""
        return y.long() if y.dim() < 3 else y.to(self.layout.dtype)

    def check_samples(self, x: Any, y: Any) -> None:
        """Refuse data that this network cannot learn from."""
        soft = isinstance(y, Tensor) and y.dim() == 2 and y.is_floating_point()
        if soft:
            return check_probabilities(self.module, self.probe_stored(x).shape[1], y)
        whole = isinstance(y, Tensor) and y.dim() == 1
        if not whole or (y.is_floating_point() and bool((y != y.round()).any())):
            raise DataError("labels must be whole numbers from 0; for real targets use Regression")
        check_labels(self.module, self.probe_stored(x).shape[1], y)

    def score(self, output: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Per client: samples, summed loss, then hits, predictions and labels of each class.

        Outputs [m, n, c], labels and mask [m, n] give [m, 2 + 3c].
        """
        label = y.argmax(-1) if y.is_floating_point() else y
        weight = mask.double()
        samples = weight.sum(1, keepdim=True)
        loss = (self.cross_entropies(output, y).double() * weight).sum(1, keepdim=True)
        counts = class_counts(output.argmax(-1), label, weight, output.shape[-1])
        return torch.cat([samples, loss, counts], 1)

    def metrics(self, scores: Tensor) -> dict[str, Tensor]:
        """Accuracy, balanced accuracy, F1 and loss from the sums of `score`."""
        samples, loss = scores[:, 0], scores[:, 1]
        hits, guessed, labelled = scores[:, 2:].chunk(3, dim=1)
        return {
            "accuracy": hits.sum(1) / samples,
            "balanced_accuracy": balanced_accuracies(hits, labelled),
            "f1": f1_scores(hits, guessed, labelled),
            "loss": loss / samples,
        }

    def label_counts(self, scores: Tensor) -> Tensor:
        """How often each class is the label, [m, c], of samples with the sums `scores` [m, s]."""
        return scores[:, 2:].chunk(3, dim=1)[2]

    def constant_output(self, scores: Tensor) -> Tensor:
        """The logits [c] that give the classes their shares of samples with these sums [s]."""
        return share_logits(self.label_counts(scores[None])[0])

    def class_logits(self, output: Tensor, y: Tensor, mask: Tensor) -> ClassLogits:
        """What is predicted of the samples that count, one after the other."""
        label = y.argmax(-1) if y.is_floating_point() else y
        inside = mask.bool()
        return ClassLogits(output[inside], label[inside], inside.sum(1))


def balanced_accuracies(hits: Tensor, labelled: Tensor) -> Tensor:
    """The mean over classes of the share of their samples that is predicted right.

    Counts [m, c] give [m]; a class without a sample is left out of the mean.
    """
    occurs = labelled > 0
    return (hits / labelled.clamp_min(1)).sum(1) / occurs.sum(1)


def share_logits(counts: Tensor) -> Tensor:
    """The logits of classes that occur so often [c], half a sample being given to those that miss.

    >>> share_logits(torch.tensor([3.0, 1.0])).softmax(0).tolist()
    [0.75, 0.25]
    """
    return counts.double().clamp_min(0.5).log()


def mix_probabilities(outputs: Tensor, shares: Tensor) -> Tensor:
    """The logarithm of the mean probabilities of outputs [k, m, n, ..., c], in shares [m, k]."""
    weight = for_each_sample(shares, outputs)
    return torch.logsumexp(torch.log_softmax(outputs, -1) + weight.log(), 0)


def class_counts(guess: Tensor, label: Tensor, weight: Tensor, classes: int) -> Tensor:
    """Per client: hits, predictions and labels of each class; all of [m, n] give [m, 3c]."""

    def tally(label: Tensor, weight: Tensor) -> Tensor:
        return weight.new_zeros(len(weight), classes).scatter_add_(1, label, weight)

    hits = tally(label, weight * (guess == label))
    return torch.cat([hits, tally(guess, weight), tally(label, weight)], 1)


def f1_scores(hits: Tensor, guessed: Tensor, labelled: Tensor) -> Tensor:
    """The mean F1 over classes, counts [m, c] give [m].

    F1 of a class is 2 hits / (guessed + labelled); a class that neither occurs nor is predicted has
    none and is left out of the mean.
    """
    occurs = (guessed + labelled) > 0
    f1 = 2 * hits / (guessed + labelled).clamp_min(1)
    return (f1 * occurs).sum(1) / occurs.sum(1)


def check_labels(module: nn.Module, classes: int, labels: Tensor) -> None:
    """Refuse labels that a network of so many outputs cannot predict."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"the module {type(module).__name__} has {classes} outputs, so labels must "
            f"lie in 0 to {classes - 1}, got {low if low < 0 else high}"
        )


def check_probabilities(module: nn.Module, classes: int, y: Tensor) -> None:
    """Refuse soft targets that are not the probabilities of a network's classes."""
    if y.shape[1] != classes:
        raise DataError(
            f"the module {type(module).__name__} has {classes} outputs, so soft targets must "
            f"be {classes} probabilities per sample, got {y.shape[1]}"
        )
    sums = y.double().sum(1)
    worst = float(sums[(sums - 1).abs().argmax()])
    if bool((y < 0).any()) or abs(worst - 1) > PROBABILITY_ERROR:
        raise DataError(
            "soft targets must be probabilities, at least 0 and 1 in sum, got "
            + (f"{float(y.min()):g}" if bool((y < 0).any()) else f"a sum of {worst:g}")
        )
