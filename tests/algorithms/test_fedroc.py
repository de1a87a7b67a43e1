import pytest
import torch

import coterie
from coterie import FedRoC
from coterie.algorithms.fedroc import JudgedBlock, State
from coterie.core.errors import CoterieWarning, SettingError
from tests.algorithms.lines import simulator, start_of


def state(models, cluster, known):
    column = [torch.tensor(values)[:, None] for values in (models, known)]
    return State(column[0], torch.tensor(cluster), column[1])


def test_only_the_block_trains_and_only_its_models_are_renewed():
    # All models are 2, so that any block has the mean 2. Its clients go half the way to 4: to 3.
    fedroc = FedRoC(k=1, lr=0.25, steps=1, block=3)
    before = state([9.0], [0] * 6, [2.0] * 6)
    after, info = fedroc.round(before, simulator([4] * 6).at("round", 0))
    assert 1 <= len(info.ids) <= 3
    assert after.models.tolist() == [[3.0]]
    expected = torch.full((6, 1), 2.0).index_fill(0, info.ids, 3.0)
    assert torch.equal(after.known, expected)


def test_e_and_m_step_of_the_block_by_hand():
    # Near 0: 0 and 2 (client 2 is drawn with its own 2 only if it is in the block); near 10: 10.
    # With blocks of many draws all four clients are in each: means 1 and 10 where all count alike.
    fedroc = FedRoC(k=2, lr=0.25, steps=1, block=4, draw="clusters", block_count=1)
    before = state([0.0, 10.0], [0, 1], [0.0, 10.0])
    after, info = fedroc.round(before, simulator([4, 6]).at("round", 0))
    # Each cluster is its one client, drawn twice; from 0 half the way to 4, from 10 to 6.
    assert info.ids.tolist() == [0, 1]
    assert after.models.flatten().tolist() == [2.0, 8.0]
    assert after.cluster.tolist() == [0, 1]


def test_the_risk_of_a_block_is_to_its_own_means_or_that_of_all_to_its_centres():
    points = torch.tensor([[0.0], [2.0], [10.0], [100.0]])
    places, cluster = torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1])
    centres = torch.tensor([[1.0], [100.0]])
    own = FedRoC(k=2)._judge(points, places, cluster, centres)
    assert own.risk == pytest.approx((1 + 1 + 0) / 3)  # the outlier is its own mean
    # Of all four, 70 % are the two nearest: 1 and 100 have distance 0 to a centre, 1 and 1 next.
    everybody = FedRoC(k=2, risk="all")._judge(points, places, cluster, centres)
    assert everybody.risk == pytest.approx((0 + 1) / 2)


def block(risk, cluster):
    places = torch.arange(len(cluster))
    return JudgedBlock(places, torch.tensor(cluster), torch.zeros(2, 1), risk)


def test_the_median_of_the_blocks_that_count():
    blocks = [block(r, c) for r, c in ((7, [0, 1]), (1, [0, 1]), (9, [0, 1]), (3, [0, 0]))]
    assert FedRoC(k=2)._best(blocks).risk == 3
    assert FedRoC(k=2, members=1)._best(blocks).risk == 7  # of 1, 7 and 9
    assert FedRoC(k=2, members=2)._best(blocks).risk == 3  # none counts, so that all do
    assert FedRoC(k=2, risk="all")._best(blocks).risk == 1
    assert FedRoC(k=2, risk="all", members=2)._best(blocks).risk == 1


def test_rounding_does_not_choose_between_blocks_of_one_risk():
    for noise in (1e-15, -1e-15):
        risks = (3.0, 3.0 + noise, 3.0 - noise, 3.0)
        blocks = [
            block(risk, [0, 1])._replace(places=torch.tensor([i, i]))
            for i, risk in enumerate(risks)
        ]
        assert FedRoC(k=2)._best(blocks).places.tolist() == [1, 1]
        assert FedRoC(k=2, risk="all")._best(blocks).places.tolist() == [0, 0]


