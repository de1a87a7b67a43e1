"""What is exported gives the same numbers without coterie, and holds no row of anybody."""

import csv
import importlib.util
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch

import coterie
from coterie.cli.main import main
from coterie.core.errors import CoterieError, SettingError
from coterie.networks import Linear
from coterie.prediction.export import export_run
from coterie.tasks.defaults import default_task
from tests.prediction.conftest import trained
from tests.prediction.test_predictor import METHODS

HAS_ONNX = all(importlib.util.find_spec(n) for n in ("onnx", "onnxscript", "onnxruntime"))


def scored(folder, table):
    """What the exported script prints about a table, in a process that has no coterie."""
    program = "import sys, runpy; sys.modules['coterie'] = None; runpy.run_path(sys.argv.pop(1))"
    here = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-c", program, str(folder / "predict.py"), str(table)]
    done = subprocess.run(words, capture_output=True, text=True, env=here)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def odd_rows(newcomers):
    """New rows with other categories, gaps and other spellings, of known clients and new ones."""
    rows = newcomers.drop(columns="outcome").astype({"age": object, "city": object, "day": str})
    rows.loc[3, "city"] = "Paris"
    rows.loc[4, "city"] = None
    rows.loc[5, "age"] = "51"
    rows.loc[6, "day"] = None
    rows.loc[7, "day"] = "2021-03-04T12:30:00+01:00"
    return rows


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ifca", "classes"), ("fedavg", "targets"), ("ditto", "targets"), ("mixture", "classes")],
)
def test_the_script_says_what_the_run_says(name, kind, tables, newcomers, tmp_path):
    """Where its exporter is installed, by ONNX."""
    run = trained(METHODS[name], tables[kind])
    left_out = export_run(run.predictor, tmp_path / "out")
    assert HAS_ONNX or left_out == [
        "ONNX, for its exporter is not installed: pip install onnx onnxscript"
    ]
    table = tmp_path / "new.csv"
    odd_rows(newcomers[kind]).to_csv(table, index=False)
    expected = run.predictor.predictions(table)
    assert len(set(expected.chosen)) == 2  # known clients and new ones
    rows = scored(tmp_path / "out", table)
    if kind == "targets":
        found = np.array([float(row["prediction"]) for row in rows])
        np.testing.assert_allclose(found, expected.values, rtol=1e-6)
        return
    for j, each in enumerate(run.predictor.classes):
        found = np.array([float(row[f"probability_{each}"]) for row in rows])
        np.testing.assert_allclose(found, expected.probabilities[:, j], atol=1e-6)
    assert [row["prediction"] for row in rows] == expected.values.tolist()
    assert [row["site"] for row in rows] == newcomers[kind].site.tolist()


def test_the_script_knows_the_unit_of_features_and_what_means_missing(tables, tmp_path):
    rows = tables["targets"].drop(columns="day")
    for i in range(12):  # so alike that all features are divided by a number
        rows[f"dose {i}"] = rows["dose"] + 0.01 * i * rows["age"].fillna(50)
    rows = rows.astype({"city": object, "age": object})
    rows.loc[::7, "city"], rows.loc[::5, "age"] = "?", "-9"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    columns = {"client": "site", "label": "outcome", "missing": "?,-9"}
    federation = coterie.Federation.from_table(tmp_path / "rows.csv", **columns)
    assert federation.schema.encoders[0].unit > 1
    task = default_task(federation, Linear())
    run = coterie.simulate(coterie.FedAvg(), federation, task, rounds=3, seed=0)
    export_run(run.predictor, tmp_path / "out")
    rows.drop(columns="outcome").to_csv(tmp_path / "new.csv", index=False)
    expected = run.predictor.predictions(tmp_path / "new.csv")
    found = [float(row["prediction"]) for row in scored(tmp_path / "out", tmp_path / "new.csv")]
    np.testing.assert_allclose(found, expected.values, rtol=1e-6)


def test_programs_and_weights_are_those_of_the_groups(run, newcomers, tmp_path):
    export_run(run.predictor, tmp_path / "out")
    x = run.federation.schema.encode(newcomers["classes"])
    for j in range(2):
        client = int((run.clusters == j).nonzero()[0])
        network = run.model(client)
        weights = safetensors.torch.load_file(tmp_path / "out" / f"group-{j}.safetensors")
        assert all(torch.equal(weights[n], each) for n, each in network.state_dict().items())
        program = torch.export.load(tmp_path / "out" / f"group-{j}.pt2").module()
        for some in (x, x[:1]):
            torch.testing.assert_close(program(some), network(some), atol=1e-6, rtol=0)
    schema = coterie.read_schema(tmp_path / "out" / "schema.json")
    assert schema == run.federation.schema


