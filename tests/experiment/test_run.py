import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie import IFCA, CoterieWarning, FedAvg, Federation, Local, Regression
from coterie.core.errors import CheckpointError, CoterieError, SettingError
from coterie.experiment.checkpoint import load_checkpoint, save_checkpoint
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings
from coterie.shelves import ALGORITHMS
from tests.tasks.taggers import (
    tagging_federation,
    tagging_task,
    two_input_federation,
    two_input_task,
)


@pytest.fixture(scope="module")
def digits():
    return coterie.load("rotated-digits", clients=8)


class Stop(Exception):
    pass


def stop_after(count):
    def on_round(record, run):
        if record["round"] == count:
            raise Stop

    return on_round


CAN_WITHHOLD = {"ifca", "hypcluster", "fedavg", "fedprox", "fedsgd", "ditto", "per-fedavg"}
CAN_WITHHOLD |= {"feddane", "feddist", "feddws"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_clusters_are_withheld_or_the_algorithm_says_in_a_sentence_that_it_cannot(name, digits):
    settings = RunSettings(rounds=1, withhold="clusters")
    if name in CAN_WITHHOLD:
        Run(ALGORITHMS[name](), *digits, settings)
        return
    with pytest.raises(SettingError, match=r"`withhold` must be nothing for \w+, whose server"):
        Run(ALGORITHMS[name](), *digits, settings)


def test_where_clusters_are_withheld_only_sums_are_in_the_outcome(digits, tmp_path):
    federation, task = digits
    plain, blind = (
        coterie.simulate(
            IFCA(k=4), federation, task, rounds=3, folder=tmp_path / word, withhold=word
        )
        for word in ("nothing", "clusters")
    )
    torch.testing.assert_close(plain.models, blind.models)
    assert blind.clusters.tolist() == [-1] * 8
    assert "ari" not in blind.metrics
    assert blind.metrics["accuracy"] == plain.metrics["accuracy"]
    assert blind.metrics["clusters"] == plain.metrics["clusters"]
    last, other = blind.records[-1], plain.records[-1]
    assert last["sizes"] == other["sizes"]
    assert last["by_cluster"] == other["by_cluster"]
    assert last["moves"] == {}
    clients = json.loads((tmp_path / "clusters" / "clients.json").read_text())["clients"]
    for column in ("cluster", "loss", "accuracy", "x", "y"):
        assert clients[column] in (None, [None] * 8), column
    assert (tmp_path / "clusters" / "report.html").exists()


def test_records_tell_where_clients_are(digits):
    run = coterie.simulate(IFCA(k=4, start="random"), *digits, rounds=6)
    place = {}
    for record in run.records:
        for cluster, clients in record["moves"].items():
            place.update(dict.fromkeys(clients, cluster))
        sizes = [sum(c == j for c in place.values()) for j in range(4)]
        assert sizes == record["sizes"]


def test_without_a_test_part_metrics_are_called_training_metrics(digits):
    federation, task = digits
    run = coterie.simulate(FedAvg(), Federation(federation.train), task, rounds=2)
    assert {"train_accuracy", "train_loss", "train_f1"} <= set(run.metrics)
    assert "accuracy" not in run.metrics
    assert "ari" not in run.metrics


def test_evaluation_can_be_rarer_than_rounds(digits):
    run = coterie.simulate(FedAvg(), *digits, rounds=5, evaluate=2)
    assert [bool(record["metrics"]) for record in run.records] == [False, True, False, True, True]


@pytest.mark.parametrize("kind", ["tags", "two inputs"])
def test_runs_on_samples_of_any_kind_are_resumed_bit_for_bit(kind, tmp_path):
    sizes = [3, 5, 2, 4]
    make, task = {
        "tags": (tagging_federation, tagging_task()),
        "two inputs": (two_input_federation, two_input_task()),
    }[kind]
    federation, other = make(sizes), make(sizes, seed=1)
    settings = {"rounds": 4, "seed": 1, "fraction": 0.5, "lost": 0.2, "checkpoint": 1}
    algorithm = IFCA(k=2, batch=2, start="random")
    whole = coterie.simulate(algorithm, federation, task, folder=tmp_path / "whole", **settings)
    stopped = {"folder": tmp_path / "part", **settings}
    with pytest.raises(Stop):
        coterie.simulate(algorithm, federation, task, on_round=stop_after(2), **stopped)
    again = coterie.simulate(algorithm, federation, task, resume=True, **stopped)
    assert again.metrics == whole.metrics
    assert torch.equal(again.models, whole.models)
    assert (tmp_path / "part" / "report.html").exists()
    with pytest.raises(CheckpointError, match="another run"):
        coterie.simulate(algorithm, other, task, resume=True, **stopped)


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
        (IFCA(k=2), digits, {"rounds": 3, "fraction": 0.5}),
        (FedAvg(), digits, {"rounds": 3}),
        (IFCA(k=2), (other, task), {"rounds": 3}),
    ):
        with pytest.raises(CheckpointError, match="belongs to another run"):
            coterie.simulate(algorithm, *data, folder=tmp_path / "r", resume=True, **settings)


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
            Regression(lambda: nn.Linear(3, 1)),
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


