"""Clients that never took part, by the rule of section 4.3.1 of the multi-center thesis."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import coterie
from coterie.core.errors import DataError, SettingError
from coterie.data.federation import Federation

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "newcomers.py"))
SWAPPED, members_and_newcomers = EXAMPLE["SWAPPED"], EXAMPLE["members_and_newcomers"]


def ran(members, task, seed=0, **settings):
    tuned = {"finetune": 50, "finetune_for": "outliers", **settings}
    options = {"rounds": 40, "evaluate": 40, "seed": seed, **tuned}
    return coterie.simulate(coterie.IFCA(k=4), members, task, **options)


def test_strangers_gain_from_the_rule_and_clients_alike_lose_nothing():
    members, newcomers, task = members_and_newcomers(seed=0)
    run = ran(members, task)
    found = run.personalise(newcomers)
    before, after = found.before.clients["accuracy"], found.summary.clients["accuracy"]
    assert after[SWAPPED].mean() - before[SWAPPED].mean() >= 0.4
    assert before[~SWAPPED].mean() - after[~SWAPPED].mean() < 0.01
    assert torch.equal(found.uses_own, SWAPPED)
    # The threshold comes from the members, who are all alike and keep the shared models.
    assert found.threshold == run.personal.threshold == run.metrics["tuned_distance"]
    assert found.threshold == pytest.approx(3 * float(run.personal.moved.median()))
    assert run.metrics["tuned"] == 0
    assert run.metrics["accuracy"] == run.metrics["untuned_accuracy"]
    assert torch.equal(found.serving.ids, torch.arange(80, 100))
    alike = found.serving.cluster[~SWAPPED] == run.serve(newcomers)[~SWAPPED]
    assert alike.all()


def test_without_the_rule_all_newcomers_use_what_they_fine_tuned():
    members, newcomers, task = members_and_newcomers(seed=0)
    run = ran(members, task, rounds=2, evaluate=2, finetune=2, finetune_for="all")
    found = run.personalise(newcomers)
    assert found.threshold is None
    assert found.uses_own.all()


def test_an_outlier_who_took_part_uses_its_own_model():
    members, _, task = members_and_newcomers(seed=0)
    odd = torch.arange(80) == 7
    train, test = (EXAMPLE["swap_labels"](part, odd) for part in (members.train, members.test))
    members = replace(members, train=train, test=test)
    run = ran(members, task)
    assert run.personal.uses_own.tolist() == odd.tolist()
    table = run.training.outcome.tables["clients"]
    assert table["model"] == ["own" if i == 7 else "shared" for i in range(80)]
    assert table["accuracy"][7] > table["untuned_accuracy"][7] + 0.3
    assert all(
        after == before
        for i, (after, before) in enumerate(
            zip(table["accuracy"], table["untuned_accuracy"], strict=True)
        )
        if i != 7
    )


def test_newcomers_are_refused_in_a_sentence():
    federation, task = coterie.load("rotated-digits", clients=8, hidden=8)
    run = coterie.simulate(coterie.FedAvg(), federation, task, rounds=1)
    with pytest.raises(SettingError, match="`finetune` of the run must be at least 1"):
        run.personalise(federation)
    run = coterie.simulate(coterie.FedAvg(), federation, task, rounds=1, finetune=1)
    other = Federation(federation.train, federation.test, unseen=True)
    with pytest.raises(DataError, match="must have training data"):
        run.personalise(other)
