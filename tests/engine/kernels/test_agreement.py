"""All kernels do the same work: any weights, optimisers, clipping, k models, clients left empty."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import coterie
from coterie import Classification
from coterie.core import seeds
from coterie.core.batches import shuffled_batches
from coterie.engine.copies.lockstep import LockstepKernel, LockstepThreads
from coterie.engine.kernels import sample_space
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.kernels.vmapped import VmappedKernel
from coterie.engine.simulator import Simulator
from coterie.tensors.lazy import dense, select_rows
from tests.engine.kernels.cohorts import cohort

FEATURES, CLASSES = 6, 3


class SampleSpaceKernel(BatchedKernel):
    """Goes through sample space wherever that can be done."""

    def descend(self, start, rows, descent):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sample_space, "is_faster", lambda *_: True)
            return super().descend(start, rows, descent)


class WeightsKernel(BatchedKernel):
    """Never goes through sample space."""

    def descend(self, start, rows, descent):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sample_space, "is_faster", lambda *_: False)
            return super().descend(start, rows, descent)


KERNELS = {
    "reference": PerClientKernel,
    "weights": WeightsKernel,
    "sample space": SampleSpaceKernel,
    "vmapped": VmappedKernel,
    "lock-step": lambda task: LockstepKernel(BatchedKernel(task)),
}
OTHERS = [name for name in KERNELS if name != "reference"]


def network(layers=2, bias=True):
    stack = [nn.Linear(FEATURES, 5, bias=bias), nn.Tanh(), nn.Linear(5, CLASSES)]
    return nn.Sequential(*stack) if layers == 2 else nn.Linear(FEATURES, CLASSES, bias=bias)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def pair(name, sizes, module, seed=0):
    task = Classification(module.double())
    return task, *(
        cohort(task, KERNELS[kernel], sizes, FEATURES, CLASSES, seed)
        for kernel in ("reference", name)
    )


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(OTHERS),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    layers=st.integers(1, 2),
    bias=st.booleans(),
    k=st.integers(0, 3),
    weighting=st.sampled_from(["none", "of clients", "of models", "some without"]),
    batch=st.integers(0, 5),
    amount=st.sampled_from([{"steps": 1}, {"steps": 4}, {"epochs": 2}]),
    optimizer=st.sampled_from(["sgd", "momentum", "adam"]),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    clip=st.sampled_from([0.0, 0.05, 100.0]),
    weight_decay=st.sampled_from([0.0, 0.3]),
    pull=st.sampled_from([0.0, 0.5]),
    moving=st.sampled_from([None, "head", "body"]),
    shared=st.booleans(),
    empty=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_descent_is_that_of_the_reference(
    name,
    sizes,
    layers,
    bias,
    k,
    weighting,
    batch,
    amount,
    optimizer,
    momentum,
    clip,
    weight_decay,
    pull,
    moving,
    shared,
    empty,
    seed,
):
    task, one, two = pair(name, sizes, network(layers, bias), seed)
    m, n, d = len(sizes), max(sizes), task.layout.size
    if empty:
        chosen = torch.rand(m, n, generator=torch.Generator().manual_seed(seed)) < 0.4
        one, two = one.among(chosen), two.among(chosen)
        n = one.mask.shape[1]
    shape = (m, k, d) if k else (m, d)
    start = drawn(*shape, seed=seed)
    if shared:
        start = drawn(1, *shape[1:], seed=seed).expand(shape)
    work = {"lr": 0.1, "batch": batch, "weight_decay": weight_decay, "clip": clip, **amount}
    work |= {"optimizer": optimizer, "momentum": momentum}
    if weighting != "none":
        weights = drawn(m, n, *[k] * (k > 0 and weighting != "of clients"), seed=seed + 1)
        work["weights"] = weights.clamp_min(0) if weighting == "some without" else weights
    if pull:
        work |= {"pull": pull, "anchor": drawn(*shape, seed=seed + 2)}
    if moving and layers == 2:
        work["part"] = moving
    expected, found = one.descend(start, **work), two.descend(start, **work)
    assert found.shape == start.shape
    torch.testing.assert_close(dense(found), expected)
    some = {key: work[key] for key in ("batch", "weight_decay", "clip", "weights") if key in work}
    expected, found = one.gradient(start, **some), two.gradient(start, **some)
    assert found.shape == start.shape
    torch.testing.assert_close(dense(found), expected)
    for models in (drawn(2, d, seed=seed), drawn(m, 2, d, seed=seed)):
        torch.testing.assert_close(two.losses(models), one.losses(models))
        torch.testing.assert_close(two.loss(models), one.loss(models))


@pytest.mark.parametrize("name", KERNELS)
def test_losses_of_samples_have_the_mean_losses_as_their_means(name):
    task, _, work = pair(name, [4, 1, 7], network())
    for models in (drawn(3, task.layout.size), drawn(3, 2, task.layout.size)):
        losses = work.losses(models)
        assert losses.shape == (3, 7, models.shape[-2])
        assert bool((losses[~work.mask] == 0).all())
        means = losses.sum(1) / work.size[:, None]
        torch.testing.assert_close(means, work.loss(models))
        torch.testing.assert_close(work.mask.sum(1), work.size)


@pytest.mark.parametrize("name", KERNELS)
def test_no_loss_of_a_sample_is_nan(name):
    task, _, work = pair(name, [3, 2], network())
    models = torch.full((1, task.layout.size), torch.nan).double()
    losses = work.losses(models)
    assert bool((losses[work.mask] == torch.inf).all())
    assert bool((losses[~work.mask] == 0).all())


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2, "batch": 2}])
def test_weights_of_one_change_nothing(name, work):
    task, _, alone = pair(name, [4, 2, 5], network())
    _, _, weighted = pair(name, [4, 2, 5], network())
    start, weights = drawn(3, task.layout.size), torch.ones(3, 5)
    weights[~alone.mask] = torch.nan  # what stands behind a client's samples is never looked at
    plain = alone.descend(start, lr=0.1, **work)
    assert torch.equal(
        dense(weighted.descend(start, lr=0.1, weights=weights, **work)), dense(plain)
    )
    plain, weighted = alone.gradient(start), weighted.gradient(start, weights=weights)
    assert torch.equal(dense(weighted), dense(plain))


@pytest.mark.parametrize("name", KERNELS)
def test_several_models_of_a_client_are_trained_as_each_would_be_alone(name):
    task, _, work = pair(name, [4, 6], network())
    start, weights = drawn(2, 3, task.layout.size), drawn(2, 6, 3)
    together = work.descend(start, lr=0.1, epochs=2, batch=3, weights=weights)
    for j in range(3):
        _, _, alone = pair(name, [4, 6], network())
        own = alone.descend(start[:, j], lr=0.1, epochs=2, batch=3, weights=weights[:, :, j])
        torch.testing.assert_close(together[:, j], dense(own))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("everybody", [False, True], ids=["one client", "everybody"])
def test_a_client_left_without_samples_stands_still(name, everybody):
    task, _, whole = pair(name, [4, 3, 5], network())
    chosen = torch.ones(3, 5, dtype=torch.bool)
    chosen[slice(None) if everybody else 1] = False
    work = whole.among(chosen)
    still = torch.tensor([True] * 3 if everybody else [False, True, False])
    start = drawn(3, task.layout.size)
    for options in (
        {"steps": 2},
        {"epochs": 1, "batch": 2, "weight_decay": 0.1},
        {"steps": 2, "pull": 1.0, "anchor": start + 1},
        {"steps": 2, "optimizer": "momentum", "part": "head"},
    ):
        end = dense(work.descend(start, lr=0.1, **options))
        assert torch.equal(end[still], start[still])
        assert not (end[~still] == start[~still]).all(1).any()
        assert bool(torch.isfinite(end).all())
    several = torch.stack([start, -start], 1)
    assert torch.equal(work.descend(several, lr=0.1, steps=2)[still], several[still])
    for gradient in (work.gradient(start, weight_decay=0.1), work.gradient(start, batch=1, clip=1)):
        assert bool((gradient[still] == 0).all())
        assert bool((gradient[~still] != 0).any(1).all())
    for models in (drawn(2, task.layout.size), drawn(3, 2, task.layout.size)):
        assert torch.equal(work.loss(models).isinf().all(1), still)
        assert bool((work.losses(models)[still] == 0).all())
    chosen = work.choose(drawn(2, task.layout.size))
    assert chosen.cluster[still].tolist() == [0] * int(still.sum())
    score = work.score(start)
    assert score.shape == whole.score(start).shape
    assert bool((score[still] == 0).all())
    assert bool((score[~still][:, 0] > 0).all())


@pytest.mark.parametrize("name", KERNELS)
def test_a_model_without_weight_stands_still_whatever_pulls_it(name):
    task, _, work = pair(name, [4, 3], network())
    start, weights = drawn(2, 2, task.layout.size), torch.ones(2, 4, 2)
    weights[1, :3, 0] = 0  # what counts of the second client; its padding has weight
    options = {"weights": weights, "weight_decay": 0.1}
    end = work.descend(start, lr=0.1, steps=2, pull=1.0, anchor=start + 1, **options)
    assert torch.equal(end[1, 0], start[1, 0])
    assert not (end == start).all(2)[[0, 0, 1], [0, 1, 1]].any()
    assert bool((work.gradient(start, **options)[1, 0] == 0).all())


@pytest.mark.parametrize("name", ["reference", "vmapped"])
def test_the_statistics_of_a_client_left_empty_stay(name):
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    task, _, work = pair(name, [4, 3], module)
    work = work.among(torch.tensor([[True] * 4, [False] * 4]))
    start = task.layout.flatten(module).expand(2, -1)
    after = work.descend(start, lr=0.1, steps=2)
    statistics = task.layout.unflatten(after)
    assert torch.equal(after[1], start[1])
    assert statistics["1.num_batches_tracked"].tolist() == [2, 0]
    assert bool((work.gradient(start, statistics=True)[1] == 0).all())


def test_copies_in_lockstep_get_what_they_get_alone():
    task = Classification(network().double())
    kernel = LockstepKernel(BatchedKernel(task))
    threads = LockstepThreads(kernel.inner)
    start, weights = drawn(3, 2, 2, task.layout.size), drawn(3, 2, 4)
    chosen = [torch.rand(2, 4, generator=torch.Generator().manual_seed(j)) < 0.5 for j in range(3)]
    shared = cohort(task, lambda _: kernel, [4, 3], FEATURES, CLASSES, 0)

    def ask(work, j):
        own = None if j == 1 else weights[j]  # one of them has no weights
        some = work.among(chosen[j])
        return (
            work.losses(start[j, 0]),
            work.losses(start[j]),
            work.gradient(start[j, 0], weights=own) + 0,
            work.descend(start[j], lr=0.1, steps=2, optimizer="adam", clip=0.1, weights=own),
            some.descend(start[j, 0], lr=0.1, steps=2) + 0,
            some.gradient(start[j, 0]) + 0,
            some.score(start[j, 0]),
            work.minimise(squares, start[j, 0], lr=0.1, steps=1),
        )

    def squares(call, x, y, generator):
        return call(None, x).square().mean()

    answers = threads.run([lambda j=j: ask(fresh(shared), j) for j in range(3)])
    threads.close()
    for j, answer in enumerate(answers):
        alone = cohort(task, PerClientKernel, [4, 3], FEATURES, CLASSES, 0)
        torch.testing.assert_close(answer, ask(alone, j))


def fresh(work):
    """The same clients on the same rows, their randomness at its beginning."""
    rows = work._on.rows
    return type(work)(
        work._on.ids, rows, work.task, work._kernel, work._memory, round=0, address=work._address
    )


def test_a_first_layer_with_momentum_is_not_formed():
    task, _, work = pair("sample space", [4, 3], network())
    start = select_rows(drawn(1, task.layout.size), torch.tensor([0, 0]))
    end = work.descend(start, lr=0.1, steps=3, optimizer="momentum")
    assert getattr(end, "formed", 0) is None
    for formed in ({"optimizer": "adam"}, {"clip": 1.0}):
        end = work.descend(start, lr=0.1, steps=3, **formed)
        assert not hasattr(end, "formed")


def cnn():
    """A small convolutional network with batch normalisation, on images of 6 by 6."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 3 * 3, CLASSES),
    )


