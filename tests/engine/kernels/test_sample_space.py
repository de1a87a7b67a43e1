"""What is kept between rounds, and the two ways to multiply, change no result."""

import pytest
import torch

import coterie
from coterie import Classification
from coterie.data.federation import Federation, Samples
from coterie.engine.kernels import displaced as moved
from coterie.engine.kernels import sample_space
from coterie.engine.kernels.reference import PerClient
from coterie.engine.kernels.sample_space import Grams
from coterie.engine.simulator import Simulator
from coterie.networks import mlp


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def everything_counts(monkeypatch):
    """Products of any size are kept, and done client by client."""
    monkeypatch.setattr(sample_space, "GRAM_WORK", 0)
    monkeypatch.setattr(moved, "CALL_WORK", 0)


def test_a_product_is_kept_for_its_client(everything_counts):
    grams, x = Grams(), drawn(3, 4, 6)
    torch.testing.assert_close(grams.of(x, torch.tensor([5, 7, 9])), x @ x.mT)
    # Samples never change: what others claim to be theirs is not looked at.
    kept = grams.of(torch.zeros(2, 4, 6), torch.tensor([9, 5]))
    torch.testing.assert_close(kept, (x @ x.mT)[[2, 0]])
    # Whoever is new has it worked out.
    y = drawn(2, 4, 6, seed=1)
    torch.testing.assert_close(grams.of(y, torch.tensor([9, 8])), y @ y.mT)


def test_what_was_kept_is_not_what_is_handed_out(everything_counts):
    """The bias adds 1 to every product it is given."""
    grams, x, ids = Grams(), drawn(2, 4, 6), torch.tensor([0, 1])
    for _ in range(3):
        found = grams.of(x, ids)
        torch.testing.assert_close(found, x @ x.mT)
        found += 1


def test_other_padding_is_worked_out_anew(everything_counts):
    grams, x = Grams(), drawn(1, 4, 6)
    grams.of(x, torch.tensor([0]))
    padded = torch.cat([x, torch.zeros(1, 2, 6)], 1)
    torch.testing.assert_close(grams.of(padded, torch.tensor([0])), padded @ padded.mT)


def test_no_more_is_kept_than_there_is_room_for(everything_counts, monkeypatch):
    monkeypatch.setattr(sample_space, "GRAM_BYTES", 5 * 4 * 4 * 4)
    grams = Grams()
    for first in range(0, 100, 10):
        grams.of(drawn(10, 4, 6), torch.arange(first, first + 10))
    assert len(grams.held) == 5
    assert grams.room == 0


def test_small_products_and_parts_of_samples_are_not_kept(monkeypatch):
    grams, x = Grams(), drawn(2, 4, 6)
    grams.of(x, torch.tensor([0, 1]))
    assert not grams.held
    monkeypatch.setattr(sample_space, "GRAM_WORK", 4 * 4 * 6)
    grams.of(x, None)
    assert not grams.held
    grams.of(x, torch.tensor([0, 1]))
    assert len(grams.held) == 2


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
    task = Classification(mlp(30, 8, 2).double())
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

    for found, exact in zip(ends(simulator.kernel), ends(PerClient(task)), strict=True):
        torch.testing.assert_close(found + 0, exact)
    assert len(simulator.kernel.grams.held) == 6


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_blocks_are_of_like_size_and_keep_all_threads_busy(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for count in (1, 7, 13, 100, 105):
        for most in (0, 1, 6, 13, 200):
            block = sample_space.even(count, most)
            sizes = [min(block, count - begin) for begin in range(0, count, block)]
            assert block % threads == 0
            assert max(sizes) <= max(1, most) + threads
            assert len(sizes) <= -(-count // max(1, most))
    assert sample_space.even(105, 26) == {1: 21, 2: 22, 8: 24}[threads]
