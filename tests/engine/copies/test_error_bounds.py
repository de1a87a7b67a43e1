"""Choices that are known before they are made are those that would have been made."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import coterie
from coterie import Regression
from coterie.core.rows import Rows
from coterie.data.federation import Samples
from coterie.engine.copies.error_bounds import (
    ErrorBounds,
    bound_largest_eigenvalue,
    lipschitz_constants,
)
from coterie.engine.copies.shared_work import SharedWork
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel
from coterie.experiment.grid import Grid
from coterie.experiment.settings import RunSettings


class Counting(BatchedKernel):
    """Counts the models that are compared."""

    compared = 0

    def losses(self, models, rows):
        self.compared += len(models)
        return super().losses(models, rows)


def problem(sizes, features, bias, seed):
    """Clients of two lines, a task for them, and a generator."""
    generator = torch.Generator().manual_seed(seed)
    task = Regression(nn.Linear(features, 1, bias=bias).double())
    lines = torch.randn(2, features, generator=generator).double()
    clients = []
    for i, n in enumerate(sizes):
        x = torch.randn(n, features, generator=generator).double()
        noise = 0.1 * torch.randn(n, generator=generator).double()
        clients.append((x, x @ lines[i % 2] + noise))
    rows = Samples.of(clients).rows(torch.arange(len(sizes)))
    return task, Rows(rows.x, task.targets(rows.y), rows.size), generator


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    features=st.integers(1, 4),
    bias=st.booleans(),
    k=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_choices_are_those_of_models_that_are_compared_anew(sizes, features, bias, k, seed):
    """While models walk in smaller and smaller steps, for clients of whom some are away."""
    task, rows, generator = problem(sizes, features, bias, seed)
    shared_work, alone = SharedWork(Counting(task), len(sizes)), PerClientKernel(task)
    models = torch.randn(2, k, task.layout.size, generator=generator).double()
    for step in range(12):
        there = torch.rand(len(sizes), generator=generator) < 0.8
        ids = there.nonzero()[:, 0] if there.any() else torch.arange(len(sizes))
        some = Rows(*(part[ids] for part in rows))
        for j, (index, model) in enumerate(shared_work.choices(list(models), some, ids)):
            expected, own = alone.choose(models[j], some)
            assert index.equal(expected)
            torch.testing.assert_close(model + 0, own + 0)
            torch.testing.assert_close(
                shared_work.gradients([model, model], some)[1], alone.gradient(own, some, [0] * 9)
            )
        models = models + 0.5**step * torch.randn(models.shape, generator=generator).double()


def test_models_that_hardly_move_are_not_compared_again():
    task, rows, _ = problem([9, 8, 9, 7], 3, False, 0)
    kernel, ids = Counting(task), torch.arange(4)
    shared_work = SharedWork(kernel, 4)
    near = torch.stack([torch.linalg.lstsq(rows.x[i], rows.y[i]).solution for i in (0, 1)])
    far = 1.2 * near

    def chosen(*models):
        before = kernel.compared
        indices = [index.tolist() for index, _ in shared_work.choices(list(models), rows, ids)]
        return indices, kernel.compared - before

    assert chosen(near, far) == ([[0, 1, 0, 1], [0, 1, 0, 1]], 4)
    assert chosen(near, far) == ([[0, 1, 0, 1], [0, 1, 0, 1]], 0)
    assert chosen(near + 1e-3, far) == ([[0, 1, 0, 1], [0, 1, 0, 1]], 0)
    # The models of the first copy change places: only they are compared, and chosen the other way.
    assert chosen(near.flip(0), far) == ([[1, 0, 1, 0], [0, 1, 0, 1]], 2)
    # Of another number of copies nothing is known.
    assert chosen(near, far, far)[1] == 6
    # One that has diverged is nobody's choice.
    lost = far.clone()
    lost[0] = torch.nan
    assert chosen(near, far, lost) == ([[0, 1, 0, 1], [0, 1, 0, 1], [1, 1, 1, 1]], 2)


def test_it_does_not_pay_for_many_samples_and_few_models():
    models = torch.zeros(2, 2, 50)
    for n, features, expected in ((32, 50, True), (33, 50, False), (90, 32, True)):
        rows = Rows(torch.zeros(1, n, features), torch.zeros(1, n), torch.tensor([n]))
        assert ErrorBounds.are_cheap(models, rows) is expected


@pytest.mark.parametrize("bias", [False, True])
def test_an_error_moves_no_further_than_the_model_times_the_lipschitz_constant(bias):
    task, rows, generator = problem([5, 3, 1, 8], 4, bias, 3)
    models = torch.randn(50, task.layout.size, generator=generator).double()
    errors = PerClientKernel(task).losses(models, rows).sqrt()  # [4, 50]
    moves = (models[:, None] - models).norm(dim=2)
    changes = (errors[:, :, None] - errors[:, None]).abs()
    bound = lipschitz_constants(rows, bias)
    assert (changes <= bound[:, None, None] * moves + 1e-12).all()
    exact = [
        torch.linalg.matrix_norm(
            torch.cat([x[:n], torch.ones(n, int(bias)).double()], 1), 2
        ) / n**0.5
        for x, n in zip(rows.x, rows.size.tolist(), strict=True)
    ]  # fmt: skip
    ratio = bound / torch.stack(exact)
    assert (ratio >= 1).all()
    assert (ratio < 1.06).all()


def test_the_bound_of_an_eigenvalue():
    equal = torch.eye(100)[None] * 7
    assert 7 <= float(bound_largest_eigenvalue(equal)) < 7 * 1.16
    assert float(bound_largest_eigenvalue(torch.zeros(1, 3, 3))) < 1e-30
    large = torch.full((1, 2, 2), 1e15)
    assert 2e15 <= float(bound_largest_eigenvalue(large)) < 2.01e15


class Absolute(Regression):
    def losses(self, output, y):
        return (output.squeeze(-1) - y).abs()


def test_only_squared_errors_of_linear_models_have_bounds():
    line = nn.Linear(2, 1)
    assert SharedWork(BatchedKernel(Regression(line)), 3).bounds is not None
    assert SharedWork(BatchedKernel(Absolute(line)), 3).bounds is None
    assert SharedWork(BatchedKernel(Regression(nn.Sequential(line, nn.Tanh()))), 3).bounds is None
    assert SharedWork(BatchedKernel(coterie.Classification(nn.Linear(2, 2))), 3).bounds is None


@pytest.mark.filterwarnings("ignore:one of 2 clusters")
def test_a_grid_compares_few_models_once_clusters_rest(monkeypatch):
    compared = []
    plain = BatchedKernel.losses
    monkeypatch.setattr(
        BatchedKernel,
        "losses",
        lambda self, m, rows: compared.append(len(m)) or plain(self, m, rows),
    )
    data = coterie.load("linear-mixture", groups=2, clients=12, samples=15, features=8, seed=1)
    algorithm = coterie.IFCA(k=2, average="gradients", start="random", lr=0.2)
    settings = RunSettings(rounds=40, starts=3, seed=2, evaluate=40)
    grid = Grid(algorithm, *data, settings, {})
    grid.complete()
    assert 0 < sum(compared) < 0.4 * 40 * 6  # of three copies with two models each
    for copy in grid.copies:
        alone = coterie.experiment.run.Run(algorithm, *data, settings, start=copy.start)
        alone.complete()
        torch.testing.assert_close(copy.run.models, alone.models)
        assert copy.run.clusters.equal(alone.clusters)


def test_gradients_that_somebody_has_are_not_written_over():
    task, rows, generator = problem([4, 4, 4], 3, False, 5)
    shared_work = SharedWork(BatchedKernel(task), 3)
    models = torch.randn(3, 2, 3, 3, generator=generator).double()
    kept = shared_work.gradients(list(models[0]), rows)[0]
    place = kept.formula.rows.data_ptr()
    second = shared_work.gradients(list(models[1]), rows)
    assert second[0].formula.rows.data_ptr() != place
    third = shared_work.gradients(list(models[2]), rows)
    for found, own in ((kept, models[0, 0]), (second[1], models[1, 1]), (third[1], models[2, 1])):
        torch.testing.assert_close(found + 0, PerClientKernel(task).gradient(own, rows, [0] * 9))
    del kept, found
    again = shared_work.gradients(list(models[0]), rows)
    assert again[0].formula.rows.data_ptr() == place
