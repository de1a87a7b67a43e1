"""A node keeps the final models, and scores its own table as the simulation would."""

import socket

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.cli import main as cli
from coterie.core.errors import CoterieWarning, DataError, SettingError
from coterie.flower.app import read_app, write_app
from coterie.flower.final_models import load_final_models, model_folder
from coterie.flower.node import NodeWorker
from coterie.flower.node_file import NodeFile
from coterie.flower.server import run_server
from coterie.flower.settings import App
from coterie.flower.wire import Packet, decode_packet
from coterie.prediction.kept_models import MODELS
from tests.flower.fake import FAST, FakeGrid, edited, simulated

NAMES = ["client=site", "label=outcome"]
METHODS = {
    "ifca": ["ifca", "k=2", "start=random"],
    "withheld": ["ifca", "k=2", "start=random", "withhold=clusters"],
    "fedavg": ["fedavg"],
    "local": ["local"],
    "ditto": ["ditto"],
    "fpfc": ["fpfc", "lam=0.2"],
    "tuned": ["fedavg", "finetune=2"],
    "outliers": ["ifca", "k=2", "start=random", "finetune=2", "finetune_for=outliers"],
    "per-fedavg": ["per-fedavg"],
    "fesem": ["fesem", "k=2", "serves=own"],
}


def write_rows(path, clients, seed=3, rows=14, target="class"):
    """Clients of two groups with opposite labels, gaps and categories among their rows."""
    rng = np.random.default_rng(seed)
    weights, frames = rng.normal(size=(4, 3)), []
    for client in clients:
        x = rng.normal(size=(rows, 4))
        scores = x @ weights * (1 if client % 2 else -1)
        frame = pd.DataFrame(x, columns=list("abcd")).round(4)
        frame.loc[rng.random(rows) < 0.1, "b"] = np.nan
        frame["ward"] = rng.choice(["north", "south"], rows)
        frame["site"] = f"s{client}"
        names = np.array(["low", "mid", "top"])
        frame["outcome"] = names[scores.argmax(1)] if target == "class" else 1e4 * scores[:, 0]
        frames.append(frame)
    pd.concat(frames).to_csv(path, index=False)
    return path


def make_nodes(tmp_path, words, target="class"):
    """The folder of an app on a table, and three nodes with tables of their own."""
    whole = write_rows(tmp_path / "all.csv", range(6), target=target)
    frame = pd.read_csv(whole)
    files = []
    for number in range(3):
        home = tmp_path / f"node{number}"
        home.mkdir()
        own = frame[frame["site"].isin([f"s{2 * number}", f"s{2 * number + 1}"])]
        own.to_csv(home / "own.csv", index=False)
        (home / "node.toml").write_text('data = "own.csv"\nsmallest_client = 1\n')
        files.append(home / "node.toml")
    settings = [*NAMES, "rounds=3", "hidden=0", "evaluate=1"]
    words = [words[0], str(whole), *settings, *words[1:]]
    write_app(tmp_path / "app", [*words, "nodes=3", f"out={tmp_path / 'run'}"])
    return words, files


def run_app(tmp_path, files, attempt="1", change=None, **changes):
    """The run of the app in this process, and its grid."""
    app = read_app(tmp_path / "app")
    config = app.config() | changes
    grid = FakeGrid(App.from_config(config), [NodeFile.read(path) for path in files])
    grid.config, grid.change = config, change or {}
    run = run_server(grid, config, attempt, pace=FAST)
    return run, grid


def replies_to_keep(grid):
    """What nodes would reply to the messages that brought the final models."""
    asked = [(n, m) for n, m in grid.sent if decode_packet(m.content).header["do"] == "keep"]
    return [decode_packet(grid.answer(node, message).content) for node, message in asked]


