import pytest
import torch

import coterie
from coterie import IFCA, Classification, FedAvg, Federation
from coterie.channel.attacks import AttackSettings
from coterie.channel.poisoning import (
    CleanChoice,
    chosen_labels,
    join_labels,
    poison_labels,
    trained_labels,
)
from coterie.core.errors import SettingError
from coterie.experiment.settings import RunSettings

Y = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 4, 4])
OFFSETS = torch.tensor([0, 5, 12])


def poisoned(labels, seed=0, **settings):
    wanted = AttackSettings(attack="labels", labels=labels, **settings)
    return poison_labels(Y, OFFSETS, torch.tensor([False, True]), wanted, 5, seed)


@pytest.mark.parametrize("labels", ["shuffle", "random", "flip"])
def test_only_adversaries_have_wrong_labels(labels):
    found = poisoned(labels)
    assert torch.equal(found[:5], Y[:5])
    assert not torch.equal(found[5:], Y[5:])
    assert torch.equal(found, poisoned(labels))


def test_shuffled_labels_are_the_same_labels():
    found = poisoned("shuffle")
    assert torch.equal(found[5:].sort().values, Y[5:].sort().values)
    assert not torch.equal(found, poisoned("shuffle", seed=1))


def test_a_flip_is_a_mirror_or_one_label_for_another():
    assert poisoned("flip")[5:].tolist() == [4, 3, 2, 1, 0, 0, 0]
    assert poisoned("flip", flip="4:1")[5:].tolist() == [0, 1, 2, 3, 1, 1, 1]
    with pytest.raises(SettingError, match="must name labels below 5"):
        poisoned("flip", flip="4:5")


def test_two_labels_are_joined_and_taken_apart():
    clean, wrong = torch.randint(7, (2, 500), generator=torch.Generator().manual_seed(0))
    both = join_labels(wrong, clean, 7)
    assert torch.equal(trained_labels(both, 7), wrong)
    assert torch.equal(chosen_labels(both, 7), clean)
    assert torch.equal(both[wrong == clean], clean[wrong == clean])


def test_which_labels_are_poisoned_follows_from_the_attack():
    assert AttackSettings(attack="none", labels="flip").poison == "keep"
    assert AttackSettings(attack="boosted").poison == "shuffle"
    assert AttackSettings(attack="labels").poison == "shuffle"
    assert AttackSettings(attack="sign-flip").poison == "keep"
    assert AttackSettings(attack="sign-flip", labels="random").poison == "random"


def opposite_clients():
    """Eight clients whose label is the sign of a feature, and as many with the opposite."""
    rng = torch.Generator().manual_seed(0)
    clients = []
    for i in range(16):
        x = torch.randn(40, 2, generator=rng)
        y = (x[:, 0] > 0).long()
        clients.append((x, y if i < 8 else 1 - y))
    return Federation.from_clients(clients, cluster=[0] * 8 + [1] * 8)


@pytest.mark.parametrize(("chooses", "same"), [("poisoned", False), ("clean", True)])
def test_adversaries_choose_by_their_own_or_by_right_labels(chooses, same):
    # Flipped labels are those of the other cluster: who chooses by them goes there.
    federation = opposite_clients()
    task = Classification(lambda: torch.nn.Linear(2, 2))
    run = coterie.simulate(
        IFCA(k=2, start_rounds=3, lr=0.5),
        federation,
        task,
        rounds=5,
        attack="labels",
        labels="flip",
        attackers=0.2,
        chooses=chooses,
    )
    bad = run.training.participants.attackers
    trained, true = run.training.cluster, federation.cluster
    own = trained[~bad][true[~bad] == 0].mode().values
    right = (trained == own) == (true == 0)
    assert bool(right[~bad].all())
    assert bool(right[bad].all()) == same


def test_a_kernel_of_joined_labels_trains_by_one_and_judges_by_the_other():
    federation, task = opposite_clients(), Classification(lambda: torch.nn.Linear(2, 2))
    settings = {"attack": "labels", "labels": "flip", "attackers": 0.5}
    wrong, both = (
        coterie.Run(FedAvg(), federation, task, RunSettings(chooses=chooses, **settings))
        for chooses in ("poisoned", "clean")
    )
    clean = coterie.Run(FedAvg(), federation, task, RunSettings())
    assert isinstance(both.population.kernel, CleanChoice)
    model = torch.tensor([[1.0, 2.0, 3.0, -1.0, 0.5, -0.5]])

    def cohort(run):
        return run.population.cohort(torch.arange(16), 0, (0, "round"))

    def trained(run):
        return cohort(run).descend(model.expand(16, -1), lr=0.1, steps=3)

    assert torch.allclose(cohort(both).loss(model), cohort(clean).loss(model))
    assert not torch.allclose(cohort(wrong).loss(model), cohort(clean).loss(model))
    assert torch.allclose(trained(both), trained(wrong))
    assert not torch.allclose(trained(both), trained(clean))


def test_real_targets_cannot_be_poisoned():
    federation, task = coterie.load("linear-mixture", clients=8, features=5)
    with pytest.raises(SettingError, match="`labels` must be keep where a target is not one label"):
        coterie.simulate(FedAvg(), federation, task, rounds=1, attack="labels")
    coterie.simulate(FedAvg(), federation, task, rounds=1, attack="sign-flip")
