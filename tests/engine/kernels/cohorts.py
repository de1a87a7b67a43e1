"""Cohorts for the tests of kernels."""

import torch
from torch import nn

from coterie import Classification
from coterie.core.cohort import Cohort
from coterie.core.rows import Rows
from coterie.data.federation import Samples
from coterie.engine.client_memory import ClientMemory
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel


def cohort(task, kernel, sizes, features, outputs, seed):
    generator = torch.Generator().manual_seed(seed)
    clients = []
    for n in sizes:
        x = torch.randn(n, features, generator=generator).double()
        y = torch.randint(outputs, (n,), generator=generator)
        clients.append((x, y))
    rows = Samples.of(clients).rows(torch.arange(len(sizes)))
    rows = Rows(rows.x, task.targets(rows.y), rows.size)
    return Cohort(
        torch.arange(len(sizes)),
        rows,
        task,
        kernel(task),
        ClientMemory(len(sizes)),
        round=0,
        address=(0,),
    )


def both(module, sizes, features, start, **work):
    """Where a descent ends for the reference and for the batched kernel."""
    task = Classification(module.double())
    one, two = (
        cohort(task, kernel, sizes, features, 3, 0) for kernel in (PerClientKernel, BatchedKernel)
    )
    found = two.descend(start, lr=0.2, **work)
    return one.descend(start, lr=0.2, **work), found


def tied():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module
