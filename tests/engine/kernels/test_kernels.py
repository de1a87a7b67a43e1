"""The kernels agree with each other and with PyTorch's own optimiser."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from coterie import Classification, Regression
from coterie.core.cohort import Cohort, Rows
from coterie.core.errors import DataError
from coterie.data.federation import Samples
from coterie.engine.client_memory import ClientMemory
from coterie.engine.kernels import kernel_for, sample_space
from coterie.engine.kernels.batched import Batched
from coterie.engine.kernels.reference import PerClient
from coterie.tensors.lazy import Lazy, add_cluster_sums, select_rows


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
        cohort(task, kernel, sizes, features, outputs, seed) for kernel in (PerClient, Batched)
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
    one, two = (cohort(task, kernel, sizes, features, 3, seed) for kernel in (PerClient, Batched))
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


@pytest.mark.parametrize(("spread", "race"), [(0.01, False), (50.0, True)])
def test_models_race_unless_they_are_close(spread, race, monkeypatch):
    raced, race_of = [], Batched._raced
    monkeypatch.setattr(Batched, "_raced", lambda *a: raced.append(1) or race_of(*a))
    task = Classification(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double())
    generator = torch.Generator().manual_seed(0)
    models = spread * torch.randn(3, task.layout.size, generator=generator).double()
    models[0] = 0
    one, two = (cohort(task, kernel, [20] * 30, 5, 3, 0) for kernel in (PerClient, Batched))
    assert torch.equal(two.choose(models)[0], one.loss(models).argmin(1))
    assert bool(raced) is race


def test_descent_is_that_of_torch_optim():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    task = Classification(module)
    work = cohort(task, Batched, [7], 3, 2, seed=1)
    start = task.layout.flatten(module)
    end = work.descend(start[None], lr=0.3, steps=5, weight_decay=0.01)
    ((x, y),) = list(work)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.3, weight_decay=0.01)
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    torch.testing.assert_close(end[0], task.layout.flatten(module))


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
        nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 2)
        ),
        nn.Sequential(nn.Linear(4, 3), nn.Softmax(1), nn.Linear(3, 2)),
    ],
    ids=["dropout", "batch norm", "convolution", "softmax"],
)
def test_networks_that_are_no_plain_stack_go_one_by_one(module):
    assert isinstance(kernel_for(Classification(module)), PerClient)


def test_a_layer_used_twice_goes_one_by_one():
    layer = nn.Linear(2, 2)
    assert isinstance(kernel_for(Classification(nn.Sequential(layer, nn.ReLU(), layer))), PerClient)


def test_a_plain_stack_is_batched():
    module = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))
    assert isinstance(kernel_for(Classification(module)), Batched)
    assert isinstance(kernel_for(Regression(nn.Linear(3, 1))), Batched)


def test_a_frozen_layer_stays():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    module[0].requires_grad_(False)
    task = Classification(module)
    start = task.layout.flatten(module)[None]
    end = cohort(task, PerClient, [5], 3, 2, seed=0).descend(start, lr=0.1, steps=3)
    frozen = task.layout.part("0")
    assert torch.equal(end[:, frozen], start[:, frozen])
    assert not torch.equal(end[:, ~frozen], start[:, ~frozen])


def test_a_parameter_that_is_not_used_stays():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    task = Classification(Idle().double())
    start = torch.ones(1, task.layout.size).double()
    end = cohort(task, PerClient, [5], 3, 2, seed=0).descend(start, lr=0.1, steps=1)
    idle = task.layout.part("idle")
    assert torch.equal(end[:, idle], start[:, idle])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_descent_in_sample_space_equals_descent_on_the_weights(bias, layers):
    """Fewer samples than features, unequal sizes: the first layer is never formed on the way."""
    sizes, features = [7, 1, 4], 20
    stack = [nn.Linear(features, 5, bias=bias), nn.ReLU(), nn.Linear(5, 6), nn.Tanh()]
    stack += [nn.Linear(6, 3)]
    module = nn.Sequential(*(stack[2 * (3 - layers) :]))
    if layers < 3:
        features = module[0].in_features
        sizes = [3, 1, 2]
    task = Classification(module.double())
    start = torch.randn(3, task.layout.size, generator=torch.Generator().manual_seed(1)).double()
    one, two = (cohort(task, kernel, sizes, features, 3, 0) for kernel in (PerClient, Batched))
    torch.testing.assert_close(
        one.descend(start, lr=0.2, steps=6), two.descend(start, lr=0.2, steps=6)
    )


@pytest.fixture
def always_in_sample_space(monkeypatch):
    """Whatever can be done in sample space is, even where it costs more."""
    monkeypatch.setattr(sample_space, "pays", lambda *_: True)


def both(module, sizes, features, start, **work):
    """Where a descent ends for the reference and for the batched kernel."""
    task = Classification(module.double())
    one, two = (cohort(task, kernel, sizes, features, 3, 0) for kernel in (PerClient, Batched))
    found = two.descend(start, lr=0.2, **work)
    return one.descend(start, lr=0.2, **work), found


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    layers=st.integers(1, 3),
    bias=st.booleans(),
    batch=st.integers(0, 5),
    amount=st.sampled_from(
        [{"steps": 1}, {"steps": 2}, {"steps": 7}, {"epochs": 1}, {"epochs": 3}]
    ),
    weight_decay=st.sampled_from([0.0, 0.1, 4.0]),
    pull=st.sampled_from([0.0, 0.5, 5.0]),
    anchor=st.sampled_from(["the start", "one for all", "of each client"]),
    shared=st.booleans(),
    moving=st.sampled_from(["all", "head", "body"]),
    seed=st.integers(0, 1000),
)
def test_any_work_in_sample_space_equals_that_on_the_weights(
    always_in_sample_space,
    sizes,
    layers,
    bias,
    batch,
    amount,
    weight_decay,
    pull,
    anchor,
    shared,
    moving,
    seed,
):
    stack = [nn.Linear(6, 5, bias=bias), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)]
    module = nn.Sequential(stack[0], *stack[1 : 2 * layers - 1])
    if layers < 3:
        module[-1 if layers == 2 else 0] = nn.Linear(5 if layers == 2 else 6, 3, bias=bias)
    task = Classification(module.double())
    generator = torch.Generator().manual_seed(seed)
    models = torch.randn(2, task.layout.size, generator=generator).double()
    which = torch.randint(2, (len(sizes),), generator=generator)
    start = select_rows(models, which) if shared else models[which].clone()
    anchors = {
        "the start": start,
        "one for all": models[:1].expand(len(sizes), -1),
        "of each client": torch.randn(start.shape, generator=generator).double(),
    }
    work = {**amount, "batch": batch, "weight_decay": weight_decay}
    if pull:
        work |= {"pull": pull, "anchor": anchors[anchor]}
    if moving != "all" and layers > 1:
        work["part"] = task.layout.part(moving)
    exact, found = both(module, sizes, 6, start, **work)
    assert isinstance(found, Lazy)
    member = torch.rand(2, len(sizes), generator=generator).double()
    sums = torch.zeros(2, task.layout.size).double()
    add_cluster_sums(sums, member, found)
    torch.testing.assert_close(sums, member @ exact)
    torch.testing.assert_close(found, exact)


@pytest.mark.parametrize(
    "work",
    [
        {"pull": torch.arange(24.0).double(), "anchor": torch.zeros(1, 24).double()},
        {"part": torch.arange(24) % 2 == 0},
    ],
    ids=["pulled unequally", "half of it frozen"],
)
def test_a_first_layer_that_is_not_treated_alike_is_formed(
    work, always_in_sample_space, monkeypatch
):
    def refuse(*_):
        raise AssertionError("this descent leaves the span")

    monkeypatch.setattr(sample_space.Descending, "from_outputs", refuse)
    start = torch.randn(1, 24, generator=torch.Generator().manual_seed(0)).double()
    exact, found = both(nn.Linear(7, 3), [3], 7, start, steps=2, **work)
    torch.testing.assert_close(found, exact)
    assert not torch.equal(found, start)


@pytest.mark.parametrize(
    ("samples", "work", "there"),
    [
        (50, {"steps": 10}, True),
        (50, {"steps": 1}, True),
        (200, {"steps": 10, "batch": 10}, True),
        (200, {"epochs": 1, "batch": 20}, True),
        (3000, {"steps": 10}, False),  # n^2 outweighs n f
        (3000, {"epochs": 1, "batch": 500}, False),
        (3000, {"steps": 5, "batch": 20}, True),  # a hundred samples are looked at
    ],
)
def test_sample_space_is_where_it_takes_less(samples, work, there, monkeypatch):
    assert chosen_way(samples, work, monkeypatch, shared=True) is there


@pytest.mark.parametrize(("work", "there"), [({"steps": 1}, False), ({"steps": 10}, True)])
def test_one_step_from_a_model_of_ones_own_is_made_on_the_weights(work, there, monkeypatch):
    assert chosen_way(50, work, monkeypatch, shared=False) is there


def chosen_way(samples, work, monkeypatch, *, shared):
    """Whether a descent from shared models, or from one for each client, is in sample space."""
    asked = []
    right = sample_space.pays
    monkeypatch.setattr(sample_space, "pays", lambda *a: asked.append(right(*a)))
    task = Classification(nn.Sequential(nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 2)).double())
    start = torch.zeros(1, task.layout.size).double()
    start = select_rows(start, torch.tensor([0])) if shared else start
    cohort(task, Batched, [samples], 784, 2, 0).descend(start, lr=0.1, **work)
    (way,) = asked
    return way


def pruned():
    """Its weight is computed from another parameter before every use."""
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    l1_unstructured(module[0], "weight", amount=2)
    return module


def tied():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module


@pytest.mark.parametrize(
    ("module", "axes"),
    [
        (tied(), 1),
        (pruned(), 1),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2)), 2),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), 1),
    ],
    ids=["tied", "pruned", "flattened late", "begins in place"],
)
def test_stacks_that_only_look_plain_go_one_by_one(module, axes):
    assert isinstance(kernel_for(Classification(module), axes), PerClient)


def test_a_network_that_works_in_place_does_not_change_the_data():
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)).double()
    task = Classification(module)
    work = cohort(task, PerClient, [5], 3, 2, seed=0)
    before = work._rows.x.clone()
    model = torch.zeros(1, task.layout.size).double()
    work.loss(model)
    work.descend(model, lr=0.1, steps=2)
    work.score(model)
    task.probe(before[0])
    assert torch.equal(before, work._rows.x)


def test_batch_normalisation_of_one_sample_is_told_in_a_sentence():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    task = Classification(module)
    start = task.layout.flatten(module)[None]
    with pytest.raises(DataError, match="cannot train on a batch of 1"):
        cohort(task, PerClient, [1], 3, 2, seed=0).descend(start, lr=0.1, steps=1)


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
    work = cohort(task, PerClient, [6], 18, 2, seed=0)
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
