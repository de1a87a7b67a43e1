from functools import partial

import numpy as np
import pytest
import torch

import coterie
from coterie import CFL, FPFC, IFCA, FedAvg, FeSEM, Local
from coterie.core.errors import CheckpointError, SettingError
from coterie.core.sampling import Poisson
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings


@pytest.fixture(scope="module")
def digits():
    return coterie.load("rotated-digits", clients=8)


def test_participation_by_fraction_and_by_count(digits):
    for settings, asked in (
        ({}, 8),
        ({"fraction": 0.5}, 4),
        ({"per_round": 3}, 3),
        ({"fraction": 0.01}, 1),
    ):
        run = coterie.simulate(FedAvg(), *digits, rounds=3, **settings)
        assert [record["asked"] for record in run.records] == [asked] * 3


def test_each_round_draws_its_clients_anew(digits):
    seen = set()

    class Noting(FedAvg):
        def round(self, state, clients):
            seen.add(tuple(clients.ids.tolist()))
            return super().round(state, clients)

    coterie.simulate(Noting(), *digits, rounds=6, per_round=3)
    assert len(seen) > 3


def test_in_poisson_sampling_the_number_of_participants_varies(digits):
    run = coterie.simulate(FedAvg(), *digits, rounds=12, fraction=0.3, sampling="poisson")
    asked = [record["asked"] for record in run.records]
    assert len(set(asked)) > 2
    same = coterie.simulate(FedAvg(), *digits, rounds=12, fraction=0.3, sampling="poisson")
    assert torch.equal(run.models, same.models)
    few = Run(FedAvg(), *digits, RunSettings(per_round=2, sampling="poisson"))
    assert few.training.participants.sampling == Poisson(0.25)


@pytest.mark.parametrize(
    "algorithm", [FedAvg(), IFCA(k=2), CFL(), Local(), FPFC(lam=0.3), FeSEM()], ids=str
)
def test_a_round_in_which_nobody_takes_part_is_a_round(algorithm, digits):
    class EverySecondRound:
        def draw(self, round, population, generator, at_least=0):
            return torch.arange(population if at_least or round % 2 else 0)

    run = Run(algorithm, *digits, RunSettings(rounds=4), sampling=EverySecondRound()).complete()
    assert [record["asked"] for record in run.records] == [0, 8, 0, 8]
    assert bool(torch.isfinite(run.models).all())


def test_replies_are_told_from_the_start_on(digits):
    federation, task = digits
    run = Run(IFCA(k=2, start="farthest"), federation, task, RunSettings(rounds=2))
    told: list[tuple[int, int]] = []
    run.complete(on_reply=lambda *news: told.append(news))
    phases = [[count for phase, count in told if phase == number] for number in range(3)]
    assert [phase for phase, _ in told] == sorted(phase for phase, _ in told)
    assert phases[0][-1] > 8  # all clients judge two models, and two train one
    assert phases[1][-1] == phases[2][-1] == 8
    assert all(counts == sorted(counts) for counts in phases)


def test_replies_are_told_of_as_chunks_come_in(digits):
    run = Run(FedAvg(), *digits, RunSettings(rounds=1, chunk=3))
    told: list[tuple[int, int]] = []
    run.complete(on_reply=lambda *news: told.append(news))
    assert told == [(1, 3), (1, 6), (1, 8)]


def test_more_clients_per_round_than_there_are_is_refused(digits):
    with pytest.raises(SettingError, match="at most the number of clients, 8, got 9"):
        coterie.simulate(FedAvg(), *digits, per_round=9)


class Shift:
    """Every second client, from another one in each round; it counts how often it is asked."""

    def __init__(self, first, rates=(0.5,), generator=None):
        self.first, self.rates, self.generator = first, rates, generator
        self._asked = 0

    def draw(self, round, population, generator, at_least=0):
        self._asked += 1
        ids = torch.arange((self.first + round) % 2, population, 2)
        return ids if len(ids) >= at_least else torch.arange(population)


class OtherShift(Shift):
    """The same under another name."""


def every(step, first=0):
    return lambda t: range(first, 8, step)


def of_round(t, *, step=2):
    return range(t % step, 8, step)


@pytest.mark.parametrize(
    ("one", "same", "others"),
    [
        (Shift(0), Shift(0), [Shift(1), Shift(0, (0.5, 1.0)), OtherShift(0), every(2), None]),
        (every(2), every(2), [every(4), every(2, first=1), of_round, Shift(0), None]),
        (
            partial(of_round, step=2),
            partial(of_round, step=2),
            [partial(of_round, step=4), of_round, None],
        ),
        (Poisson(0.5), Poisson(0.5), [Poisson(0.25), None]),
        (Shift(0, np.ones(2)), Shift(0, np.ones(2)), [Shift(0, np.zeros(2)), Shift(0, [1.0, 1.0])]),
        (
            Shift(0, torch.ones(2), np.random.default_rng(0)),
            Shift(0, torch.ones(2), np.random.default_rng(1)),
            [Shift(0, torch.zeros(2), np.random.default_rng(0))],
        ),
    ],
    ids=["object", "closure", "partial", "built-in", "array", "generator"],
)
def test_a_folder_is_resumed_with_its_own_participants_only(digits, tmp_path, one, same, others):
    settings = {"folder": tmp_path, "rounds": 2, "per_round": 1}
    before = coterie.simulate(FedAvg(), *digits, participants=one, **settings)
    for other in others:
        with pytest.raises(CheckpointError, match="other settings, data or participants"):
            coterie.simulate(FedAvg(), *digits, participants=other, resume=True, **settings)
    settings["rounds"] = 3
    after = coterie.simulate(FedAvg(), *digits, participants=same, resume=True, **settings)
    assert after.rounds == 3
    assert [r["metrics"] for r in after.records[:2]] == [r["metrics"] for r in before.records]


def test_the_participants_of_a_grid_are_those_it_was_begun_with(digits, tmp_path):
    settings = {"folder": tmp_path, "rounds": 2, "grid": {"lr": [0.1, 0.2]}}
    coterie.simulate(FedAvg(), *digits, participants=Shift(0), **settings)
    with pytest.raises(CheckpointError, match="other settings, data or participants"):
        coterie.simulate(FedAvg(), *digits, participants=Shift(1), resume=True, **settings)
    settings["rounds"] = 3
    run = coterie.simulate(FedAvg(), *digits, participants=Shift(0), resume=True, **settings)
    assert run.rounds == 3
