"""How the work on a cohort is done: one client after another, or a chunk at once."""

from __future__ import annotations

from coterie.core.cohort import Kernel
from coterie.core.task import Task
from coterie.engine.batched import Batched
from coterie.engine.per_client import PerClient


def kernel_for(task: Task, sample_axes: int = 1) -> Kernel:
    """The fastest kernel that is exact for the network of `task` on samples with so many axes."""
    return Batched(task) if Batched.takes(task.module, sample_axes) else PerClient(task)
