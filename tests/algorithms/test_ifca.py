import pytest
import torch
from torch import nn

import coterie
from coterie import IFCA, Classification, FedAvg, Federation
from coterie.algorithms.ifca import State
from coterie.channel.lost_replies import LoseReplies
from coterie.channel.metering import ByteMeter
from coterie.core.errors import SettingError
from coterie.data.federation import Samples
from tests.algorithms.lines import line, simulator, start_of


def state(models, m):
    return State(
        torch.tensor(models).view(-1, 1), torch.zeros(0), torch.full((m,), -1), torch.tensor(0)
    )


def test_model_averaging_by_hand():
    # Clients at 1, 3 and -2; models at 1 and -1. The first two choose model 0, the third model 1.
    # One step of 1/4 goes half way: 1 stays, 1 -> 2, -1 -> -1.5. Means: 1.5 and -1.5.
    ifca = IFCA(k=2, lr=0.25, steps=1)
    after, info = ifca.round(state([1.0, -1.0], 3), simulator([1, 3, -2]).at("round", 0))
    assert info.cluster.tolist() == [0, 0, 1]
    assert after.models.flatten().tolist() == [1.5, -1.5]
    assert after.cluster.tolist() == [0, 0, 1]


def test_model_averaging_by_size_by_hand():
    ifca = IFCA(k=2, lr=0.25, steps=1, weighting="size")
    clients = simulator([1, 3, -2], sizes=[3, 1, 1]).at("round", 0)
    after, _ = ifca.round(state([1.0, -1.0], 3), clients)
    assert after.models.flatten().tolist() == [1.25, -1.5]


def test_gradient_averaging_divides_by_all_clients():
    # Gradients 2 (w - y) at the chosen model: 0, -4 and 2. gamma/m = 0.3/3.
    ifca = IFCA(k=2, lr=0.3, average="gradients")
    after, _ = ifca.round(state([1.0, -1.0], 3), simulator([1, 3, -2]).at("round", 0))
    assert after.models.flatten().tolist() == pytest.approx([1 + 0.1 * 4, -1 - 0.1 * 2])


def test_gradient_averaging_divides_by_m_also_when_few_take_part():
    ifca = IFCA(k=2, lr=0.3, average="gradients")
    clients = simulator([1, 3, -2]).at("round", 0, ids=torch.tensor([1]))
    after, _ = ifca.round(state([1.0, -1.0], 3), clients)
    assert after.models.flatten().tolist() == pytest.approx([1.4, -1.0])


def test_gradient_averaging_by_size_divides_by_m_too():
    # Only the second client answers, whatever its size: the step is the same 0.3/3 times 4.
    for size in (1, 7):
        ifca = IFCA(k=2, lr=0.3, average="gradients", weighting="size")
        clients = simulator([1, 3, -2], sizes=[5, size, 2]).at("round", 0, ids=torch.tensor([1]))
        after, _ = ifca.round(state([1.0, -1.0], 3), clients)
        assert after.models.flatten().tolist() == pytest.approx([1.4, -1.0])
    # All answer, with 1, 3 and 2 samples, a mean of 2: gradients 0, -4 and 2 count 1/2, 3/2 and 1.
    clients = simulator([1, 3, -2], sizes=[1, 3, 2]).at("round", 0)
    after, _ = ifca.round(state([1.0, -1.0], 3), clients)
    assert after.models.flatten().tolist() == pytest.approx([1 + 0.1 * 6, -1 - 0.1 * 2])


def test_a_round_that_nobody_answers_is_no_round_of_rest():
    ifca = IFCA(k=2, lr=0.25, steps=1, stable=2)
    before = state([1.0, -1.0], 2)._replace(cluster=torch.tensor([0, 1]), stable=torch.tensor(1))
    lost = simulator([1, -1]).at("round", 0).through(LoseReplies(1.0))
    after, info = ifca.round(before, lost)
    assert info.ids.tolist() == []
    assert after.stable.item() == 1
    after, _ = ifca.round(before, simulator([1, -1]).at("round", 0))
    assert after.stable.item() == 2


def test_step_size_decays_by_round_in_both_options():
    for average in ("models", "gradients"):
        ifca = IFCA(k=1, lr=0.5, decay=0.5, steps=1, average=average)
        after, _ = ifca.round(state([0.0], 1), simulator([1]).at("round", 2, round=2))
        assert after.models.item() == pytest.approx(0.5 * 0.25 * 2)


