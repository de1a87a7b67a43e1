import json
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie import IFCA, CoterieWarning, FedAvg, Federation, Local, Oracle, Regression
from coterie.core.errors import CheckpointError, CoterieError, DataError, SettingError
from coterie.experiment.checkpoint import Checkpoint
from coterie.experiment.folder import RunFolder
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings


@pytest.fixture(scope="module")
def digits():
    return coterie.load("rotated-digits", clients=8)


class Stop(Exception):
    pass


def stop_after(count):
    def on_round(record):
        if record["round"] == count:
            raise Stop

    return on_round


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


def test_more_clients_per_round_than_there_are_is_refused(digits):
    with pytest.raises(SettingError, match="at most the number of clients, 8, got 9"):
        coterie.simulate(FedAvg(), *digits, per_round=9)


def test_records_tell_where_clients_are(digits):
    run = coterie.simulate(IFCA(k=4, start="random"), *digits, rounds=6)
    place = {}
    for record in run.records:
        for cluster, clients in record["moves"].items():
            place.update(dict.fromkeys(clients, cluster))
        sizes = [sum(c == j for c in place.values()) for j in range(4)]
        assert sizes == record["sizes"]


def test_train_loss_and_test_loss_choose_by_different_data():
    """Each client's test part looks like the other group's training part."""
    ones, zeros = torch.ones(4, 1), torch.zeros(4)
    train = [(ones, zeros + 1), (ones, zeros - 1)]
    test = [(ones, zeros - 1), (ones, zeros + 1)]
    federation = Federation.from_clients(train, test=test)
    task = Regression(nn.Linear(1, 1, bias=False))
    losses = {
        protocol: coterie.simulate(
            IFCA(k=2, steps=30, start="farthest"), federation, task, rounds=5, protocol=protocol
        ).metrics["loss"]
        for protocol in ("train-loss", "test-loss")
    }
    assert losses["train-loss"] == pytest.approx(4.0, abs=1e-2)
    assert losses["test-loss"] == pytest.approx(0.0, abs=1e-2)


def unseen_federation(**known):
    torch.manual_seed(0)
    clients = [(torch.ones(4, 1), torch.full((4,), float(s))) for s in (1, 1, -1, -1)]
    tests = [(torch.ones(3, 1), torch.full((3,), float(s))) for s in (-1, 1)]
    return Federation.from_clients(clients, test=tests, unseen=True, **known)


def test_unseen_test_clients_are_served_by_test_loss():
    task = Regression(nn.Linear(1, 1, bias=False))
    run = coterie.simulate(IFCA(k=2, steps=30), unseen_federation(), task, rounds=5)
    assert run.metrics["loss"] == pytest.approx(0, abs=1e-2)
    assert run.result["protocol"] == "test-loss"
    with pytest.raises(
        SettingError, match="`protocol` train-loss needs test clients with training"
    ):
        coterie.simulate(IFCA(k=2), unseen_federation(), task, protocol="train-loss")


def test_a_local_model_is_tested_on_its_true_clusters_test_clients():
    task = Regression(nn.Linear(1, 1, bias=False))
    known = unseen_federation(cluster=[0, 0, 1, 1], test_cluster=[1, 0])
    run = coterie.simulate(Local(steps=30), known, task, rounds=5)
    assert run.metrics["loss"] == pytest.approx(0, abs=1e-2)
    with pytest.raises(DataError, match="only where the true clusters are known"):
        coterie.simulate(Local(), unseen_federation(), task, rounds=1)


def test_without_a_test_part_metrics_are_called_training_metrics(digits):
    federation, task = digits
    run = coterie.simulate(FedAvg(), Federation(federation.train), task, rounds=2)
    assert {"train_accuracy", "train_loss", "train_f1"} <= set(run.metrics)
    assert "accuracy" not in run.metrics
    assert "ari" not in run.metrics


def test_evaluation_can_be_rarer_than_rounds(digits):
    run = coterie.simulate(FedAvg(), *digits, rounds=5, evaluate=2)
    assert [bool(record["metrics"]) for record in run.records] == [False, True, False, True, True]


