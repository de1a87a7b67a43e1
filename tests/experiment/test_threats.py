import json
import re

import pytest
import torch

import coterie
from coterie import IFCA, CoterieWarning, FedAvg, KFed, Local, Oracle
from coterie.core.algorithm import Info
from coterie.core.errors import SettingError
from coterie.experiment.plan import make_plan
from coterie.experiment.settings import RunSettings
from coterie.experiment.threats import detection_scores, largest_share
from coterie.flower.settings import App, NetworkSettings

ATTACKERS = torch.tensor([True, True, True, False, False, False, False, False])


def digits(**settings):
    return coterie.load("rotated-digits", clients=12, rotations=2, hidden=8, **settings)


def test_detection_is_scored_among_those_who_were_asked():
    # Asked: two attackers and three honest; excluded: one of each.
    scores = detection_scores(torch.tensor([0, 1, 3, 4, 5]), [0, 5], ATTACKERS)
    assert scores == {
        "excluded": 0.4,
        "detection_precision": 0.5,
        "detection_recall": 0.5,
        "false_exclusion": pytest.approx(1 / 3),
    }
    nobody = detection_scores(torch.tensor([0, 3]), [], ATTACKERS)
    assert (nobody["detection_precision"], nobody["detection_recall"]) == (0.0, 0.0)
    assert detection_scores(torch.tensor([0, 3]), [3], None) == {"excluded": 0.5}


def test_the_largest_share_is_that_of_a_cluster_without_the_excluded():
    info = Info(torch.arange(8), torch.tensor([0, 0, 1, 0, 0, 1, 1, 2]), 3)
    assert largest_share(info, ATTACKERS, ()) == 0.5
    assert largest_share(info, ATTACKERS, [0]) == pytest.approx(1 / 3)
    assert largest_share(info._replace(cluster=None), ATTACKERS, ()) is None


@pytest.mark.filterwarnings("ignore:attackers are")
def test_metrics_are_those_of_the_honest_and_attackers_stand_beside_them(tmp_path):
    federation, task = digits()
    run = coterie.simulate(
        IFCA(k=2),
        federation,
        task,
        rounds=3,
        attack="boosted",
        attackers=0.25,
        screen="norm",
        folder=tmp_path / "run",
    )
    bad = run.training.participants.attackers
    table = run.clients
    assert table["attacker"].tolist() == bad.tolist()
    sizes = federation.test.sizes.double()
    accuracy = torch.tensor(table["accuracy"].tolist(), dtype=torch.float64)
    for name, who in (("accuracy", ~bad), ("attackers_accuracy", bad)):
        pooled = float((accuracy * sizes)[who].sum() / sizes[who].sum())
        assert run.metrics[name] == pytest.approx(pooled)
    written = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert written["clients"]["attacker"] == bad.tolist()
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    for line in lines:
        assert json.loads(line)["excluded"] == torch.nonzero(bad).flatten().tolist()
    assert run.metrics["detection_precision"] == run.metrics["detection_recall"] == 1.0
    assert run.metrics["false_exclusion"] == 0.0
    assert run.result["scored"] == int((~bad).sum())
    assert written["clients"]["excluded"] == [3 * int(each) for each in bad]
    assert table["excluded"].tolist() == written["clients"]["excluded"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "A red edge marks who attacks." in page
    assert "Who was excluded in the round is hollow." in page
    assert "rounds excluded" in page
    data = json.loads(
        re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)[1]
    )
    assert data["map"]["attacker"] == bad.tolist()
    assert data["map"]["frames"][-1]["excluded"] == torch.nonzero(bad).flatten().tolist()


def test_without_attack_nothing_is_said_of_it(tmp_path):
    federation, task = digits()
    run = coterie.simulate(FedAvg(), federation, task, rounds=1, folder=tmp_path / "run")
    assert not [name for name in run.metrics if "attack" in name or "exclu" in name]
    assert "attacker" not in run.clients
    assert "excluded" not in run.records[0]


