from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie import Regression
from coterie.channel.wrappers import Bytes, Lossy, Metered, Watched
from coterie.core.clients import Each, on_client
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator
from coterie.vectors.folds import ByCluster


class Upload(NamedTuple):
    cluster: Tensor
    model: Tensor
    size: Tensor


class Echo:
    @on_client
    def step(self, cohort, model, number=None):
        return Upload(torch.zeros_like(cohort.ids), model.expand(len(cohort), 4), cohort.size)


def clients(m=6, chunk=2):
    samples = Samples.of([(torch.zeros(2, 1), torch.zeros(2))] * m)
    return Simulator(samples, Regression(nn.Linear(1, 1)), chunk=chunk).at("round", 0)


def test_every_part_is_counted_in_both_directions():
    count = Bytes()
    Metered(clients(), count).run(Echo().step, model=torch.zeros(4))
    assert count.table() == {
        "Echo.step": {
            "down": {"model": 6 * 4 * 4},
            "up": {"cluster": 6 * 8, "model": 6 * 4 * 4, "size": 6 * 8},
        }
    }


def test_each_counts_only_a_clients_own_row_and_a_number_eight_bytes():
    count = Bytes()
    model = Each(torch.zeros(3, 4), torch.zeros(6, dtype=torch.long))
    Metered(clients(), count).run(Echo().step, model=model, number=3)
    assert count.table()["Echo.step"]["down"] == {"model": 6 * 4 * 4, "number": 6 * 8}


def test_lost_replies_are_not_folded_and_not_counted():
    count = Bytes()
    lossy = Metered(Lossy(clients(m=200), 0.3, (0, "round", 0)), count)
    ids, up = lossy.run(Echo().step, model=torch.ones(4), fold=ByCluster(1))
    assert 110 < len(ids) < 170
    assert len(up.cluster) == len(ids)
    assert count.table()["Echo.step"]["up"]["model"] == len(ids) * 16
    assert count.table()["Echo.step"]["down"]["model"] == 200 * 16


def test_replies_are_told_of_as_chunks_come_in():
    told: list[int] = []
    watched = Watched(clients(m=5, chunk=2), told.append)
    watched.run(Echo().step, model=torch.zeros(4))
    assert told == [2, 2, 1]
    watched.only(torch.tensor([1, 3, 4])).run(Echo().step, model=torch.zeros(4))
    assert told == [2, 2, 1, 2, 1]


def test_who_is_lost_depends_on_round_and_client_but_not_on_chunks():
    def answering(round, chunk):
        lossy = Lossy(clients(m=50, chunk=chunk), 0.5, (0, "round", round))
        return lossy.run(Echo().step, model=torch.ones(4))[0].tolist()

    assert answering(1, 1) == answering(1, 50)
    assert answering(1, 1) != answering(2, 1)


def test_replies_are_in_order_of_id_whatever_the_chunks():
    sizes = [5, 1, 4, 2]
    samples = Samples.of([(torch.zeros(n, 1), torch.zeros(n)) for n in sizes])
    some = Simulator(samples, Regression(nn.Linear(1, 1)), chunk=1).at("round", 0)
    ids, up = some.run(Echo().step, model=torch.zeros(4))
    assert ids.tolist() == [0, 1, 2, 3]
    assert up.size.tolist() == sizes
