"""Settings of the network have several values, which held-out samples choose between."""

import json

import numpy as np
import pytest

import coterie
from coterie.cli import main as cli
from coterie.core.errors import SettingError
from coterie.experiment.plan import make_plan, plan_again

SETTINGS = ["client=site", "label=outcome", "k=2", "rounds=4", "start=random", "seed=3"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table whose answer no linear model gives: the sign of a product."""
    rng, path = np.random.default_rng(8), tmp_path_factory.mktemp("table") / "rows.csv"
    lines = ["site,a,b,outcome"]
    for client in range(6):
        for a, b in rng.normal(size=(60, 2)):
            lines.append(f"s{client},{a:.4f},{b:.4f},{'yes' if a * b > 0 else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run_words(words, capsys):
    assert cli.main(["run", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("more", [["lr=0.1"], ["lr=0.1,0.3"]], ids=["alone", "with lr"])
def test_every_copy_is_the_run_with_that_network_alone(table, tmp_path, capsys, more):
    words = ["ifca", str(table), *SETTINGS, *more]
    found = run_words([*words, "hidden=0/24/16,8", "--out", str(tmp_path / "grid")], capsys)
    copies = found["copies"]
    assert [copy["hidden"] for copy in copies[:: len(copies) // 3]] == [0, 24, "16,8"]
    for copy in copies[-3:]:
        point = [f"hidden={copy['hidden']}"] + ([f"lr={copy['lr']}"] if "lr" in copy else [])
        own = [word for word in words if not word.startswith("lr=") or "lr" not in copy]
        alone = run_words([*own, *point], capsys)
        assert alone["metrics"]["loss"] == pytest.approx(copy["metrics"]["loss"], rel=1e-4)
    lowest = min(copies, key=lambda copy: copy["validation_loss"])
    assert found["chosen"]["hidden"] == lowest["hidden"] != 0


@pytest.mark.filterwarnings("ignore:one of 2 clusters has held")
def test_the_models_of_the_network_that_was_chosen_predict(table, tmp_path, capsys):
    words = ["ifca", str(table), *SETTINGS, "rounds=30", "lr=0.3", "hidden=0/24"]
    words.remove("rounds=4")
    found = run_words([*words, "--out", str(tmp_path / "run")], capsys)
    assert found["selection"]["values"] == [0, 24]
    assert found["selection"]["taken"] == 24
    assert found["selection"]["reason"].startswith("hidden=24 is taken")
    network = coterie.load_run(tmp_path / "run").model("s0")
    assert sum(p.numel() for p in network.parameters()) == 2 * 24 + 24 + 24 * 2 + 2


def test_a_grid_of_networks_is_resumed(table, tmp_path, capsys):
    words = ["ifca", str(table), *SETTINGS, "hidden=0/8,4"]
    run_words([*words, "--out", str(tmp_path / "run")], capsys)
    more = [word.replace("rounds=4", "rounds=7") for word in words]
    whole = run_words([*more, "--out", str(tmp_path / "whole")], capsys)
    assert cli.main(["run", "--resume", str(tmp_path / "run"), "rounds=7", "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed["copies"] == whole["copies"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"]["hidden"] == "0/8,4"
    assert plan_again(config, ["hidden=0/8,4"]).grid == {"hidden": (0, "8,4")}
    with pytest.raises(SettingError, match=r"`hidden` is 0/8,4, got 0"):
        plan_again(config, ["hidden=0"])


def test_k_is_found_beside_the_network(table, tmp_path, capsys):
    words = ["ifca", str(table), *SETTINGS, "hidden=0/8", "k=auto"]
    words.remove("k=2")
    found = run_words(words, capsys)
    assert found["selection"]["setting"] == "k"
    assert {copy["hidden"] for copy in found["copies"]} == {0, 8}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("hidden=0/0", "`hidden` is given the same value twice: 0/0"),
        ("hidden=0/x", "must be auto, 0 or whole numbers of at least 1"),
        ("hidden=0/-2", "must be auto, 0 or whole numbers of at least 1"),
        ("hidden=0/", "must be auto, 0 or whole numbers of at least 1"),
        ("network=linear/mlp", "no network is named linear/mlp"),
        ("lr=0.1/1", "`lr` must be a number, got 0.1/1"),
    ],
)
def test_wrong_values_are_one_sentence(table, capsys, word, says):
    assert cli.main(["run", "ifca", str(table), *SETTINGS, word]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_comma_is_a_layer_and_not_a_value(table):
    assert make_plan(["ifca", str(table), *SETTINGS, "hidden=64,32"]).grid == {}


def test_in_python_a_sentence_names_the_way():
    federation, task = coterie.load("rotated-digits", clients=8, seed=0)
    with pytest.raises(SettingError, match=r"no setting named hidden; those of the network are in"):
        coterie.simulate(coterie.IFCA(), federation, task, grid={"hidden": [0, 8]})
    with pytest.raises(SettingError, match=r'grid=\{"k": "auto"\}\) finds it'):
        coterie.IFCA(k="auto")
