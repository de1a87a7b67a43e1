"""Real processes: a SuperLink, three SuperNodes and workers, TLS and keys, on this machine."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.cli import main as cli
from coterie.cli.deploy import remove_nodes
from coterie.flower.app import read_app
from coterie.flower.final_models import load_final_models
from coterie.flower.memory_folders import RunFacts, open_run
from coterie.flower.node_file import NodeFile
from tests.flower.fake import metrics_alike, simulated
from tests.flower.test_final_models import write_rows

WORDS = "rotated-digits clients=6 samples=20 hidden=8 steps=2 k=2 start=random rounds=2 evaluate=2"


@pytest.mark.slow
def test_two_rounds_on_three_nodes_are_the_simulated_ones(tmp_path, capsys):
    words = ["ifca", *WORDS.split()]
    app, out = tmp_path / "app", tmp_path / "run"
    assert cli.main(["deploy", "init", str(app), *words]) == 0
    command = [sys.executable, "-m", "coterie", "deploy", "local", str(app)]
    done = subprocess.run(
        [*command, "--nodes", "3", "--out", str(out)], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 nodes (TLS and node keys)" in done.stdout
    assert "round 2/2" in done.stdout
    state = safetensors.torch.load_file(out / "checkpoint.safetensors")
    expected = simulated(words)
    torch.testing.assert_close(state["state.models"], expected.state.models, rtol=1e-6, atol=1e-6)
    result = json.loads((out / "result.json").read_text())
    assert metrics_alike(result["metrics"], expected.metrics, 1e-5)
    assert result["bytes"] == expected.bytes.table()
    assert (out / "report.html").exists()
    left = {path.name for path in out.with_name("run-nodes").rglob("*") if path.is_file()}
    assert left == {"node.toml", "models.safetensors"}
    node = out.with_name("run-nodes") / "1" / "node.toml"
    models = load_final_models(NodeFile.read(node), read_app(app))
    x = expected.federation.test.client(0)[0]
    np.testing.assert_allclose(
        models.predict_proba(x, client=models.clients[0]), expected.predict_proba(x, 0), atol=2e-6
    )


@pytest.mark.slow
def test_a_node_scores_its_own_table_after_a_real_run(tmp_path, capsys):
    whole = write_rows(tmp_path / "all.csv", range(4))
    app, out = tmp_path / "app", tmp_path / "run"
    words = ["ifca", str(whole), "client=site", "label=outcome", "k=2", "rounds=2", "start=random"]
    assert cli.main(["deploy", "init", str(app), *words]) == 0
    command = [sys.executable, "-m", "coterie", "deploy", "local", str(app), "--nodes", "2"]
    local = [*command, "--data", str(whole), "--out", str(out)]
    done = subprocess.run(local, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = simulated([*words, "evaluate=10"]).predict_proba(whole)
    for number, own in ((1, ("s0", "s1")), (2, ("s2", "s3"))):
        node, scored = tmp_path / "run-nodes" / str(number) / "node.toml", tmp_path / "scored.csv"
        assert cli.main(["deploy", "predict", str(node), "--out", str(scored)]) == 0
        found = pd.read_csv(scored)
        mine = found["site"].isin(own).to_numpy()
        assert set(found["group_by"][mine]) == {"training"}
        chances = found.filter(like="probability_").to_numpy()
        np.testing.assert_allclose(chances[mine], expected[mine], atol=2e-6)


def test_what_was_in_the_folder_of_the_nodes_before_stays(tmp_path):
    home = tmp_path / "run-nodes"
    nodes = [home / str(number) / "node.toml" for number in (1, 2)]
    for node in nodes:
        node.parent.mkdir(parents=True)
        node.write_text("share = '1/2'\n")
        open_run(node.parent / "memory", "run", RunFacts("run", "ditto", 2))
    (home / "1" / "memory" / "mine").mkdir()
    (home / "1" / "memory" / "mine" / "notes.txt").write_text("precious")
    remove_nodes(home, nodes)
    assert [path.name for path in home.rglob("*") if path.is_file()] == ["notes.txt"]
    (home / "1" / "memory" / "mine" / "notes.txt").unlink()
    (home / "1" / "memory" / "mine").rmdir()
    remove_nodes(home, nodes)
    assert not home.exists()


def test_more_nodes_than_clients_are_refused_before_anything_starts(tmp_path, capsys):
    table = tmp_path / "visits.csv"
    rows = [f"{site},{number},{number % 3}" for site in "ab" for number in range(5)]
    table.write_text("\n".join(["site,dose,age", *rows]))
    app, out = tmp_path / "app", tmp_path / "run"
    assert cli.main(["deploy", "init", str(app), "uifca", str(table), "client=site", "k=2"]) == 0
    command = ["deploy", "local", str(app), "--data", str(table), "--out", str(out)]
    assert cli.cli.main([*command, "--nodes", "3"]) == 2
    said = capsys.readouterr().err
    assert "--nodes must be at most 2, the clients that the nodes share, got 3" in said
    assert not out.with_name("run-nodes").exists()


def node_with_memory(folder, run):
    """A NODE.toml whose clients kept something of a run."""
    folder.mkdir()
    path = open_run(folder / "memory", f"{run}-0", RunFacts(run, "ditto", 2))
    (path / "00000001-00000001-a.safetensors").write_bytes(b"kept" * 10**5)
    (folder / "node.toml").write_text("")
    return folder / "node.toml"


def test_what_a_node_keeps_is_listed_taken_over_and_removed(tmp_path, capsys):
    old, new = node_with_memory(tmp_path / "old", "abc"), tmp_path / "node.toml"
    new.write_text("")
    assert cli.main(["deploy", "memory", str(new)]) == 0
    assert "keeps 0 runs." in capsys.readouterr().out
    assert cli.main(["deploy", "memory", str(new), "--from", str(old.parent / "memory")]) == 0
    assert cli.main(["deploy", "memory", str(new)]) == 0
    told = capsys.readouterr().out.splitlines()[-1].split()
    assert told == ["abc", "ditto", "2", "clients", "0.0", "days", "0.4", "MB", "not", "finished"]
    assert cli.main(["deploy", "memory", str(new), "--remove", "abc"]) == 0
    assert not list((tmp_path / "memory").iterdir())
    assert cli.main(["deploy", "memory", str(old)]) == 0
    assert "keeps 1 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--remove", "none"], "nothing of a run none is kept"),
        (["--from", "nowhere"], "nowhere must be the memory of a node"),
    ],
)
def test_a_memory_that_is_not_there_is_one_sentence(tmp_path, capsys, words, says):
    node = node_with_memory(tmp_path / "node", "abc")
    assert cli.main(["deploy", "memory", str(node), *words]) == 2
    assert says in capsys.readouterr().err


def test_whose_client_it_is_is_listed_and_changed(tmp_path, capsys):
    path = tmp_path / "clients.json"
    assert cli.main(["deploy", "owners", str(path)]) == 2
    assert "there is no file" in capsys.readouterr().err
    path.write_text('{"a": "SHA256:old", "b": "SHA256:old", "c": "SHA256:other"}')
    assert cli.main(["deploy", "owners", str(path), "--replace", "SHA256:old", "SHA256:new"]) == 0
    assert "2 clients of SHA256:old belong to SHA256:new now." in capsys.readouterr().out
    assert cli.main(["deploy", "owners", str(path), "--remove", "SHA256:other"]) == 0
    assert "2 clients of 1 keys" in capsys.readouterr().out
    assert cli.main(["deploy", "owners", str(path), "--remove", "other"]) == 2
    assert "a key must be a .pub file or a fingerprint" in capsys.readouterr().err