@pytest.mark.filterwarnings("ignore::coterie.core.errors.CoterieWarning")
@pytest.mark.parametrize("target", ["class", "number"])
@pytest.mark.parametrize("method", METHODS)
def test_a_node_predicts_what_the_simulation_does(tmp_path, method, target):
    words, files = make_nodes(tmp_path, METHODS[method], target)
    run_app(tmp_path, files)
    expected = simulated(words).predictor
    # What the server of a simulation is not told, a node knows of its own clients.
    unknown = {"labels", "average"} if method == "withheld" else set()
    for path in files:
        file = NodeFile.read(path)
        found = load_final_models(file, read_app(tmp_path / "app")).predictions(file.data)
        other = expected.predictions(file.data)
        same = np.isin(other.chosen, list(unknown), invert=True)
        assert set(found.chosen) <= {"training", "own"}
        assert (found.chosen == other.chosen)[same].all()
        if target == "class":
            assert (found.values == other.values).all()
            np.testing.assert_allclose(found.probabilities, other.probabilities, atol=2e-6)
        else:
            np.testing.assert_allclose(found.values, other.values, rtol=1e-5, atol=0.1)


def test_new_clients_of_a_node_are_served_as_everywhere(tmp_path):
    words, files = make_nodes(tmp_path, METHODS["ifca"])
    run_app(tmp_path, files)
    new = write_rows(tmp_path / "new.csv", range(6, 9), seed=4)
    frame = pd.read_csv(new)
    frame.loc[frame["site"] == "s8", "outcome"] = np.nan
    expected = simulated(words).predictor.predictions(frame)
    found = load_final_models(NodeFile.read(files[1]), None).predictions(frame)
    assert set(found.chosen) == {"labels", "average"}
    assert (found.chosen == expected.chosen).all()
    assert (found.group == expected.group).all()
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=2e-6)


def test_a_node_is_told_of_its_own_clients_only_and_sends_nothing_back(tmp_path):
    _, files = make_nodes(tmp_path, METHODS["ifca"])
    _, grid = run_app(tmp_path, files)
    asked = [m for _, m in grid.sent if decode_packet(m.content).header["do"] == "keep"]
    assert len(asked) == 3
    for message in asked:
        header, tensors = decode_packet(message.content)
        assert len(header["names"]) == len(tensors["cluster"]) == 2
    for reply in replies_to_keep(grid):
        assert set(reply.header) == {"startup"}
        assert not reply.tensors
    kept = load_final_models(NodeFile.read(files[0]), None)
    assert kept.clients == ("s0", "s1")


