"""Flat vectors as networks of PyTorch, ready to predict."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.task import Task


def load_model(task: Task, vector: Tensor) -> nn.Module:
    """A copy of the task's network with the weights of a flat vector [d]."""
    module = copy.deepcopy(task.module)
    tensors = {name: value.clone() for name, value in task.layout.unflatten(vector).items()}
    module.load_state_dict(tensors, strict=False)
    return module.eval()


class MixtureModule(nn.Module):
    """Several models whose predictions are mixed in shares [1, k], as the task mixes them.

    Models without a share are left out.
    """

    def __init__(self, task: Task, models: Tensor, shares: Tensor) -> None:
        super().__init__()
        used = shares[0] > 0
        self.parts = nn.ModuleList(load_model(task, model) for model in models[used])
        self.register_buffer("shares", shares[:, used].clone())
        self.mix = task.mix
        self.eval()

    def forward(self, *inputs: Any) -> Tensor:
        outputs = torch.stack([part(*inputs) for part in self.parts])  # [k, n, ...]
        return self.mix(outputs[:, None], self.get_buffer("shares"))[0]
