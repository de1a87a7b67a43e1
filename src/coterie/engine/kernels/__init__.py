"""How the work on a cohort is done: one client after another, or a chunk at once."""

from __future__ import annotations

import torch

from coterie.core.kernel import Kernel
from coterie.core.task import Task
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.linear_layers import is_linear_stack
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.kernels.vmapped import VmappedKernel
from coterie.tensors.devices import CPU


def kernel_for(task: Task, sample_axes: int = 1, device: torch.device = CPU) -> Kernel:
    """The fastest kernel that is exact for the network of `task` on samples with so many axes.

    These are 0 where a sample is more than one tensor with one target (`Samples.tensor_axes`). On a
    CPU one client after another is faster than many at once, but for stacks of linear layers and
    for what the task says is so small that calls take longer than the work.
    """
    if sample_axes and is_linear_stack(task.module, sample_axes):
        return BatchedKernel(task)
    one_by_one = device.type == "cpu" and not (sample_axes and task.side_by_side)
    return PerClientKernel(task) if one_by_one else VmappedKernel(task, device)
