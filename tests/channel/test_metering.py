import torch
from torch import nn

import coterie
from coterie import Federation
from coterie.channel.lost_replies import LoseReplies
from coterie.channel.metering import ByteMeter
from coterie.core.clients import Each
from coterie.vectors.folds import ByCluster
from tests.channel.echo import Echo, clients


def test_every_part_is_counted_in_both_directions():
    count = ByteMeter()
    clients().through(listener=count).run(Echo().step, model=torch.zeros(4))
    assert count.table() == {
        "Echo.step": {
            "down": {"model": 6 * 4 * 4},
            "up": {"cluster": 6 * 8, "model": 6 * 4 * 4, "size": 6 * 8},
        }
    }


def test_each_counts_only_a_clients_own_row_and_a_number_eight_bytes():
    count = ByteMeter()
    model = Each(torch.zeros(3, 4), torch.zeros(6, dtype=torch.long))
    clients().through(listener=count).run(Echo().step, model=model, number=3)
    assert count.table()["Echo.step"]["down"] == {"model": 6 * 4 * 4, "number": 6 * 8}


def test_lost_replies_are_not_folded_and_not_counted():
    count = ByteMeter()
    lossy = clients(m=200).through(LoseReplies(0.3), listener=count)
    ids, up = lossy.run(Echo().step, model=torch.ones(4), fold=ByCluster(1))
    assert 110 < len(ids) < 170
    assert len(up.cluster) == len(ids)
    assert count.table()["Echo.step"]["up"]["model"] == len(ids) * 16
    assert count.table()["Echo.step"]["down"]["model"] == 200 * 16


def test_a_frozen_layer_is_not_sent():
    """1,000 x 1,000 frozen weights are 4 MB; what is trained behind them are 1,001 numbers."""

    def build():
        frozen = nn.Linear(1000, 1000).requires_grad_(False)
        return nn.Sequential(frozen, nn.ReLU(), nn.Linear(1000, 1))

    data = Federation.from_clients([(torch.rand(3, 1000), torch.rand(3))] * 2)
    run = coterie.simulate(coterie.FedAvg(steps=1), data, coterie.Regression(build), rounds=3)
    clients, rounds, model = 2, 3, 1001 * 4
    assert run.bytes.table()["FedAvg.train"]["up"]["model"] == clients * rounds * model
    assert run.bytes.total("down") == clients * rounds * model
    assert run.models.shape == (1, 1001)