def test_an_empty_cluster_keeps_its_model():
    after, _ = IFCA(k=3, lr=0.25, steps=1).round(
        state([1.0, -1.0, 50.0], 2), simulator([1, -2]).at("round", 0)
    )
    assert after.models.flatten().tolist() == [1.0, -1.5, 50.0]


def test_with_one_cluster_it_is_fedavg():
    federation, task = coterie.load("rotated-digits", clients=8)
    for weighting in ("equal", "size"):
        settings = {"steps": 3, "lr": 0.2, "weighting": weighting, "batch": 16}
        ifca = coterie.simulate(
            IFCA(k=1, start="random", **settings), federation, task, rounds=3, fraction=0.5
        )
        fedavg = coterie.simulate(FedAvg(**settings), federation, task, rounds=3, fraction=0.5)
        assert torch.equal(ifca.models, fedavg.models)


def test_joint_trunk_is_averaged_over_everybody_and_heads_per_cluster():
    # Two linear layers of one number each: w = head * trunk.
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    clients = coterie.engine.simulator.Simulator(
        line([2, 2, -2]).train, coterie.Regression(module)
    ).at("round", 0)
    ifca = IFCA(k=2, share="joint", lr=0.1, steps=1)
    before = State(
        torch.tensor([[1.0], [-1.0]]), torch.tensor([1.0]), torch.full((3,), -1), torch.tensor(0)
    )
    after, info = ifca.round(before, clients)
    assert info.cluster.tolist() == [0, 0, 1]
    # At head 1, trunk 1, y 2 both gradients are 2 (1 - 2) = -2; at head -1, trunk 1, y -2 that of
    # the head is 2 and that of the trunk -2.
    assert after.models.flatten().tolist() == pytest.approx([1.2, -1.2])
    assert after.trunk.tolist() == pytest.approx([1.2])


def test_a_frozen_trunk_is_trained_before_and_then_stays():
    federation, task = coterie.load("rotated-digits", clients=8)
    ifca = IFCA(k=2, share="frozen", trunk_rounds=2, start="random")
    run = coterie.simulate(ifca, federation, task, rounds=2)
    trunk = run.models[:, ~task.layout.part("head")]
    fedavg = coterie.simulate(FedAvg(), federation, task, rounds=2)
    torch.testing.assert_close(trunk[0], fedavg.models[0, ~task.layout.part("head")])
    assert torch.equal(trunk[0], trunk[1])


def test_sharing_a_trunk_saves_download():
    federation, task = coterie.load("rotated-digits", clients=8)
    plain, joint = (
        coterie.simulate(IFCA(k=4, share=share, start="random"), federation, task, rounds=1)
        for share in ("none", "joint")
    )
    head = int(task.layout.part("head").sum())
    body = task.layout.size - head
    assert plain.bytes.total("down") == 8 * 4 * 4 * (head + body)
    assert joint.bytes.total("down") == 8 * 4 * (4 * head + body)


def test_stable_identities_send_each_client_only_its_own_model():
    ifca = IFCA(k=2, lr=0.25, steps=1, stable=2, recheck=3)
    clients, now, sent = simulator([1, -1]), state([1.0, -1.0], 2), []
    for t in range(12):
        count = ByteMeter()
        now, _ = ifca.round(now, clients.at("round", t, round=t).through(listener=count))
        table = count.table()
        (step,) = table
        sent.append(table[step]["down"].get("models", table[step]["down"].get("model")))
    # Round 0 finds identities (a change), rounds 1 and 2 confirm them; then three rounds with one
    # model each and one with both to check.
    both, own = 2 * 2 * 4, 2 * 4
    assert sent == [both] * 3 + [own] * 3 + [both] + [own] * 3 + [both] + [own]


def test_a_stable_broadcast_changes_nothing_but_the_bytes():
    federation, task = coterie.load("rotated-digits", clients=16)
    plain, stable = (
        coterie.simulate(IFCA(k=4, stable=s), federation, task, rounds=8) for s in (0, 2)
    )
    torch.testing.assert_close(plain.models, stable.models)
    assert torch.equal(plain.clusters, stable.clusters)
    assert stable.bytes.total("down") < 0.8 * plain.bytes.total("down")


def test_a_changed_identity_ends_the_stable_broadcast():
    ifca = IFCA(k=2, lr=0.25, steps=1, stable=1, recheck=1)
    wrong = State(
        torch.tensor([[1.0], [-1.0]]), torch.zeros(0), torch.tensor([1, 1]), torch.tensor(2)
    )
    # Rests for 1 round, so this one checks again; client 0 belongs to model 0.
    after, info = ifca.round(wrong, simulator([1, -1]).at("round", 0))
    assert info.cluster.tolist() == [0, 1]
    assert after.stable.item() == 0