ENDS = [{}, {"starts": 2}]


@pytest.mark.parametrize("copies", ENDS)
def test_a_callback_sees_the_run_and_may_stop_it(digits, tmp_path, copies):
    seen = []

    def on_round(record, run):
        seen.append(run.models.clone())
        assert run.rounds == record["round"]
        assert run.metrics["accuracy"] == record["metrics"]["accuracy"]
        assert len(run.clients) == len(run.clusters) == 8
        if record["round"] == 3:
            run.stop()

    settings = {"rounds": 9, "checkpoint": 9, **copies}
    run = coterie.simulate(
        FedAvg(), *digits, on_round=on_round, folder=tmp_path / "r", evaluate=1, **settings
    )
    assert run.rounds == len(seen) == 3
    assert not torch.equal(seen[0], seen[1])
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert (result["rounds"], result["metrics"]) == (3, run.metrics)
    assert "of 9" in (tmp_path / "r" / "report.html").read_text()
    whole = coterie.simulate(FedAvg(), *digits, **settings)
    again = coterie.simulate(FedAvg(), *digits, folder=tmp_path / "r", resume=True, **settings)
    assert torch.equal(whole.models, again.models)


def test_a_stop_between_evaluations_has_the_metrics_of_its_own_round(digits):
    def on_round(record, run):
        if record["round"] == 3:
            run.stop()

    run = coterie.simulate(FedAvg(), *digits, rounds=9, evaluate=2, on_round=on_round)
    assert run.metrics == coterie.simulate(FedAvg(), *digits, rounds=3).metrics
    run.complete()
    assert run.rounds == 9


@pytest.mark.parametrize("copies", ENDS)
def test_an_error_in_a_callback_loses_neither_result_nor_report(digits, tmp_path, copies):
    runs = []

    def on_round(record, run):
        runs.append(run)
        if record["round"] == 2:
            raise Stop("mine")

    settings = {"rounds": 5, "checkpoint": 5, "folder": tmp_path / "r", **copies}
    with pytest.raises(Stop, match="mine"):
        coterie.simulate(IFCA(k=2), *digits, on_round=on_round, **settings)
    assert json.loads((tmp_path / "r" / "result.json").read_text())["rounds"] == 2
    assert (tmp_path / "r" / "report.html").exists()
    assert runs[-1].models.shape[0] == 2
    assert coterie.simulate(IFCA(k=2), *digits, resume=True, **settings).rounds == 5


def test_a_run_that_has_not_started_says_so(digits):
    run = Run(FedAvg(), *digits, RunSettings())
    assert run.metrics == {}
    with pytest.raises(CoterieError, match="from its start on"):
        _ = run.models


