"""Sample space, what is kept between rounds and the two ways to multiply change no result."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import coterie
from coterie import Classification
from coterie.data.federation import Federation, Samples
from coterie.engine.kernels import gram_cache, matmul, sample_space
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.simulator import Simulator
from coterie.networks import mlp
from coterie.tensors.lazy import Lazy, add_cluster_sums, select_rows
from tests.engine.kernels.cohorts import both, cohort


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def everything_counts(monkeypatch):
    """Products of any size are kept, and done client by client."""
    monkeypatch.setattr(gram_cache, "GRAM_WORK", 0)
    monkeypatch.setattr(matmul, "CALL_WORK", 0)


def federation():
    """Six clients of unequal size in two groups: the second one has its labels the other way."""
    clients = []
    for i, n in enumerate([20, 18, 20, 15, 11, 20]):
        x = drawn(n, 30, seed=i).double()
        y = (x[:, 0] > 0).long()
        clients.append((x, y if i % 2 else 1 - y))
    return Federation(Samples.of(clients))


def after(rounds, algorithm, **options):
    torch.manual_seed(0)
    task = Classification(lambda: mlp(30, 8, 2).double())
    return coterie.simulate(algorithm, federation(), task, rounds=rounds, **options).models


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize(
    "algorithm",
    [
        coterie.FedAvg(lr=0.3, steps=3, weighting="size"),
        coterie.IFCA(k=2, lr=0.3, steps=3, start="random"),
        coterie.IFCA(k=3, lr=0.3, steps=3),
    ],
    ids=["fedavg", "two models", "three models"],
)
def test_what_is_kept_and_how_is_multiplied_changes_nothing(algorithm, fraction, request):
    plain = after(5, algorithm, fraction=fraction)
    request.getfixturevalue("everything_counts")
    found = after(5, algorithm, fraction=fraction)
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-9)


def test_a_part_of_the_samples_does_not_get_what_was_kept_for_all(everything_counts):
    task = Classification(mlp(30, 8, 2).double())
    simulator = Simulator(federation().train, task)
    start = drawn(6, task.layout.size).double()

    def ends(kernel):
        cohort = simulator.cohort(simulator.ids, 0, (0,))
        cohort._kernel = kernel
        parts = [*cohort.split(0.5), cohort, cohort.subset(torch.tensor([4, 1]))]
        return [part.descend(start[: len(part)], lr=0.3, steps=3) for part in parts]

    for found, exact in zip(ends(simulator.kernel), ends(PerClientKernel(task)), strict=True):
        torch.testing.assert_close(found + 0, exact)
    assert len(simulator.kernel.grams.held) == 6


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
    one, two = (
        cohort(task, kernel, sizes, features, 3, 0) for kernel in (PerClientKernel, BatchedKernel)
    )
    torch.testing.assert_close(
        one.descend(start, lr=0.2, steps=6), two.descend(start, lr=0.2, steps=6)
    )


@pytest.fixture
def always_in_sample_space(monkeypatch):
    """Whatever can be done in sample space is, even where it costs more."""
    monkeypatch.setattr(sample_space, "is_faster", lambda *_: True)


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

    monkeypatch.setattr(sample_space.SampleSpaceDescent, "run", refuse)
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
    right = sample_space.is_faster
    monkeypatch.setattr(sample_space, "is_faster", lambda *a: asked.append(right(*a)))
    task = Classification(nn.Sequential(nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 2)).double())
    start = torch.zeros(1, task.layout.size).double()
    start = select_rows(start, torch.tensor([0])) if shared else start
    cohort(task, BatchedKernel, [samples], 784, 2, 0).descend(start, lr=0.1, **work)
    (way,) = asked
    return way
