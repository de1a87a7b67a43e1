"""Folders of runs: finished, stopped on the way, saved, of other kinds, damaged."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.core.errors import CheckpointError, CoterieWarning, SettingError
from coterie.prediction.kept_models import MODELS, read_models, write_models
from tests.prediction.conftest import trained


def test_the_folder_of_a_run_needs_no_data(tables, newcomers, tmp_path):
    table = tmp_path / "train.csv"
    tables["classes"].to_csv(table, index=False)
    federation = coterie.Federation.from_table(table, client="site", label="outcome")
    task = coterie.Classification(SmallNet)
    run = coterie.simulate(
        coterie.IFCA(k=2, lr=0.1), federation, task, rounds=3, folder=tmp_path / "run"
    )
    table.unlink()
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    loaded = coterie.load_run(tmp_path / "elsewhere")
    rows = newcomers["classes"]
    np.testing.assert_array_equal(loaded.predict_proba(rows), run.predict_proba(rows))


class SmallNet(nn.Sequential):
    """A network that is built by its name in this module."""

    def __init__(self):
        super().__init__(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


def test_a_network_without_a_name_is_given(tables, tmp_path):
    federation = coterie.Federation.from_table(tables["classes"], client="site", label="outcome")
    network = nn.Linear(federation.train.x.shape[1], 2)
    run = coterie.simulate(
        coterie.FedAvg(lr=0.1), federation, coterie.Classification(network), rounds=2
    )
    path = run.save(tmp_path / "saved")
    with pytest.raises(SettingError, match=r"give it, as in coterie.load_run\(folder, network="):
        coterie.load_run(path)
    other = nn.Linear(*reversed(network.weight.shape))
    loaded = coterie.load_run(path, network=other)
    rows = tables["classes"]
    np.testing.assert_array_equal(loaded.predict_proba(rows), run.predict_proba(rows))
    with pytest.raises(SettingError, match="must be that of the run, with weight, bias"):
        coterie.load_run(path, network=nn.Linear(3, 2))


def test_frozen_weights_are_kept(tables, tmp_path):
    federation = coterie.Federation.from_table(tables["classes"], client="site", label="outcome")

    def network():
        layers = nn.Sequential(nn.Linear(federation.train.x.shape[1], 4), nn.Linear(4, 2))
        layers[0].requires_grad_(False)
        return layers

    task = coterie.Classification(network)
    run = coterie.simulate(coterie.FedAvg(lr=0.1), federation, task, rounds=1)
    other = network()  # under another seed
    assert not torch.equal(other[0].weight, task.module[0].weight)
    loaded = coterie.load_run(run.save(tmp_path), network=other)
    rows = tables["classes"]
    np.testing.assert_array_equal(loaded.predict_proba(rows), run.predict_proba(rows))


def test_a_run_that_was_stopped_predicts_from_its_last_checkpoint(tables, tmp_path):
    class Killed(Exception):
        pass

    seen = {}

    def kill(record, run):
        if record["round"] == 2:
            seen["expected"] = run.predict_proba(tables["classes"])
        if record["round"] == 3:
            raise Killed

    federation = coterie.Federation.from_table(tables["classes"], client="site", label="outcome")
    parts = coterie.IFCA(k=2, lr=0.1), federation, coterie.Classification(SmallNet)
    run = coterie.Run(*parts, coterie.experiment.settings.RunSettings(rounds=5, checkpoint=2))
    run.use(tmp_path / "run")
    run._end = lambda: None  # the process is gone
    with pytest.raises(Killed):
        run.complete(kill)
    with pytest.warns(CoterieWarning, match="is not finished: its models are those after 2 rounds"):
        loaded = coterie.load_run(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict_proba(tables["classes"]), seen["expected"])


def test_sample_clusters_are_said_of_every_row(tables, newcomers, tmp_path):
    federation = coterie.Federation.from_table(
        tables["classes"], client="site", label="", features="age,dose"
    )
    plain = coterie.tasks.Centre(federation.train.x.shape[1])
    run = coterie.simulate(coterie.KFed(k=3), federation, plain, rounds=1, seed=0)
    loaded = coterie.load_run(run.save(tmp_path))
    x = [federation.train.client(i)[0] for i in range(len(federation))]
    owner = [name for name, rows in zip(federation.clients, x, strict=True) for _ in rows]
    rows = np.concatenate(x)
    # As arrays the training samples are those of the run; new rows have some cluster each.
    labels = run.predictor.samples.labels
    known = [(i, torch.from_numpy(np.flatnonzero(np.array(owner) == f"s{i}"))) for i in range(6)]
    for samples in (labels, loaded.samples.labels):
        found = np.full(len(rows), -1)
        for places, cluster in samples(torch.from_numpy(rows), known, loaded.task):
            found[places] = cluster
        np.testing.assert_array_equal(found, run.labels)
    new = newcomers["classes"]
    found = loaded.predictions(new)
    assert set(found.chosen) == {"sample"}
    assert set(found.group) <= {0, 1, 2}
    np.testing.assert_array_equal(found.group, run.predict(new))


@pytest.fixture
def saved(run, tmp_path):
    return run.save(tmp_path / "saved")


def test_damaged_folders_are_refused_in_a_sentence(saved, tmp_path):
    with pytest.raises(CheckpointError, match="no folder of a run is at"):
        coterie.load_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="is not the folder of a run"):
        coterie.load_run(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has no models\.safetensors to predict with"):
        coterie.load_run(tmp_path / "empty")
    whole = (saved / MODELS).read_bytes()
    for damaged in (
        whole[:-10],
        whole[:100],
        b"",
        whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
    ):
        (saved / MODELS).write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged"):
            coterie.load_run(saved)


def test_models_of_a_later_version_are_refused(saved):
    kept = read_models(saved / MODELS)
    kept.facts["schema"]["version"] = 99
    write_models(saved / MODELS, kept)
    with pytest.raises(CheckpointError, match="install a newer one"):
        coterie.load_run(saved)


def test_too_many_models_of_clients_are_left_out(tables, monkeypatch, tmp_path):
    monkeypatch.setattr("coterie.experiment.outcome.MOST_OWN_NUMBERS", 100)
    run = trained(coterie.Local(lr=0.1), tables["classes"], rounds=1)
    loaded = coterie.load_run(run.save(tmp_path))
    assert loaded.kept.own is None
    for client in ("s1", "new"):
        with pytest.raises(SettingError, match=r"own.* did not keep: .*more than 100"):
            loaded.predict(tables["classes"], client=client)
    assert run.model("s1") is not None  # the run itself still has it


def test_to_load_a_run_takes_another_process(run, saved, newcomers):
    rows = newcomers["classes"]
    rows.to_csv(saved / "new.csv", index=False)
    program = (
        "import coterie, json, sys\n"
        "run = coterie.load_run(sys.argv[1])\n"
        "print(json.dumps(run.predict_proba(sys.argv[1] + '/new.csv').tolist()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(saved)], capture_output=True, text=True, check=True
    )
    expected = run.predict_proba(saved / "new.csv")
    np.testing.assert_array_equal(np.float32(json.loads(done.stdout)), expected)
