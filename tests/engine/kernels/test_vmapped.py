"""Many clients at once by `vmap` are the same as one after another; tried here on the CPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie import Classification, Regression
from coterie.engine.kernels import vmapped
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.kernels.vmapped import VmappedKernel
from coterie.networks import CifarCnn
from coterie.tasks import Centre
from coterie.tensors.lazy import select_rows
from tests.engine.kernels.cohorts import cohort, tied


def convolutions(channels, outputs, norm):
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, channels, 2, padding=1),
        nn.GroupNorm(1, channels) if norm else nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * 2 * 2, outputs),
    )


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    channels=st.integers(1, 3),
    norm=st.booleans(),
    outputs=st.integers(2, 3),
    batch=st.integers(0, 5),
    epochs=st.booleans(),
    weight_decay=st.sampled_from([0.0, 0.1]),
    pull=st.sampled_from([0.0, 0.5]),
    head_only=st.booleans(),
    room=st.sampled_from([1, 2**25]),
    seed=st.integers(0, 1000),
)
def test_all_at_once_equals_one_by_one_for_any_shape_and_work(
    sizes, channels, norm, outputs, batch, epochs, weight_decay, pull, head_only, room, seed
):
    task = Classification(convolutions(channels, outputs, norm).double())
    d = task.layout.size
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(len(sizes), d, generator=generator).double()
    models = torch.randn(3, d, generator=generator).double()
    own = torch.randn(len(sizes), 2, d, generator=generator).double()
    index = torch.randint(3, (len(sizes),), generator=generator)
    work = {"lr": 0.1, "batch": batch, "weight_decay": weight_decay}
    work |= {"epochs": 2} if epochs else {"steps": 3}
    if pull:
        work |= {"pull": torch.rand(d).double(), "anchor": torch.ones_like(start)}
    if head_only:
        work |= {"part": task.layout.part("head")}
    one, two = (
        cohort(task, kernel, sizes, 12, outputs, seed)
        for kernel in (PerClientKernel, VmappedKernel)
    )
    close = torch.testing.assert_close
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vmapped, "SAMPLE_BYTES", room)  # one client at a time, or all
        close(one.loss(models), two.loss(models))
        close(one.loss(own), two.loss(own))
        close(one.gradient(start, batch=batch), two.gradient(start, batch=batch))
        close(one.score(start), two.score(start))
        close(one.score(models[index]), two.score(select_rows(models, index)))
        close(one.descend(start, **work), two.descend(start, **work))
        close(one.descend(models[index], **work), two.descend(select_rows(models, index), **work))
        assert two._kernel._exact
        chosen = two.choose(models)
        assert torch.equal(chosen.cluster, one.choose(models).cluster)
        assert torch.equal(chosen.model, models[chosen.cluster])


class Mixing(nn.Module):
    """Looks at a sample together with the others of its batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x - x.mean(0))


class Counting(nn.Module):
    """Has a buffer that changes in training."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.layer(x)


class Looking(nn.Module):
    """Decides by the numbers themselves, which `vmap` refuses."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x if bool((x > 0).any()) else -x)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
        nn.Sequential(
            nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2)
        ),
        Mixing(),
        Counting(),
        Looking(),
    ],
    ids=["draws", "statistics", "batch norm without them", "mixes", "counts", "looks"],
)
def test_networks_that_cannot_be_done_at_once_go_one_by_one(module):
    task = Classification(module.double())
    one, two = (
        cohort(task, kernel, [6, 4, 2], 4, 2, 0) for kernel in (PerClientKernel, VmappedKernel)
    )
    start = torch.rand(3, task.layout.size, generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(one.loss(start), two.loss(start))
    for work in ({"steps": 2}, {"epochs": 1, "batch": 2}):
        assert torch.equal(one.descend(start, lr=0.1, **work), two.descend(start, lr=0.1, **work))
    for kept in (True, False):
        expected = one.gradient(start, statistics=kept)
        assert torch.equal(two.gradient(start, statistics=kept), expected)
    assert torch.equal(one.score(start), two.score(start))
    assert two._kernel._exact is False


def frozen():
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    return module


class Idle(nn.Module):
    """Has a layer that it does not use, and an order that is in no state dict."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(4, 2), nn.Linear(3, 2)
        self.register_buffer("order", torch.tensor([2, 0, 1, 3]), persistent=False)

    def forward(self, x):
        return self.used(x[:, self.order])


@pytest.mark.parametrize(
    "task",
    [
        Classification(frozen().double()),
        Classification(Idle().double()),
        Classification(tied().double()),
        Classification(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)).double()),
        Regression(nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Flatten(), nn.Linear(4, 1)).double()),
        Centre(4, dtype=torch.float64),
    ],
    ids=["frozen", "not used", "used twice", "in place", "regression", "centre"],
)
def test_unusual_networks_are_done_at_once(task):
    one, two = (
        cohort(task, kernel, [5, 3, 2], 4, 2, 0) for kernel in (PerClientKernel, VmappedKernel)
    )
    before = two._on.rows.x.clone()
    start = torch.randn(3, task.layout.size, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(one.loss(start), two.loss(start))
    work = {"lr": 0.1, "epochs": 2, "batch": 2}
    torch.testing.assert_close(one.descend(start, **work), two.descend(start, **work))
    torch.testing.assert_close(one.gradient(start), two.gradient(start))
    torch.testing.assert_close(one.score(start), two.score(start))
    assert two._kernel._exact
    assert torch.equal(two._on.rows.x, before), "the data changed"


def test_a_network_that_crops_at_random_goes_one_by_one():
    task = Classification(CifarCnn().module((32, 32, 3), 10))
    rows = cohort(Classification(nn.Linear(4, 2)), PerClientKernel, [2], 32 * 32 * 3, 2, 0)._on.rows
    images = rows._replace(x=rows.x.float().view(1, 2, 32, 32, 3))
    assert not VmappedKernel(task).is_exact_for(images)


def test_where_nobody_has_a_sample_the_network_is_still_tried_on_one():
    task = Centre(4, dtype=torch.float64)
    work = cohort(task, VmappedKernel, [2, 3], 4, 2, 0)
    start = torch.zeros(2, 4).double()
    nobody = work.among(torch.zeros(2, 3, dtype=torch.bool))
    assert nobody.score(start).tolist() == [[0, 0], [0, 0]]
    assert work._kernel._exact


@pytest.mark.parametrize("kernel", [VmappedKernel, BatchedKernel])
def test_a_mixture_is_scored_as_one_client_after_another_does_it(kernel):
    task = Classification(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double())
    one, two = (cohort(task, each, [5, 1, 3], 4, 2, 0) for each in (PerClientKernel, kernel))
    generator = torch.Generator().manual_seed(0)
    models = torch.randn(4, task.layout.size, generator=generator).double()
    shares = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    found = two.score_mixture(models, shares.double())
    torch.testing.assert_close(one.score_mixture(models, shares.double()), found)
    nobody = two.among(torch.tensor([[True] * 5, [False] * 5, [True] * 5]))
    torch.testing.assert_close(nobody.score_mixture(models, shares.double())[[0, 2]], found[[0, 2]])
    assert not nobody.score_mixture(models, shares.double())[1].any()