def plain_loop(module, batches, optimizer, clip, lr=0.05, weight_decay=0.01):
    """The model after a loop of `torch.optim` over (x, y, weight) of its steps."""
    named = dict(module.named_parameters())
    spared = [p for name, p in named.items() if name.endswith("bias")]
    decaying = [p for name, p in named.items() if not name.endswith("bias")]
    groups = [{"params": decaying, "weight_decay": weight_decay}, {"params": spared}]
    if optimizer == "adam":
        work = torch.optim.Adam(groups, lr=lr)
    else:
        share = 0.9 if optimizer == "momentum" else 0.0
        work = torch.optim.SGD(groups, lr=lr, momentum=share)
    module.train()
    for x, y, weight in batches:
        work.zero_grad()
        losses = nn.functional.cross_entropy(module(x), y, reduction="none")
        ((losses * weight).sum() / len(y)).backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        work.step()


def steps_of(work, i, weights, steps, batch):
    """The samples and weights of a client's steps, of batches that are drawn as `descend` does."""
    x, y = list(work)[i]
    for rows in batches_of(len(y), batch, steps, work, i):
        yield x[rows], y[rows], weights[i, rows]


def batches_of(size, batch, steps, work, i):
    if not batch:
        return [torch.arange(size)] * steps
    generator = seeds.generator(*work._address, work._draws, int(work.ids[i]), "batches")
    return [rows[rows >= 0] for rows in shuffled_batches(size, batch, steps, generator)]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("batch", [0, 4])
