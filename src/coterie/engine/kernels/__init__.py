"""How the work on a cohort is done: one client after another, or a chunk at once."""

from __future__ import annotations

import torch

from coterie.core.cohort import Kernel
from coterie.core.task import Task
from coterie.engine.kernels.batched import Batched
from coterie.engine.kernels.linear_layers import is_plain
from coterie.engine.kernels.reference import PerClient
from coterie.engine.kernels.vmapped import Vmapped
from coterie.tensors.devices import CPU


def kernel_for(task: Task, sample_axes: int = 1, device: torch.device = CPU) -> Kernel:
    """The fastest kernel that is exact for the network of `task` on samples with so many axes.

    On a CPU one client after another is faster than many at once, but for stacks of linear layers.
    """
    if is_plain(task.module, sample_axes):
        return Batched(task)
    return PerClient(task) if device.type == "cpu" else Vmapped(task, device)