@pytest.mark.parametrize("copies", [{}, {"starts": 2}])
@pytest.mark.parametrize("algorithm", [IFCA(k=2, batch=8), Local(batch=8)])
def test_more_rounds_end_as_a_run_of_that_many(digits, tmp_path, algorithm, copies):
    settings = {"fraction": 0.5, "lost": 0.2, "seed": 2, **copies}
    whole = coterie.simulate(algorithm, *digits, rounds=7, **settings)
    place = tmp_path / "r"
    coterie.simulate(algorithm, *digits, rounds=3, folder=place, **settings)
    longer = coterie.simulate(algorithm, *digits, rounds=7, folder=place, resume=True, **settings)
    assert torch.equal(longer.models, whole.models)
    assert longer.metrics == whole.metrics
    assert longer.result["bytes"] == whole.result["bytes"]
    assert json.loads((place / "config.json").read_text())["settings"]["rounds"] == 7
    with pytest.raises(SettingError, match="at least the rounds that are done, 7, got 5"):
        coterie.simulate(algorithm, *digits, rounds=5, folder=place, resume=True, **settings)
    assert json.loads((place / "result.json").read_text())["rounds"] == 7


def test_a_run_as_frames(digits):
    run = coterie.simulate(IFCA(k=2), *digits, rounds=4, evaluate=2)
    history = run.history
    assert history.index.tolist() == [1, 2, 3, 4]
    assert history["accuracy"].notna().tolist() == [False, True, False, True]
    assert history.loc[4, "accuracy"] == run.metrics["accuracy"]
    assert history["bytes_up"].sum() + run.result["start_bytes_up"] == run.result["bytes_up"]
    clients = run.clients
    assert clients.index.tolist() == list(range(8))
    assert clients["cluster"].tolist() == run.clusters.tolist()
    assert clients["accuracy"].mean() == pytest.approx(run.metrics["accuracy_macro"])


@pytest.mark.parametrize("algorithm", [IFCA(k=2), FedAvg(), Local(), coterie.Ditto(steps=2)])
def test_the_model_of_a_client_predicts_as_it_is_scored(digits, algorithm):
    federation, task = digits
    run = coterie.simulate(algorithm, federation, task, rounds=3)
    for client in (0, 5):
        x, y = federation.test.client(client)
        network = run.model(client)
        hits = (network(task.inputs(x)).argmax(1) == y).float().mean()
        assert float(hits) == pytest.approx(run.clients.loc[client, "accuracy"])
        with torch.no_grad():
            next(network.parameters()).zero_()  # a copy: nothing else changes
        again = (run.model(client)(task.inputs(x)).argmax(1) == y).float().mean()
        assert float(again) == float(hits)
    with pytest.raises(SettingError, match="`client` must be from 0 to 7, got 8"):
        run.model(8)
    with pytest.raises(SettingError, match="no client is named x"):
        run.model("x")


def test_a_folder_of_version_0_1_is_resumed_also_with_more_rounds(tmp_path):
    """Its checkpoint is known by a fingerprint with the number of rounds in it."""
    federation, task = coterie.load("rotated-digits", clients=4)
    settings = {"rounds": 2, "seed": 1}
    whole = coterie.simulate(FedAvg(), federation, task, rounds=3, seed=1)
    before = coterie.simulate(FedAvg(), federation, task, folder=tmp_path, **settings)
    path = tmp_path / "checkpoint.safetensors"
    checkpoint = load_checkpoint(path, before.fingerprint)
    save_checkpoint(path, checkpoint._replace(run=before.fingerprint_with(rounds=2)))
    on = coterie.simulate(
        FedAvg(), federation, task, folder=tmp_path, resume=True, **settings | {"rounds": 3}
    )
    assert torch.equal(on.models, whole.models)
    save_checkpoint(path, checkpoint._replace(run=before.fingerprint_with(rounds=7)))
    with pytest.raises(CheckpointError, match="another run"):
        coterie.simulate(FedAvg(), federation, task, folder=tmp_path, resume=True, **settings)


def test_a_run_says_what_it_is_before_during_and_after(digits, tmp_path):
    said = []
    run = Run(IFCA(k=2), *digits, RunSettings(rounds=2, seed=3))
    run.use(tmp_path / "r")
    assert repr(run) == f"<Run of ifca on rotated-digits: 0 of 2 rounds, seed 3, {tmp_path / 'r'}>"
    run.complete(lambda record, run: said.append(repr(run)))
    assert [text.split(", ")[0] for text in said] == [
        "<Run of ifca on rotated-digits: 1 of 2 rounds",
        "<Run of ifca on rotated-digits: 2 of 2 rounds",
    ]
    assert f"accuracy {run.metrics['accuracy']:.4g}" in repr(run)
    assert "tensor" not in repr(run)
