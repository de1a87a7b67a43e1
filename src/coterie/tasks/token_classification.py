"""Token classification: a class for every token of a sequence, as in tagging or language models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.errors import DataError
from coterie.core.sample_kinds import stored_tensors
from coterie.core.samples import Inputs, Padded, Ragged
from coterie.tasks.classification import (
    ClassLogits,
    balanced_accuracies,
    check_labels,
    class_counts,
    f1_scores,
    mix_probabilities,
    share_logits,
)
from coterie.tasks.network import NetworkTask


class TokenClassification(NetworkTask):
    """Predict one of c classes for every token; the network gives [n, L, c] for n sequences.

    Targets are sequences of labels 0 to c - 1, or [n, L] where all have one length. L is the
    longest of a batch. The loss of a sample is the mean over its tokens; accuracy and F1 count
    tokens.

    >>> task = TokenClassification(torch.nn.Linear(4, 3))
    >>> task.losses(torch.zeros(1, 2, 3), torch.tensor([[0, 2]])).tolist()
    [1.0986123085021973]
    """

    losses_at_least_zero = True

    def losses(self, output: Tensor, y: Any) -> Tensor:
        """The mean cross-entropy of every sample: outputs [..., n, L, c] give [..., n].

        Targets are [..., n, L], or `Padded` to it.
        """
        labels, counts = tokens_and_mask(y)
        logits = cut_outputs(output, labels.shape[-1])
        flat = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
        weight = counts.to(logits.dtype)
        return (flat.view(labels.shape) * weight).sum(-1) / weight.sum(-1)

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        return mix_probabilities(outputs, shares)

    def targets(self, y: Any) -> Any:
        return y.long() if isinstance(y, Tensor) else y.map(Tensor.long)

    def check_samples(self, x: Any, y: Any) -> None:
        """Refuse data that this network cannot learn from."""
        values = stored_tensors(y)[0]
        if values.dim() != (1 if isinstance(y, Ragged) else 2) or values.is_floating_point():
            raise DataError(
                "token classification takes a sequence of whole numbers from 0 per sample as target"
            )
        lengths = target_lengths(y)
        check_lengths(x, lengths)
        output = self.probe_stored(x, axes=3)
        cut_outputs(output, int(lengths[:2].max()))
        check_labels(self.module, output.shape[-1], values)

    def score(self, output: Tensor, y: Any, mask: Tensor) -> Tensor:
        """Per client: samples, summed loss, then hits, predictions and labels of each class.

        Outputs [m, n, L, c], targets of [m, n, L] and the mask [m, n] give [m, 2 + 3c]; classes are
        counted over tokens.
        """
        labels, counts = tokens_and_mask(y)
        guess = cut_outputs(output, labels.shape[-1]).argmax(-1)
        weight = mask.double()
        samples, losses = weight.sum(1, keepdim=True), self.losses(output, y).double()
        token_weight = (weight[..., None] * counts).flatten(1)
        found = class_counts(guess.flatten(1), labels.flatten(1), token_weight, output.shape[-1])
        return torch.cat([samples, (losses * weight).sum(1, keepdim=True), found], 1)

    def metrics(self, scores: Tensor) -> dict[str, Tensor]:
        """Accuracy, balanced accuracy and F1 over tokens, and the loss over samples."""
        hits, guessed, labelled = scores[:, 2:].chunk(3, dim=1)
        return {
            "accuracy": hits.sum(1) / labelled.sum(1),
            "balanced_accuracy": balanced_accuracies(hits, labelled),
            "f1": f1_scores(hits, guessed, labelled),
            "loss": scores[:, 1] / scores[:, 0],
        }

    def label_counts(self, scores: Tensor) -> Tensor:
        """How often each class is the label of a token, [m, c], by the sums `scores` [m, s]."""
        return scores[:, 2:].chunk(3, dim=1)[2]

    def constant_output(self, scores: Tensor) -> Tensor:
        """The logits [c] that give the classes their shares of tokens with these sums [s]."""
        return share_logits(self.label_counts(scores[None])[0])

    def class_logits(self, output: Tensor, y: Any, mask: Tensor) -> ClassLogits:
        """What is predicted of the tokens that count, one after the other."""
        labels, counts = tokens_and_mask(y)
        inside = mask.bool()[..., None] & counts
        logits = cut_outputs(output, labels.shape[-1])
        return ClassLogits(logits[inside], labels[inside], inside.flatten(1).sum(1))


def tokens_and_mask(y: Any) -> tuple[Tensor, Tensor]:
    """The labels [..., n, L] of a batch, and which of them count."""
    if isinstance(y, Padded):
        y = y.trim()
        return y.values, y.mask
    return y, torch.ones_like(y, dtype=torch.bool)


def cut_outputs(output: Tensor, longest: int) -> Tensor:
    """Outputs [..., L, c] for the `longest` target; those behind it are not looked at."""
    if output.shape[-2] < longest:
        raise DataError(
            f"the network gives outputs for {output.shape[-2]} tokens where a target has {longest}"
        )
    return output[..., :longest, :]


def target_lengths(y: Any) -> Tensor:
    """How many labels each sample has, [N]."""
    return y.lengths if isinstance(y, Ragged) else torch.full((len(y),), y.shape[1])


def check_lengths(x: Any, wanted: Tensor) -> None:
    """Refuse sequences that have other lengths [N] than their targets; one input must have them."""
    inputs = x.parts.values() if isinstance(x, Inputs) else [x]
    found = [part.lengths for part in inputs if isinstance(part, Ragged)]
    if found and not any(torch.equal(lengths, wanted) for lengths in found):
        row = int((found[0] != wanted).nonzero()[0])
        raise DataError(
            f"a sequence must have as many targets as tokens, got {int(wanted[row])} for "
            f"{int(found[0][row])}"
        )
