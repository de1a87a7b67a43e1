import math

import numpy as np
import pytest
import torch

from coterie import UIFCA, Density, Federation, simulate
from coterie.algorithms import uifca_exact
from coterie.engine.simulator import Simulator
from coterie.networks.flows import LinearFlowModule
from coterie.tensors.lazy import Lazy
from coterie.vectors.moments import SecondMoments, second_moments


def ran(clients, dtype=torch.float64, rounds=1, chunk=0, **settings):
    federation = Federation.from_clients([(x.to(dtype), label) for x, label in clients])
    task = Density(LinearFlowModule([clients[0][0].shape[1]]).to(dtype))
    algorithm = UIFCA(**{"fit": "exact", "start": "truth", "shrinkage": 0.0, **settings})
    return simulate(algorithm, federation, task, rounds=rounds, chunk=chunk)


def distribution(run, j):
    """Mean and covariance of a model: (A (x - shift) / scale + c) is standard normal."""
    tensors = run.task.layout.unflatten(run.models[j].double())
    A = (tensors["A"] / tensors["inputs.scale"]).numpy()
    mean = tensors["inputs.shift"].numpy() - np.linalg.solve(A, tensors["c"].numpy())
    return mean, np.linalg.inv(A.T @ A)


def test_a_gaussian_on_a_line_by_hand():
    # 0, 2 and 4, 6: mean 3, variance (9 + 1 + 1 + 9) / 4 = 5. The mean of -log p is
    # log(2 pi 5) / 2 + 1/2.
    clients = [(torch.tensor([[0.0], [2.0]]), [0, 0]), (torch.tensor([[4.0], [6.0]]), [0, 0])]
    run = ran(clients, k=1)
    mean, covariance = distribution(run, 0)
    assert (mean.item(), covariance.item()) == (pytest.approx(3), pytest.approx(5))
    assert run.metrics["train_loss"] == pytest.approx(math.log(10 * math.pi) / 2 + 0.5)


def clients_of(seed, sizes, features, k, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(n, features, generator=generator).double() + offset,
            torch.randint(k, (n,), generator=generator),
        )
        for n in sizes
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chunk", [0, 1])
def test_the_fit_is_the_covariance_of_numpy_whoever_has_the_samples(seed, chunk):
    clients = clients_of(seed, (3, 40, 1, 25), 4, 2)
    run = ran(clients, k=2, chunk=chunk)
    x, label = (torch.cat(part).numpy() for part in zip(*clients, strict=True))
    for j in range(2):
        mean, covariance = distribution(run, j)
        np.testing.assert_allclose(mean, x[label == j].mean(0), atol=1e-9)
        np.testing.assert_allclose(covariance, np.cov(x[label == j].T, bias=True), atol=1e-9)


@pytest.mark.parametrize("chunk", [0, 1])
def test_samples_far_from_zero_lose_no_precision(chunk):
    clients = clients_of(0, (50, 60), 3, 2, offset=3000.0)
    run = ran(clients, torch.float32, k=2, chunk=chunk)
    x, label = (torch.cat(part).numpy() for part in zip(*clients, strict=True))
    for j in range(2):
        _, covariance = distribution(run, j)
        np.testing.assert_allclose(covariance, np.cov(x[label == j].T, bias=True), atol=2e-3)


def test_uploads_that_are_formed_are_as_precise(monkeypatch):
    """As a node sends them that does not fold what its clients upload."""
    clients = clients_of(0, (50, 60), 3, 1, offset=3000.0)
    formed = lambda *given: second_moments(*given).dense()  # noqa: E731
    monkeypatch.setattr(uifca_exact, "second_moments", formed)
    run = ran(clients, torch.float32, k=1)
    _, covariance = distribution(run, 0)
    x = torch.cat([x for x, _ in clients]).numpy()
    np.testing.assert_allclose(covariance, np.cov(x.T, bias=True), atol=2e-3)


def test_shrinkage_is_annealed():
    # Variances 4 and 1 around zero: the sphere has 2.5. Shares 1, 1/2, 1/4 of it.
    x = torch.tensor([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]])
    for rounds, share in ((1, 1.0), (2, 0.5), (3, 0.25)):
        run = ran([(x, [0] * 4)], k=1, shrinkage=1.0, annealing=0.5, rounds=rounds)
        expected = (1 - share) * np.diag([4.0, 1.0]) + share * 2.5 * np.eye(2)
        np.testing.assert_allclose(distribution(run, 0)[1], expected, atol=1e-9)


def test_second_moments_of_clients_are_never_formed(monkeypatch):
    """In the simulator all that is formed are k matrices, however many clients there are."""

    def dense(self):
        raise AssertionError("second moments of single clients were formed")

    monkeypatch.setattr(SecondMoments, "dense", dense)
    run = ran(clients_of(0, (9,) * 12, 5, 3), k=3, start="random", restarts=2, rounds=3)
    assert bool(run.models.isfinite().all())


def test_a_client_step_gives_what_is_not_formed():
    clients = Simulator(
        Federation.from_clients(clients_of(0, (4, 6), 3, 2)).train,
        Density(LinearFlowModule([3]).double()),
    )
    algorithm = UIFCA(k=2, fit="exact", start="truth")
    cohort = clients.cohort(torch.arange(2), 0, (0,))
    sent = {
        "judges": torch.zeros(0, 13).double(),
        "constants": torch.zeros(1, 2).double(),
        "chosen": torch.zeros(0, 0, 0).double(),
        "components": torch.zeros(0, 0).double(),
        "scaling": torch.tensor([0.0, 0.0, 0.0, 1.0]).double(),
        "number": torch.tensor(0),
        "seed": torch.tensor(0),
    }
    up = algorithm.measure_sets(cohort, **sent)
    assert isinstance(up.square, Lazy)
    assert up.square.formed is None
    assert up.square.shape == (2, 2, 9)
    assert up.size.sum(1).tolist() == [4, 6]