@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("kernel", [PerClientKernel, VmappedKernel])
def test_a_convolutional_network_with_batch_normalisation_is_that_of_torch_optim(
    kernel, optimizer, batch, clip
):
    torch.manual_seed(0)
    task = Classification(cnn().double())
    work = cohort(task, kernel, [8, 10], 36, CLASSES, 0)
    start = torch.stack([task.draw(seeds.generator(j)) for j in range(2)])
    weights = torch.rand(2, 10).double()
    options = {"lr": 0.05, "weight_decay": 0.01, "steps": 6, "batch": batch, "clip": clip}
    end = work.descend(start, optimizer=optimizer, weights=weights, **options)
    for i in range(2):
        module = cnn().double()
        module.load_state_dict(task.layout.unflatten(start[i]))
        plain_loop(module, steps_of(work, i, weights, 6, batch), optimizer, clip)
        torch.testing.assert_close(end[i], task.layout.flatten(module))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("batch", [0, 10])
@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize(("double", "most"), [(False, 1e-4), (True, 1e-10)])
def test_local_training_on_rotated_digits_is_that_of_torch_optim(
    optimizer, batch, clip, double, most
):
    """By settings of an algorithm, as every run is.

    In single precision a gradient near zero is rounded, and Adam divides it by its own size.
    """
    federation, task = coterie.load("rotated-digits", clients=8, hidden=20)
    task = task.double() if double else task
    dtype, clients = task.layout.dtype, Simulator(federation.train, task)
    settings = {"lr": 0.05, "weight_decay": 0.01, "steps": 10, "batch": batch, "clip": clip}
    fedavg = coterie.FedAvg(optimizer=optimizer, **settings)
    start = task.draw(seeds.generator(0)).to(dtype)
    work = clients.cohort(clients.ids, 0, (0,))
    end = fedavg.train(work, start).model
    for i in range(8):
        module = copy.deepcopy(task.module)
        module.load_state_dict(task.layout.unflatten(start))
        ones = torch.ones(8, int(work.size.max()), dtype=dtype)
        steps = [(x.to(dtype), y, w) for x, y, w in steps_of(work, i, ones, 10, batch)]
        plain_loop(module, steps, optimizer, clip)
        torch.testing.assert_close(end[i], task.layout.flatten(module), rtol=0, atol=most)
