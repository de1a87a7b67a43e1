import pytest
import torch
from torch import nn

import coterie
from coterie import OneShot, Regression
from coterie.algorithms.one_shot import State
from coterie.channel.metering import ByteMeter
from coterie.core.errors import SettingError
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator
from tests.algorithms.lines import Everybody, line, simulator, start_of


def state(models, cluster):
    return State(torch.tensor(models).view(-1, 1), torch.tensor(cluster))


def test_the_clustering_by_hand():
    # From 0 half the way to the target, and after a second fit three quarters.
    for fits, near, far in ((1, 1.5, -3.5), (2, 2.25, -5.25)):
        once = OneShot(lr=0.25, steps=1, fits=fits)
        found = once.init(start_of(simulator([2, 4, -6, -8], draws=[0])))
        assert found.models.flatten().sort().values.tolist() == [far, near]
        assert found.models[found.cluster].flatten().tolist() == [near, near, far, far]


def test_a_round_by_hand():
    # 1.5 goes half the way to 2 and to 4: 1.75 and 2.75. -3 goes to -4.5.
    once = OneShot(lr=0.25, steps=1)
    clients = simulator([2, 4, -6], sizes=[1, 3, 1])
    for weighting, near in (("equal", 2.25), ("size", 2.5)):
        once = OneShot(lr=0.25, steps=1, weighting=weighting)
        after, info = once.round(state([1.5, -3.0], [0, 0, 1]), clients.at("round", 0))
        assert info.cluster.tolist() == [0, 0, 1]
        assert after.models.flatten().tolist() == [near, -4.5]


def test_clusters_are_fixed():
    # The client at -6 would be better off in cluster 1, but nobody asks again.
    once = OneShot(lr=0.25, steps=1)
    after, info = once.round(state([1.0, -6.0], [0, 0]), simulator([2, -6]).at("round", 0))
    assert info.cluster.tolist() == [0, 0]
    assert after.models.flatten().tolist() == [-0.5, -6.0]  # the empty cluster keeps its model


def test_a_client_that_was_not_clustered_joins_by_loss_when_it_comes():
    once = OneShot(lr=0.25, steps=1)
    clients = simulator([2, -6, -8])
    sent = ByteMeter()
    before = state([2.0, -6.0], [0, 1, -1])
    after, info = once.round(before, clients.at("round", 0).through(listener=sent))
    assert info.cluster.tolist() == [0, 1, 1]
    assert after.models.flatten().tolist() == [2.0, -6.5]
    assert sent.table()["OneShot.choose"]["down"] == {"models": 2 * 4}


def test_everybody_is_asked_once_for_the_clustering_whatever_the_fraction():
    federation, task = coterie.load("rotated-digits", clients=16)
    run = coterie.simulate(OneShot(k=4), federation, task, rounds=3, fraction=0.25)
    table = run.bytes.table()
    model = 4 * task.layout.size
    assert table["OneShot.fit"]["down"] == {"model": 16 * model}
    assert table["OneShot.fit"]["up"]["model"] == 16 * model
    assert table["OneShot.train"]["down"] == {"model": 3 * 4 * model}
    assert run.metrics["ari"] == 1.0


def test_a_part_of_the_model_is_enough():
    federation, task = coterie.load("rotated-digits", clients=16)
    run = coterie.simulate(OneShot(k=4, part="head"), federation, task, rounds=3)
    head = int(task.layout.part("head").sum())
    assert run.bytes.table()["OneShot.fit"]["up"]["model"] == 16 * 4 * head
    assert run.metrics["ari"] == 1.0


def test_clients_that_k_means_did_not_see_join_the_nearest_centre():
    found = OneShot(lr=0.25, steps=1, sample=3).init(
        start_of(simulator([2, 2, 2, 2, -6, -6, -6, -6], draws=[0]))
    )
    cluster = found.cluster.tolist()
    assert cluster[:4] == [cluster[0]] * 4
    assert cluster[4:] == [1 - cluster[0]] * 4


def test_trimming_keeps_a_liar_from_pulling_the_centre():
    # From 0 clients come to 1, ..., 1 (nine of them), 3 (one), and -20 (five).
    targets = [2] * 9 + [6] + [-40] * 5
    found = {
        trim: OneShot(lr=0.25, steps=1, fits=1, trim=trim).init(
            start_of(simulator(targets, draws=[0]))
        )
        for trim in (0.0, 0.1)
    }
    assert found[0.0].models.max().item() == pytest.approx(1.2)
    assert found[0.1].models.max().item() == pytest.approx(1.0)


def test_a_client_whose_model_diverged_is_not_clustered():
    x, y = torch.ones(4, 1), torch.tensor([2.0, 2.0, -6.0, 1.0])
    x[3] = 1e30  # its gradient overflows
    clients = [(x[i : i + 1], y[i : i + 1]) for i in range(4)]
    task = Regression(nn.Linear(1, 1, bias=False), draw=lambda generator: torch.zeros(1))
    simulated = Simulator(Samples.of(clients), task)
    found = OneShot(lr=0.25, steps=2, fits=2).init(start_of(simulated))
    assert found.models.isfinite().all()
    assert found.cluster[3] == -1
    assert (found.cluster[:3] >= 0).all()


def test_replies_that_were_lost_are_asked_for_again():
    class Second(Everybody):
        """Clients of whom only one answers the first call."""

        def sample(self, round, at_least):
            return super().sample(round, at_least).through(HalfDeaf())

    clients = simulator([2, -6], draws=[0])
    start = start_of(clients)
    start = type(start)(Second(clients), start.task, 2, seed=0)
    found = OneShot(lr=0.25, steps=1, fits=1).init(start)
    assert found.models.flatten().sort().values.tolist() == [-3.0, 1.0]


class HalfDeaf:
    """Loses all but one reply to the first call."""

    def apply(self, call, ids, upload):
        first = call.address[-1] == 0
        return (ids[:1], type(upload)(*(v[:1] for v in upload))) if first else (ids, upload)


def test_unseen_clients_choose_by_loss():
    run = coterie.simulate(
        OneShot(lr=0.25),
        line([1, 1, -1, -1]),
        Regression(lambda: nn.Linear(1, 1, bias=False)),
        rounds=3,
    )
    cluster = run.serve(line([-1.2, 0.7]))
    assert cluster.tolist() == [run.clusters[2].item(), run.clusters[0].item()]


def test_settings_out_of_range_are_refused():
    for wrong, sentence in (
        ({"trim": 0.5}, "`trim` of OneShot must be below 0.5, got 0.5"),
        ({"fits": 0}, "`fits` of OneShot must be at least 1, got 0"),
        ({"kept": 0.0}, "`kept` of OneShot must be above 0 and at most 1, got 0"),
    ):
        with pytest.raises(SettingError, match=sentence):
            OneShot(**wrong)
    with pytest.raises(SettingError, match="`k` of OneShot must be at most the number of clients"):
        OneShot(k=3).init(start_of(simulator([1, 2])))
