"""Steps along gradients as `torch.optim` makes them, for one model or for many side by side.

    optimizer   step                                        of torch.optim
    sgd         w - lr g                                    SGD
    momentum    b = momentum b + g,  w - lr b               SGD(momentum=...)
    adam        moments m, v of g,  w - lr m^ / sqrt(v^)    Adam(betas=...)

Tensors of many models have a leading axis, and every model has its own state; so the same few lines
serve all kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor
from torch.optim.adam import adam

OPTIMIZERS = ("sgd", "momentum", "adam")
# How many tensors of the size of the gradient each of them carries from step to step.
SLOTS = {"sgd": 0, "momentum": 1, "adam": 2}
BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam, as torch.optim has them unless it is told others
FUSED = ("cpu", "cuda")  # devices on which PyTorch has Adam in one pass
CLIP_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it


class Optimizer:
    """An optimiser with the state that it carries from step to step.

    >>> optimizer = Optimizer("momentum", momentum=0.5)
    >>> [optimizer.directions([torch.tensor([4.0])])[0].item() for _ in range(3)]
    [4.0, 6.0, 7.0]
    """

    def __init__(
        self, kind: str = "sgd", momentum: float = 0.9, betas: tuple[float, float] = BETAS
    ) -> None:
        self.kind, self.momentum, self.betas = kind, momentum, betas
        self.steps = 0  # made so far
        self.slots: list[list[Tensor]] = []  # [slot][tensor]
        self._counts: list[Tensor] = []  # `steps` for each tensor, as Adam in one pass has it

    def directions(self, gradients: list[Tensor]) -> list[Tensor]:
        """What a step subtracts from each tensor, divided by the step size; not to be changed."""
        if self.kind == "sgd":
            return gradients
        slots = self._begun(gradients)
        self.steps, self._counts = self.steps + 1, []
        if self.kind == "momentum":
            (velocity,) = slots
            for v, gradient in zip(velocity, gradients, strict=True):
                v.mul_(self.momentum).add_(gradient)
            return velocity
        return [self._adam(*parts) for parts in zip(gradients, *slots, strict=True)]

    def step(self, tensors: Sequence[Tensor], gradients: list[Tensor], lr: float) -> None:
        """A step on tensors, in place; that of Adam in one pass over all that it reads and writes.

        >>> optimizer, weight = Optimizer("adam"), torch.tensor([1.0, 2.0])
        >>> optimizer.step([weight], [torch.tensor([3.0, -4.0])], 0.5)
        >>> weight
        tensor([0.5000, 2.5000])
        """
        if self.kind != "adam" or any(t.device.type not in FUSED for t in tensors):
            for tensor, direction in zip(tensors, self.directions(gradients), strict=True):
                tensor.sub_(direction, alpha=lr)
            return
        means, squares = self._begun(gradients)
        if not self._counts:
            self._counts = [t.new_full((), self.steps, dtype=torch.float32) for t in tensors]
        adam(
            [*tensors],
            gradients,
            means,
            squares,
            [],
            self._counts,
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=0.0,
            eps=EPS,
            maximize=False,
        )
        self.steps += 1

    def _begun(self, gradients: list[Tensor]) -> list[list[Tensor]]:
        """The slots, zeros before the first step."""
        if not self.slots:
            self.slots = [[torch.zeros_like(g) for g in gradients] for _ in range(SLOTS[self.kind])]
        return self.slots

    def _adam(self, gradient: Tensor, mean: Tensor, square: Tensor) -> Tensor:
        """The direction for one tensor; its two moments are changed in place."""
        mean.lerp_(gradient, 1 - self.betas[0])
        square.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        unbiased, scale = (1 - beta**self.steps for beta in self.betas)
        return mean / (square.sqrt().div_(sqrt(scale)).add_(EPS)).mul_(unbiased)

    def restore(self, state: Tensor, tensors: Sequence[Tensor]) -> None:
        """Go on from what `to_vector` gave, for tensors of these shapes."""
        self.steps, self._counts = int(state[0]), []
        sizes = [tensor.numel() for tensor in tensors]
        if self.steps:
            self.slots = [
                [
                    part.view_as(t).clone()
                    for part, t in zip(slot.split(sizes), tensors, strict=True)
                ]
                for slot in state[1:].split(sum(sizes))
            ]

    def to_vector(self, tensors: Sequence[Tensor]) -> Tensor:
        """The state for tensors of these shapes as one vector: the steps so far, then the slots."""
        slots = self.slots or [[torch.zeros_like(t) for t in tensors]] * SLOTS[self.kind]
        steps = tensors[0].new_full((1,), self.steps)
        return torch.cat([steps, *(part.reshape(-1) for slot in slots for part in slot)])


def clip_norms(gradients: list[Tensor], most: float, lead: int) -> list[Tensor]:
    """Gradients whose joint norm is at most `most`, as `clip_grad_norm_` makes them.

    With `lead` 1 the first axis of each tensor is that of models, which have a norm each; with 0
    the tensors are those of one model.

    >>> clip_norms([torch.tensor([[3.0], [0.3]]), torch.tensor([[4.0], [0.4]])], 1.0, 1)[1]
    tensor([[0.8000],
            [0.4000]])
    """
    flat = [gradient.reshape(*gradient.shape[:lead], -1) for gradient in gradients]
    norms = torch.stack([torch.linalg.vector_norm(each, dim=-1) for each in flat])
    total = torch.linalg.vector_norm(norms, dim=0)
    factor = (most / (total + CLIP_EPS)).clamp(max=1.0)
    return [
        gradient * factor.view((*factor.shape, *(1 for _ in gradient.shape[lead:])))
        for gradient in gradients
    ]