def test_a_collapse_is_warned_of_once(digits):
    federation, task = digits
    same = Federation(federation.train)

    class Greedy(IFCA):
        def init(self, start):
            state = super().init(start)
            return state._replace(models=torch.stack([state.models[0], state.models[1] + 100]))

    with pytest.warns(CoterieWarning, match="clusters have collapsed") as caught:
        run = coterie.simulate(Greedy(k=2, start="random"), same, task, rounds=14)
    assert len([w for w in caught if w.category is CoterieWarning]) == 1
    assert len(run.warnings) == 1
    assert [bool(record["warnings"]) for record in run.records].index(True) == 9


def test_divergence_is_warned_of(digits):
    federation, _ = coterie.load("linear-mixture", clients=4, samples=5, features=3)
    task = Regression(nn.Linear(3, 1))
    with pytest.warns(CoterieWarning, match="no longer finite; a smaller lr"):
        coterie.simulate(FedAvg(lr=1e6, steps=100), federation, task, rounds=2)


def test_resuming_after_any_round_ends_as_the_uninterrupted_run(digits, tmp_path):
    settings = {"rounds": 5, "seed": 1, "fraction": 0.5, "lost": 0.2, "checkpoint": 1}
    for name, algorithm in (("ifca", IFCA(k=2, batch=8)), ("local", Local(batch=8))):
        whole = coterie.simulate(algorithm, *digits, folder=tmp_path / f"{name}-whole", **settings)
        for count in (1, 3, 5):
            folder = tmp_path / f"{name}-{count}"
            with pytest.raises(Stop):
                coterie.simulate(
                    algorithm, *digits, folder=folder, on_round=stop_after(count), **settings
                )
            again = coterie.simulate(algorithm, *digits, folder=folder, resume=True, **settings)
            assert again.metrics == whole.metrics
            assert torch.equal(again.models, whole.models)
            assert again.bytes.table() == whole.bytes.table()
            lines = [
                [
                    {k: v for k, v in json.loads(line).items() if k != "seconds"}
                    for line in (place / "rounds.jsonl").read_text().splitlines()
                ]
                for place in (folder, tmp_path / f"{name}-whole")
            ]
            assert lines[0] == lines[1]


def test_a_resume_with_other_settings_or_data_is_refused(digits, tmp_path):
    with pytest.raises(Stop):
        coterie.simulate(
            IFCA(k=2), *digits, folder=tmp_path / "r", rounds=3, on_round=stop_after(1)
        )
    other, task = coterie.load("rotated-digits", clients=8, seed=9)
    for algorithm, data, settings in (
        (IFCA(k=2, lr=0.2), digits, {"rounds": 3}),
        (IFCA(k=2), digits, {"rounds": 4}),
        (FedAvg(), digits, {"rounds": 3}),
        (IFCA(k=2), (other, task), {"rounds": 3}),
    ):
        with pytest.raises(CheckpointError, match="belongs to another run"):
            coterie.simulate(algorithm, *data, folder=tmp_path / "r", resume=True, **settings)


@pytest.mark.parametrize(
    ("checkpoint", "seconds", "expected"),
    [
        (0, 0.29, [1, 2, 3, 4, 5, 6]),  # less than a twentieth of a round
        (0, 0.31, [2, 4, 6]),
        (0, 0.89, [3, 6]),
        (0, 60.0, [6]),
        (1, 60.0, [1, 2, 3, 4, 5, 6]),
        (4, 0.01, [4, 6]),
    ],
)
def test_saving_takes_a_small_share_of_a_run_unless_it_is_told_when(
    tmp_path, monkeypatch, checkpoint, seconds, expected
):
    clock = [100.0]
    now = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("coterie.experiment.folder.time", now)

    def made():
        clock[0] += seconds
        return Checkpoint(0, "", {}, {})

    folder = RunFolder.create(tmp_path / "r", {})
    settings = RunSettings(rounds=6, checkpoint=checkpoint)
    folder.save(made)
    saved = []
    for rounds in range(1, 7):
        clock[0] += 6.0  # a round
        if folder.due(rounds, settings):
            folder.save(made)
            saved.append(rounds)
    assert saved == expected


