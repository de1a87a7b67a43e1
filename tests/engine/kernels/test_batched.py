"""The batched kernel agrees with the reference and with PyTorch's own optimiser."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie import Classification, Regression
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel
from coterie.tensors.lazy import add_cluster_sums
from tests.engine.kernels.cohorts import cohort


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    features=st.integers(1, 12),
    hidden=st.integers(1, 4),
    outputs=st.integers(2, 3),
    batch=st.integers(0, 5),
    epochs=st.booleans(),
    weight_decay=st.sampled_from([0.0, 0.1]),
    pull=st.sampled_from([0.0, 0.5]),
    head_only=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_batched_equals_per_client_for_any_shape_and_work(
    sizes, features, hidden, outputs, batch, epochs, weight_decay, pull, head_only, seed
):
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, outputs, bias=False)
    )
    task = Classification(module.double())
    d = task.layout.size
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(len(sizes), d, generator=generator).double()
    models = torch.randn(3, d, generator=generator).double()
    own = torch.randn(len(sizes), 2, d, generator=generator).double()
    work = {"lr": 0.1, "batch": batch, "weight_decay": weight_decay}
    work |= {"epochs": 2} if epochs else {"steps": 3}
    if pull:
        work |= {"pull": pull, "anchor": torch.ones_like(start)}
    if head_only:
        work |= {"part": task.layout.part("head")}
    one, two = (
        cohort(task, kernel, sizes, features, outputs, seed)
        for kernel in (PerClientKernel, BatchedKernel)
    )
    torch.testing.assert_close(one.loss(models), two.loss(models))
    torch.testing.assert_close(one.loss(own), two.loss(own))
    torch.testing.assert_close(one.gradient(start, batch=batch), two.gradient(start, batch=batch))
    torch.testing.assert_close(one.score(start), two.score(start))
    torch.testing.assert_close(one.descend(start, **work), two.descend(start, **work))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=20),
    features=st.integers(1, 20),
    k=st.integers(1, 4),
    bias=st.booleans(),
    spread=st.sampled_from([0.01, 1.0, 10.0]),
    regression=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_choosing_and_training_on_equals_losses_and_training_one_by_one(
    sizes, features, k, bias, spread, regression, seed
):
    """Without forming anybody's model: the chosen one, where it ends, and the sums per cluster."""
    outputs = 1 if regression else 3
    module = nn.Sequential(nn.Linear(features, 4, bias=bias), nn.ReLU(), nn.Linear(4, outputs))
    task = (Regression if regression else Classification)(module.double())
    generator = torch.Generator().manual_seed(seed)
    models = spread * torch.randn(k, task.layout.size, generator=generator).double()
    one, two = (
        cohort(task, kernel, sizes, features, 3, seed)
        for kernel in (PerClientKernel, BatchedKernel)
    )
    cluster, model = two.choose(models)
    assert torch.equal(cluster, one.loss(models).argmin(1))
    member = torch.rand(k, len(sizes), generator=generator).double()
    for _ in range(2):  # what the choice found out on the way is not used up
        slow, fast = (
            one.descend(models[cluster], lr=0.01, steps=3),
            two.descend(model, lr=0.01, steps=3),
        )
        sums = torch.zeros(k, task.layout.size).double()
        add_cluster_sums(sums, member, fast)
        torch.testing.assert_close(sums, member @ slow)
        torch.testing.assert_close(fast, slow)
    shared = models[:1].expand(len(sizes), -1)
    torch.testing.assert_close(
        two.descend(shared, lr=0.01, steps=3), one.descend(shared, lr=0.01, steps=3)
    )


def test_descent_is_that_of_torch_optim():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    task = Classification(module)
    work = cohort(task, BatchedKernel, [7], 3, 2, seed=1)
    start = task.layout.flatten(module)
    end = work.descend(start[None], lr=0.3, steps=5, weight_decay=0.01)
    ((x, y),) = list(work)
    weights, biases = ([p for p in module.parameters() if p.dim() == axes] for axes in (2, 1))
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases}]
    optimiser = torch.optim.SGD(groups, lr=0.3)
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    torch.testing.assert_close(end[0], task.layout.flatten(module))