def test_a_client_that_is_drawn_twice_is_one_member():
    twice = JudgedBlock(torch.tensor([4, 4, 5]), torch.tensor([0, 0, 1]), torch.zeros(2, 1), 0.0)
    assert FedRoC(k=2, members=1)._counts(twice)
    assert not FedRoC(k=2, members=2)._counts(twice)


@pytest.mark.parametrize(
    ("settings", "clients", "size"),
    [
        ({"k": 2, "outliers": 0.05}, 100, 13),
        ({"k": 2, "outliers": 0.1}, 100, 6),
        ({"k": 3, "outliers": 0.25}, 100, 6),
        ({"k": 2, "outliers": 0.0}, 100, 100),
        ({"k": 2, "outliers": 0.05}, 8, 8),
        ({"k": 2, "block": 0.4}, 100, 40),
        ({"k": 4, "block": 0.4}, 5, 5),
        ({"k": 2, "block": 7}, 3, 7),
    ],
)
def test_block_sizes(settings, clients, size):
    assert FedRoC(**settings).block_size(clients) == size


def test_it_says_when_no_block_size_is_safe():
    clients = simulator([1, 2, 3, 9, 10, 11], draws=[0])
    with pytest.warns(CoterieWarning, match="no block size of FedRoC is safe: with outliers=0.25"):
        FedRoC(k=3, outliers=0.25).init(start_of(clients))
    FedRoC(k=3, outliers=0.1, steps=1).init(start_of(simulator([1, 2, 3, 9], draws=[0])))


def test_blocks_must_be_larger_than_k():
    for wrong in (2.0, 3.5, 1.0):
        with pytest.raises(SettingError, match="`block` of FedRoC must be a whole number above k"):
            FedRoC(k=2, block=wrong)


def test_the_start_is_that_of_a_block():
    # From 0 half the way: 1, 1, 1 | -4, -4, -4. Any block that has both has these centres.
    clients = simulator([2, 2, 2, -8, -8, -8], draws=[0])
    before = FedRoC(lr=0.25, steps=1, members=1).init(start_of(clients))
    assert before.models.flatten().sort().values.tolist() == [-4.0, 1.0]
    assert before.models[before.cluster].flatten().tolist() == [1, 1, 1, -4, -4, -4]
    assert before.known.flatten().tolist() == [1, 1, 1, -4, -4, -4]


def test_a_newcomer_trains_beside_the_block_and_does_not_count():
    # Client 2 is unknown: it takes the centre -2, where its loss is least, and goes to -4.
    fedroc = FedRoC(k=2, lr=0.25, steps=1, block=4, draw="clusters", members=1)
    before = state([2.0, -2.0], [0, 1, -1], [2.0, -2.0, 0.0])
    after, info = fedroc.round(before, simulator([4, -4, -6]).at("round", 0))
    assert info.ids.tolist() == [0, 1, 2]
    assert after.models.flatten().tolist() == [3.0, -3.0]
    assert after.known.flatten().tolist() == [3.0, -3.0, -4.0]
    assert after.cluster.tolist() == [0, 1, 1]


def test_clients_are_served_by_loss_or_by_the_model_the_server_has_of_them():
    # What the server has of client 1 is from the beginning and nearer to the wrong centre.
    before = state([9.0, 1.0], [0, 1], [9.0, 0.5])
    for serves, expected in (("loss", [0, 0]), ("nearest", [0, 1])):
        serving = FedRoC(serves=serves).serve(before, simulator([9, 8]).at("serve"))
        assert serving.cluster.tolist() == expected


def test_the_authors_parameters_find_two_rotations():
    federation, task = coterie.load("rotated-digits", clients=40, rotations=2)
    run = coterie.simulate(
        FedRoC(k=2, block=0.4, members=2), federation, task, rounds=10, evaluate=10
    )
    assert run.metrics["ari"] == 1.0