def test_prediction_on_a_node_opens_no_connection(tmp_path, monkeypatch, capsys):
    _, files = make_nodes(tmp_path, METHODS["fedavg"])
    run_app(tmp_path, files)

    def refuse(*args, **kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    command = ["deploy", "predict", str(files[0]), "--app", str(tmp_path / "app")]
    assert cli.main([*command, "--out", str(tmp_path / "scored.csv")]) == 0
    assert "28 rows predicted: 28 by training" in capsys.readouterr().err
    scored = pd.read_csv(tmp_path / "scored.csv")
    own = pd.read_csv(files[0].parent / "own.csv")
    pd.testing.assert_frame_equal(scored[own.columns], own)
    assert list(scored.columns[len(own.columns) :]) == [
        "prediction",
        "probability_low",
        "probability_mid",
        "probability_top",
        "group",
        "group_by",
    ]


def test_the_next_run_replaces_the_model_and_a_failed_one_does_not(tmp_path):
    _, files = make_nodes(tmp_path, METHODS["fedavg"])
    run_app(tmp_path, files)
    folder = model_folder(NodeFile.read(files[0]))
    before = (folder / MODELS).read_bytes()
    run_app(tmp_path, files, "2", out=str(tmp_path / "again"), seed=7)
    assert (folder / MODELS).read_bytes() != before
    assert [path.name for path in folder.parent.glob("model-*")] == [folder.name]
    kept = load_final_models(NodeFile.read(files[0]), None)
    assert kept.kept.facts["seed"] == 7
    with pytest.raises(SettingError, match="the model of this node is of another app"):
        load_final_models(NodeFile.read(files[0]), read_app(tmp_path / "app"))


def test_a_run_that_is_complete_hands_out_its_models_once_more_when_it_is_resumed(tmp_path):
    _, files = make_nodes(tmp_path, METHODS["ifca"])
    run_app(tmp_path, files)
    file = NodeFile.read(files[2])
    first = load_final_models(file, None).predict_proba(file.data)
    for path in model_folder(file).iterdir():
        path.unlink()
    with pytest.raises(SettingError, match="the node has no model yet"):
        load_final_models(file, None)
    run_app(tmp_path, files, "2", resume=True)
    assert (load_final_models(file, None).predict_proba(file.data) == first).all()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    _, files = make_nodes(tmp_path, METHODS["fedavg"])
    folder = model_folder(NodeFile.read(files[0]))
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("precious")
    with pytest.warns(CoterieWarning, match="replied with an error"):
        run_app(tmp_path, files)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert load_final_models(NodeFile.read(files[1]), None).clients == ("s2", "s3")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.update(models=t["models"][:, 1:]), "must be rows of"),
        (lambda t: t.update(members=t["members"][1:]), "how many clients each final model has"),
        (lambda t: t.update(cluster=t["cluster"] + 9), "which final model serves each client"),
        (lambda t: t.pop("models"), "the tensor `models` of a message is missing"),
        (lambda t: t.update(tuned=torch.ones(5)), "who uses a model that was fine-tuned"),
        (lambda t: t.update(mixture=torch.ones(5, 5)), "in which shares"),
    ],
)
def test_what_cannot_be_final_models_is_refused_and_nothing_is_written(tmp_path, edit, words):
    _, files = make_nodes(tmp_path, METHODS["ifca"])
    _, grid = run_app(tmp_path, files)
    file = NodeFile.read(files[0])
    before = (model_folder(file) / MODELS).read_bytes()
    message = next(
        m for n, m in grid.sent if n == 1 and decode_packet(m.content).header["do"] == "keep"
    )
    packet = decode_packet(edited(message, lambda header, tensors: edit(tensors)).content)
    with pytest.raises(Exception, match=words):
        NodeWorker(file).answer(grid.config, Packet(packet.header, packet.tensors))
    assert (model_folder(file) / MODELS).read_bytes() == before


def test_wrong_input_is_one_sentence(tmp_path, capsys):
    _, files = make_nodes(tmp_path, METHODS["fedavg"])
    command = ["deploy", "predict", str(files[0])]
    assert cli.main(command) == 2
    assert "the node has no model yet" in capsys.readouterr().err
    run_app(tmp_path, files)
    rows = pd.read_csv(files[0].parent / "own.csv")
    cases = {
        "less.csv": (rows.drop(columns="c"), "`c`"),
        "text.csv": (rows.assign(a="far"), "must hold numbers"),
    }
    for name, (frame, words) in cases.items():
        frame.to_csv(tmp_path / name, index=False)
        out = tmp_path / "out.csv"
        assert cli.main([*command, str(tmp_path / name), "--out", str(out)]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
        assert not out.exists()
    assert cli.main([*command, "--app", str(tmp_path / "nowhere")]) == 2
    assert "is not the folder of a coterie app" in capsys.readouterr().err
    write_app(tmp_path / "other", ["fedavg", str(tmp_path / "all.csv"), *NAMES, "rounds=9"])
    assert cli.main([*command, "--app", str(tmp_path / "other")]) == 2
    assert "is of another app" in capsys.readouterr().err


def test_a_method_that_clusters_samples_hands_out_nothing(tmp_path):
    words = ["k-fed", "k=2"]
    whole = write_rows(tmp_path / "all.csv", range(6))
    (tmp_path / "node.toml").write_text('data = "all.csv"\nsmallest_client = 1\n')
    write_app(
        tmp_path / "app",
        [words[0], str(whole), "client=site", "label=", words[1], f"out={tmp_path / 'run'}"],
    )
    _, grid = run_app(tmp_path, [tmp_path / "node.toml"])
    actions = {decode_packet(m.content).header["do"] for _, m in grid.sent}
    assert "finish" in actions
    assert "keep" not in actions
    with pytest.raises((SettingError, DataError), match="the node has no model yet"):
        load_final_models(NodeFile.read(tmp_path / "node.toml"), None)
