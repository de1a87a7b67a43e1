import pytest
import torch

import coterie
from coterie import CFL, FPFC, IFCA, FedAvg, FeSEM, Local
from coterie.core.errors import SettingError
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
