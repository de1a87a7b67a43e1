import pytest

import coterie
from coterie import IFCA, FedAvg
from coterie.core.errors import SettingError
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
