"""One client after another, for any network."""

import copy

import pytest
import torch
from torch import nn

from coterie import Classification
from coterie.core.errors import DataError
from coterie.engine.kernels import kernel_for
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.kernels.vmapped import VmappedKernel
from tests.engine.kernels.cohorts import cohort

FROZEN = {
    "first layer": lambda: nn.Sequential(frozen(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)),
    "last layer": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), frozen(nn.Linear(4, 2))),
    "bias": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), frozen(nn.Linear(4, 2), "bias")),
    "normalisation": lambda: nn.Sequential(
        nn.Linear(3, 4), frozen(nn.BatchNorm1d(4)), nn.Linear(4, 2)
    ),
}


def frozen(layer, name=""):
    """A layer that is not trained, or a weight of it that is not."""
    for key, weight in layer.named_parameters():
        weight.requires_grad_(bool(name) and key != name)
    return layer


@pytest.mark.parametrize("kind", FROZEN)
@pytest.mark.parametrize("kernel", [PerClientKernel, VmappedKernel, kernel_for])
def test_frozen_weights_are_those_of_the_module_in_every_kernel(kind, kernel):
    """As a plain loop of PyTorch on the module itself has it."""
    torch.manual_seed(0)
    module = FROZEN[kind]().double()
    task = Classification(copy.deepcopy(module))
    work = cohort(task, kernel, [5, 5], 3, 2, seed=0)
    start = task.layout.flatten(module).repeat(2, 1)
    ends = work.descend(start, lr=0.1, steps=3)
    for i, (x, y) in enumerate(work):
        plain = copy.deepcopy(module).train()
        optimiser = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            nn.functional.cross_entropy(plain(x), y).backward()
            optimiser.step()
        torch.testing.assert_close(ends[i], task.layout.flatten(plain))
        loss = nn.functional.cross_entropy(plain.eval()(x), y)
        torch.testing.assert_close(work.loss(ends[:, None])[i, 0], loss.detach())


def test_a_parameter_that_is_not_used_stays():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    task = Classification(Idle().double())
    start = torch.ones(1, task.layout.size).double()
    end = cohort(task, PerClientKernel, [5], 3, 2, seed=0).descend(start, lr=0.1, steps=1)
    idle = task.layout.part("idle")
    assert torch.equal(end[:, idle], start[:, idle])


def test_a_network_that_works_in_place_does_not_change_the_data():
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)).double()
    task = Classification(module)
    work = cohort(task, PerClientKernel, [5], 3, 2, seed=0)
    before = work._on.rows.x.clone()
    model = torch.zeros(1, task.layout.size).double()
    work.loss(model)
    work.descend(model, lr=0.1, steps=2)
    work.score(model)
    task.probe(before[0])
    assert torch.equal(before, work._on.rows.x)


def test_batch_normalisation_of_one_sample_is_told_in_a_sentence():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    task = Classification(module)
    start = task.layout.flatten(module)[None]
    with pytest.raises(DataError, match="cannot train on a batch of 1"):
        cohort(task, PerClientKernel, [1], 3, 2, seed=0).descend(start, lr=0.1, steps=1)


class Viewed(nn.Module):
    """Views the output of a convolution in another shape, which forbids channels last."""

    def __init__(self):
        super().__init__()
        self.convolution, self.head = nn.Conv2d(2, 3, 2), nn.Linear(12, 2)

    def forward(self, x):
        return self.head(self.convolution(x.view(-1, 2, 3, 3)).view(len(x), -1))


@pytest.mark.parametrize("view", [True, False])
def test_convolutions_have_their_channels_last_where_the_network_allows_it(view):
    module = (
        Viewed()
        if view
        else nn.Sequential(
            nn.Unflatten(1, (2, 3, 3)), nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 2)
        )
    ).double()
    task = Classification(module)
    work = cohort(task, PerClientKernel, [6], 18, 2, seed=0)
    start = task.layout.flatten(module)[None]
    end = work.descend(start, lr=0.1, steps=3)
    assert work._kernel._channels_last is not view
    ((x, y),) = list(work)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    torch.testing.assert_close(end[0], task.layout.flatten(module))