@pytest.mark.skipif(not HAS_ONNX, reason="needs onnx, onnxscript and onnxruntime")
def test_programs_of_onnx_are_those_of_the_groups(run, newcomers, tmp_path):
    import onnxruntime

    export_run(run.predictor, tmp_path / "out")
    x = run.federation.schema.encode(newcomers["classes"])
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "group-0.onnx"))
    network = run.model(int((run.clusters == 0).nonzero()[0]))
    for some in (x, x[:1]):
        (found,) = session.run(None, {"x": some.numpy()})
        np.testing.assert_allclose(found, network(some).detach(), atol=1e-6)


def test_the_command_writes_a_card_and_no_row_of_anybody(tables, tmp_path, capsys):
    table = tables["classes"].assign(dose=tables["classes"].dose + 0.123456789)
    table.to_csv(tmp_path / "rows.csv", index=False)
    words = ["run", "ifca", str(tmp_path / "rows.csv"), "client=site", "label=outcome", "k=2"]
    assert main([*words, "rounds=2", "hidden=4", "--out", str(tmp_path / "run")]) == 0
    (tmp_path / "rows.csv").unlink()
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    assert "2 models in" in capsys.readouterr().out
    card = (tmp_path / "out" / "README.md").read_text()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert f"| accuracy | test | {result['metrics']['accuracy']:.6g} |" in card
    sent = result["bytes"]["IFCA.train"]["up"]["model"]
    assert f"| IFCA.train | model | {sent:,} |" in card
    assert "| group-0 | " in card
    assert "6 clients" in card
    texts = [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    assert not any(str(dose).encode() in text for text in texts for dose in table.dose)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


def test_own_models_are_exported_by_client(tables, tmp_path, monkeypatch):
    run = trained(coterie.Local(lr=0.1), tables["classes"], rounds=1)
    monkeypatch.setattr("coterie.prediction.export.MOST_OWN_EXPORTED", 3)
    with pytest.raises(SettingError, match="6 clients have models of their own, more than 3"):
        export_run(run.predictor, tmp_path / "all")
    assert not (tmp_path / "all").exists()
    export_run(run.predictor, tmp_path / "one", clients=["s4"])
    names = {path.name for path in (tmp_path / "one").iterdir() if path.suffix == ".safetensors"}
    assert names == {"client-4.safetensors"}
    tables["classes"].to_csv(tmp_path / "every.csv", index=False)
    with pytest.raises(AssertionError, match="no model is here for some of the clients"):
        scored(tmp_path / "one", tmp_path / "every.csv")
    rows = tables["classes"][tables["classes"].site == "s4"]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    found = [
        float(row["probability_ill"]) for row in scored(tmp_path / "one", tmp_path / "rows.csv")
    ]
    np.testing.assert_allclose(found, run.predict_proba(rows)[:, 0], atol=1e-6)


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(run, tables, tmp_path):
    with pytest.raises(SettingError, match="no client is named s44"):
        export_run(run.predictor, tmp_path / "out", clients=["s44"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(CoterieError, match="must be new or empty"):
        export_run(run.predictor, tmp_path / "full")
    federation = coterie.Federation.from_table(tables["classes"], client="site", label="")
    task = coterie.Centre(federation.train.x.shape[1])
    clusters = coterie.simulate(coterie.KFed(k=2), federation, task, rounds=1)
    with pytest.raises(SettingError, match="but this run learns a Centre"):
        export_run(clusters.predictor, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_arrays_are_exported_without_a_script(tmp_path):
    federation, task = coterie.load("rotated-digits", clients=4, hidden=4)
    run = coterie.simulate(coterie.FedAvg(), federation, task, rounds=1)
    left_out = export_run(run.predictor, tmp_path / "out")
    assert any("predict.py, for the samples" in reason for reason in left_out)
    x, _ = federation.test.client(0)
    program = torch.export.load(tmp_path / "out" / "group-0.pt2").module()
    torch.testing.assert_close(program(x.float()), run.model(0)(task.inputs(x)))