def test_clients_that_were_never_seen_get_all_models():
    ifca = IFCA(k=2, lr=0.25, steps=1, stable=1)
    half_known = State(
        torch.tensor([[1.0], [-1.0]]), torch.zeros(0), torch.tensor([0, -1]), torch.tensor(5)
    )
    _, info = ifca.round(half_known, simulator([1, -1]).at("round", 0))
    assert info.cluster.tolist() == [0, 1]


def test_unseen_clients_choose_by_loss():
    run = coterie.simulate(
        IFCA(k=2, start="farthest"),
        line([1, 1, -1, -1]),
        coterie.Regression(lambda: nn.Linear(1, 1, bias=False)),
        rounds=3,
    )
    cluster = run.serve(line([-1.2, 0.7]))
    assert cluster.tolist() == [run.clusters[2].item(), run.clusters[0].item()]


def test_more_clusters_than_clients_are_refused():
    with pytest.raises(SettingError, match="`k` of IFCA must be at most the number of clients, 2"):
        IFCA(k=3).init(start_of(simulator([1, 2])))


def test_it_trains_any_network_with_buffers_and_dropout():
    torch.manual_seed(0)
    centre = torch.randn(2, 1, 6, 6)
    clients = []
    for i in range(6):
        y = torch.randint(2, (12,))
        x = centre[(y + i % 2) % 2] + 0.3 * torch.randn(12, 1, 6, 6)
        clients.append((x, y))

    def network():
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(64, 2),
        )

    federation = Federation.from_clients(clients, cluster=[0, 1] * 3)
    run = coterie.simulate(IFCA(k=2), federation, Classification(network), rounds=4)
    assert run.metrics["ari"] == 1.0
    assert run.metrics["train_accuracy"] > 0.9


@pytest.mark.slow
def test_ten_seeds_of_ten_recover_the_four_rotations():
    """The promise of the default start; from a single random start some seeds do not get there."""
    for seed in range(10):
        federation, task = coterie.load("rotated-digits", seed=seed)
        run = coterie.simulate(IFCA(k=4), federation, task, rounds=10, seed=seed, evaluate=10)
        assert run.metrics["ari"] == 1.0, f"seed {seed}"


def test_an_easy_federation_is_recovered_from_every_start():
    """In a public code all k models start identical, and one takes everybody for good."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 40, 5, generator=generator)
    y = (x[:, :, 0] > 0).long()
    y[4:] = 1 - y[4:]
    train = Samples.of(zip(x, y, strict=True))
    federation = Federation(train, cluster=torch.arange(8) // 4)
    task = Classification(lambda: nn.Linear(5, 2))
    for start in ("random", "restarts", "reject", "farthest"):
        run = coterie.simulate(
            IFCA(k=2, start=start, lr=0.5, tries=30), federation, task, rounds=10, seed=1
        )
        assert run.metrics["ari"] == 1.0, start


def test_gradient_averaging_refuses_networks_with_running_statistics():
    network = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with pytest.raises(SettingError, match="batch normalisation, whose running statistics"):
        coterie.simulate(
            IFCA(k=1, average="gradients"), line([1, 2]), coterie.Regression(network), rounds=1
        )


def test_gradient_averaging_refuses_a_local_optimiser():
    ifca = IFCA(k=1, average="gradients", optimizer="adam")
    with pytest.raises(SettingError, match=r"`optimizer` of IFCA must be sgd .* got adam"):
        ifca.init(start_of(simulator([1, 2])))


def test_weight_decay_counts_in_both_options():
    # Gradient 2 (w - y) + decay w = 2 (2 - 1) + 0.5 * 2 = 3 at w = 2.
    for average in ("models", "gradients"):
        ifca = IFCA(k=1, lr=0.1, steps=1, weight_decay=0.5, average=average)
        after, _ = ifca.round(state([2.0], 1), simulator([1]).at("round", 0))
        assert after.models.item() == pytest.approx(2 - 0.1 * 3)


@pytest.mark.parametrize("share", ["joint", "frozen"])
def test_a_trunk_with_batch_normalisation_can_be_shared(share):
    torch.manual_seed(0)
    clients = [(torch.randn(12, 4), torch.randint(2, (12,))) for _ in range(4)]
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    ifca = IFCA(k=2, share=share, trunk_rounds=2)
    run = coterie.simulate(
        ifca, Federation.from_clients(clients), Classification(network), rounds=2
    )
    assert torch.isfinite(run.models).all()
