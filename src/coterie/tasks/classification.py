"""Classification: cross-entropy, accuracy and F1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.errors import DataError
from coterie.tasks.network import NetworkTask, for_each_sample


class Classification(NetworkTask):
    """Predict one of c classes with a network of c outputs; labels are 0 to c - 1.

    >>> task = Classification(torch.nn.Linear(2, 3))
    >>> task.layout.size
    9
    """

    losses_at_least_zero = True

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of every sample: logits [..., n, c], labels [..., n] give [..., n]."""
        samples, classes = output.shape[-2:]
        # Classes first: sums over a few classes are several times faster along the samples.
        logits = output.reshape(-1, samples, classes).mT
        flat = F.cross_entropy(logits, y.reshape(-1, samples), reduction="none")
        return flat.view(y.shape)

    def output_gradients(self, output: Tensor, y: Tensor) -> Tensor:
        """softmax - 1 at the label."""
        slopes = torch.softmax(output, 1)
        return slopes.scatter_add_(1, y[:, None], slopes.new_full((), -1).expand_as(y[:, None]))

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        """The logarithm of the mean probabilities, weighted by the shares."""
        weight = for_each_sample(shares, outputs)
        return torch.logsumexp(torch.log_softmax(outputs, -1) + weight.log(), 0)

    def targets(self, y: Tensor) -> Tensor:
        return y.long()

    def check_samples(self, x: Tensor, y: Tensor) -> None:
        """Refuse data that this network cannot learn from."""
        if y.dim() != 1 or (y.is_floating_point() and bool((y != y.round()).any())):
            raise DataError("labels must be whole numbers from 0; for real targets use Regression")
        classes, low, high = self.probe(x[:2]).shape[1], int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            raise DataError(
                f"the module {type(self.module).__name__} has {classes} outputs, so labels must "
                f"lie in 0 to {classes - 1}, got {low if low < 0 else high}"
            )

    def score(self, output: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Per client: samples, summed loss, then hits, predictions and labels of each class.

        Outputs [m, n, c], labels and mask [m, n] give [m, 2 + 3c].
        """
        m, _, classes = output.shape
        guess = output.argmax(-1)
        weight = mask.double()

        def tally(label: Tensor, weight: Tensor) -> Tensor:
            return weight.new_zeros(m, classes).scatter_add_(1, label, weight)

        samples = weight.sum(1, keepdim=True)
        loss = (self.losses(output, y).double() * weight).sum(1, keepdim=True)
        hits = tally(y, weight * (guess == y))
        return torch.cat([samples, loss, hits, tally(guess, weight), tally(y, weight)], 1)

    def metrics(self, scores: Tensor) -> dict[str, Tensor]:
        """Accuracy, F1 and loss from the sums of `score`."""
        samples, loss = scores[:, 0], scores[:, 1]
        hits, guessed, labelled = scores[:, 2:].chunk(3, dim=1)
        # F1 of a class is 2 hits / (guessed + labelled); a class that neither occurs nor is
        # predicted has none and is left out of the mean.
        occurs = (guessed + labelled) > 0
        f1 = 2 * hits / (guessed + labelled).clamp_min(1)
        return {
            "accuracy": hits.sum(1) / samples,
            "f1": (f1 * occurs).sum(1) / occurs.sum(1),
            "loss": loss / samples,
        }