def test_lines_that_do_not_reach_the_checkpoint_are_refused(digits, tmp_path):
    settings = {"folder": tmp_path / "r", "rounds": 3, "checkpoint": 1}
    with pytest.raises(Stop):
        coterie.simulate(IFCA(k=2), *digits, on_round=stop_after(2), **settings)
    (tmp_path / "r" / "rounds.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="does not hold the 2 rounds before the checkpoint"):
        coterie.simulate(IFCA(k=2), *digits, resume=True, **settings)


def test_a_half_written_line_is_cut_off(digits, tmp_path):
    settings = {"folder": tmp_path / "r", "rounds": 3, "checkpoint": 1}
    with pytest.raises(Stop):
        coterie.simulate(IFCA(k=2), *digits, on_round=stop_after(2), **settings)
    with open(tmp_path / "r" / "rounds.jsonl", "a") as file:
        file.write('{"round": 3, "sec')
    (tmp_path / "r" / ".checkpoint.safetensors.1.tmp").write_bytes(b"half")
    coterie.simulate(IFCA(k=2), *digits, resume=True, **settings)
    lines = (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
    assert not list((tmp_path / "r").glob(".*"))


def test_a_folder_in_use_is_not_overwritten(digits, tmp_path):
    coterie.simulate(FedAvg(), *digits, folder=tmp_path / "r", rounds=1)
    with pytest.raises(CoterieError, match="already holds a run"):
        coterie.simulate(FedAvg(), *digits, folder=tmp_path / "r", rounds=1)


def test_a_run_that_cannot_begin_leaves_no_folder(digits, tmp_path):
    with pytest.raises(SettingError, match="at most the number of clients"):
        coterie.simulate(IFCA(k=9), *digits, folder=tmp_path / "r", rounds=1)
    assert not (tmp_path / "r").exists()


def test_a_report_needs_no_run_folder(digits, tmp_path):
    run = coterie.simulate(IFCA(k=2), *digits, rounds=2)
    page = run.report(tmp_path / "page.html").read_text()
    assert "ifca" in page
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.slow
def test_the_linear_mixture_recovers_both_truths_from_the_best_of_ten_starts():
    federation, task = coterie.load("linear-mixture")
    ifca = IFCA(k=2, average="gradients", lr=0.5, start="restarts", start_rounds=30)
    run = coterie.simulate(ifca, federation, task, rounds=300, evaluate=300)
    assert run.metrics["distance"] <= 0.6 * 0.1
    assert run.metrics["success"] == 1.0


def test_few_clients_per_round_are_no_collapse(digits):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for algorithm in (IFCA(k=4), Oracle(), Local()):
            coterie.simulate(algorithm, *digits, rounds=15, per_round=1, evaluate=15)


def test_a_local_model_that_diverges_is_warned_of():
    federation, _ = coterie.load("linear-mixture", clients=4, samples=5, features=3)
    with pytest.warns(CoterieWarning, match="no longer finite"):
        coterie.simulate(Local(lr=1e30), federation, Regression(nn.Linear(3, 1)), rounds=2)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"round": 3}, "no setting of a run is named round; did you mean `rounds`"),
        ({"rounds": "3"}, "`rounds` of RunSettings must be a whole number, got '3'"),
        ({"rounds": 2.5}, "`rounds` of RunSettings must be a whole number, got 2.5"),
    ],
)
def test_wrong_settings_in_python_are_refused(digits, settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        coterie.simulate(FedAvg(), *digits, **settings)


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path):
    federation, _ = coterie.load("linear-mixture", clients=4, samples=5, features=3)
    with pytest.warns(CoterieWarning):
        run = coterie.simulate(
            FedAvg(lr=1e6, steps=100),
            federation,
            Regression(nn.Linear(3, 1)),
            rounds=2,
            folder=tmp_path / "r",
        )
    assert not math.isfinite(run.metrics["loss"])

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    for name in ("result.json", "clients.json", "rounds.jsonl"):
        for line in (tmp_path / "r" / name).read_text().splitlines():
            json.loads(line, parse_constant=refuse)
    assert json.loads((tmp_path / "r" / "result.json").read_text())["metrics"]["loss"] is None


def test_a_numpy_seed_is_the_plain_seed(digits):
    one, two = (coterie.simulate(FedAvg(), *digits, rounds=1, seed=s) for s in (0, 0))
    assert torch.equal(one.models, two.models)
    from coterie.core.seeds import derive

    assert derive(np.int64(3), "x") == derive(3, "x")