@pytest.mark.filterwarnings("ignore:attackers are")
def test_an_attack_is_the_same_in_chunks_and_after_a_resumption(tmp_path):
    federation, task = digits()
    settings = {"attack": "boosted", "attackers": 0.25, "aggregate": "median", "seed": 3}
    whole = coterie.simulate(IFCA(k=2), federation, task, rounds=4, **settings)
    chunks = coterie.simulate(IFCA(k=2), federation, task, rounds=4, chunk=3, **settings)
    assert torch.allclose(whole.models, chunks.models, atol=1e-4)
    folder = tmp_path / "run"
    coterie.simulate(IFCA(k=2), federation, task, rounds=2, folder=folder, **settings)
    resumed = coterie.simulate(
        IFCA(k=2), federation, task, rounds=4, folder=folder, resume=True, **settings
    )
    assert torch.equal(whole.models, resumed.models)
    assert resumed.result["teachers"] == whole.result["teachers"]


def test_a_majority_in_a_cluster_is_told_once():
    federation, task = digits()
    with pytest.warns(CoterieWarning, match=r"attackers are \d\d% of a cluster: no mean") as told:
        run = coterie.simulate(
            Oracle(),
            federation,
            task,
            rounds=3,
            attack="labels",
            attackers=0.45,
            joins="smallest",
        )
    assert len([w for w in told if "attackers are" in str(w.message)]) == 1
    assert run.metrics["attacker_share"] >= 0.5


@pytest.mark.parametrize(
    ("algorithm", "settings", "sentence"),
    [
        (Local(), {"attack": "boosted"}, "`attack` must be none or labels for Local, whose"),
        (KFed(), {"attack": "sign-flip"}, "`attack` must be none or labels for KFed, whose"),
        (Local(), {"screen": "norm"}, "`screen` must be none for Local, whose clients send no"),
        (FedAvg(), {"attack": "labels", "starts": 2}, "`starts` must be 1 under an attack, got 2"),
        (FedAvg(), {"attack": "boost"}, "did you mean `boosted`"),
        (FedAvg(), {"attackers": 2.0}, "`attackers` of RunSettings must lie between 0 and 1"),
        (FedAvg(), {"attackers": -1.0}, "`attackers` of RunSettings must lie between 0 and 1"),
        (FedAvg(), {"attack": "labels", "attackers": 0.99}, "`attackers` must leave an honest"),
    ],
)
def test_what_cannot_be_attacked_or_defended_is_refused(algorithm, settings, sentence):
    federation, task = digits()
    with pytest.raises(SettingError, match=sentence):
        coterie.simulate(algorithm, federation, task, rounds=1, **settings)


def test_several_values_cannot_be_attacked():
    federation, task = digits()
    with pytest.raises(SettingError, match="`attack` must be none where several starts"):
        coterie.simulate(
            FedAvg(), federation, task, rounds=1, attack="labels", grid={"lr": [0.1, 0.2]}
        )


def test_a_deployment_is_not_attacked():
    plan = make_plan(["ifca", "rotated-digits", "attack=boosted"])
    with pytest.raises(SettingError, match="`attack` must be none in a deployment"):
        App(plan, NetworkSettings())
    App(make_plan(["ifca", "rotated-digits", "aggregate=median"]), NetworkSettings())


def test_a_run_of_before_has_no_attack_and_no_defence():
    assert not RunSettings().wary
    assert RunSettings(screen="norm").wary


def test_attackers_without_an_attack_are_asked_what_they_do():
    text = r"`attackers` says how clients attack: say which attack it is of, as in attack=boosted"
    with pytest.raises(SettingError, match=text):
        make_plan(["ifca", "rotated-digits", "attackers=0.2"])
    federation, task = digits()
    with pytest.raises(SettingError, match=text):
        coterie.simulate(FedAvg(), federation, task, attackers=0.2)
    assert make_plan(["ifca", "attack=none", "attackers=0.2"]).settings.attack == "none"
