import random
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.cli import main as cli
from coterie.core.errors import CoterieError, DataError
from coterie.data.tables.schema import read_schema
from coterie.flower.app import app_from_arguments, read_app, server_app
from coterie.flower.node import NodeFile
from coterie.flower.permission import load_allowed
from coterie.flower.server import run_server
from coterie.flower.settings import App
from tests.flower.fake import FakeGrid, alike, metrics_alike, simulated
from tests.own import write_all


def table(path: Path, hospitals="abcdef", rows=12, seed=0) -> Path:
    """A table in which half of the hospitals turn the rule round."""
    draw = random.Random(seed)
    lines = ["hospital,age,ward,outcome"]
    for place, hospital in enumerate(hospitals):
        for _ in range(rows):
            age = draw.randint(20, 90)
            ill = (age > 55) != (place % 2 == 1)
            ward = draw.choice(["east", "west"])
            lines.append(f"{hospital},{age},{ward},{'ill' if ill else 'well'}")
    path.write_text("\n".join(lines) + "\n")
    return path


TABLE = ["client=hospital", "label=outcome", "k=2", "start=random", "rounds=3", "hidden=4"]


def test_an_app_is_written_and_read_and_keeps_every_setting(tmp_path, capsys):
    words = ["fpfc", "rotated-digits", "clients=8", "lam=0.5", "timeout=30", "quorum=0.8"]
    assert cli.main(["deploy", "init", str(tmp_path / "My App"), *words]) == 0
    assert "rounds of fpfc" in capsys.readouterr().out
    app = read_app(tmp_path / "My App")
    assert app.config() == app_from_arguments(words).config()
    assert (app.network.timeout, app.network.quorum, app.plan.algorithm.lam) == (30.0, 0.8, 0.5)
    project = tomllib.loads((tmp_path / "My App" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    assert cli.main(["deploy", "init", str(tmp_path / "My App"), *words]) == 2
    assert "must be new or empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ifca", "rotated-digits", "quorum=2"], "`quorum`"),
        (["ifca", "rotated-digits", "lr=0.1,1"], "one start and one value"),
        (["ifca", "rotated-digits", "starts=3"], "one start and one value"),
        (["ifca", "rotated-digits", "timeot=3"], "did you mean"),
        (["ifca", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_an_app_that_cannot_be_is_refused(tmp_path, capsys, words, says):
    assert cli.main(["deploy", "init", str(tmp_path / "app"), *words]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "app").exists()


def test_a_table_on_three_nodes_is_the_table_in_one_place(tmp_path):
    whole = table(tmp_path / "all.csv")
    words = ["ifca", str(whole), *TABLE]
    app, files = app_from_arguments(words), spread(whole, tmp_path)
    assert "all.csv" not in app.config()["schema"]
    config = {**app.config(), "path": "", "nodes": 3, "out": str(tmp_path / "run")}
    run = run_server(FakeGrid(App.from_config(config), files), config, "1")
    alike(run, simulated([*words, "evaluate=10"]))
    assert run.federation.clients == tuple("abcdef")
    assert read_schema(tmp_path / "run" / "schema.json") == app.schema


def spread(whole: Path, folder: Path) -> list[NodeFile]:
    """Three nodes that have the hospitals of a table, the last of them one only."""
    lines, files = whole.read_text().splitlines(), []
    for node, own in enumerate(("ab", "cde", "f")):
        path = folder / f"{node}.csv"
        path.write_text("\n".join(line for line in lines if line[0] in own + "h") + "\n")
        memory = str(folder / f"memory{node}")
        files.append(NodeFile(data=str(path), memory=memory, smallest_client=1))
    return files


@pytest.mark.parametrize("label", [["label="], ["features=ward"], ["label=age"], ["label=outcome"]])
def test_clusters_of_samples_need_no_label_over_a_network_either(tmp_path, label):
    whole = table(tmp_path / "all.csv")
    words = ["k-fed", str(whole), "client=hospital", "k=3", "target=auto", *label]
    if label == ["label=age"]:
        words[4] = "target=regression"
    app = app_from_arguments(words)
    assert app.schema.labelled == (label[0] in ("label=age", "label=outcome"))
    config = {**app.config(), "path": "", "nodes": 3, "out": str(tmp_path / "run")}
    run = run_server(FakeGrid(App.from_config(config), spread(whole, tmp_path)), config, "1")
    other = simulated([*words, "evaluate=10"])
    alike(run, other)
    assert metrics_alike(run.metrics, other.metrics, 1e-5)
    assert ("purity" in run.metrics) == (label == ["label=outcome"])
    assert (tmp_path / "run" / "report.html").exists()


def test_an_app_without_a_label_is_for_those_who_need_none(tmp_path, capsys):
    whole = table(tmp_path / "all.csv")
    command = ["deploy", "init", str(tmp_path / "app"), "ifca", str(whole), "client=hospital"]
    assert cli.main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "IFCA learns to predict a label, but all.csv has none" in line
    assert not (tmp_path / "app").exists()


def test_a_node_without_a_label_joins_no_app_that_has_one(tmp_path):
    whole = table(tmp_path / "all.csv")
    text = whole.read_text().replace("outcome", "label", 1)
    whole.write_text(text)
    words = ["k-fed", str(whole), "client=hospital"]
    app = app_from_arguments(words)
    assert app.schema.labelled
    (tmp_path / "mine.csv").write_text(text.replace("label", "outcome", 1))
    with pytest.raises(DataError, match=r"mine.csv does not fit the app: it has no label"):
        app.data(str(tmp_path / "mine.csv"))
    without = app_from_arguments([*words, "label=", "features=age,ward"])
    assert without.data(str(tmp_path / "mine.csv"))[0].train.y.unique().tolist() == [0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("age", "years"), "age"),
        (lambda text: text.replace("east", "3").replace("west", "4"), "`ward` must hold text"),
        (
            lambda text: text.replace("ill", "dead"),
            "`outcome` holds classes that training did not have",
        ),
        (lambda text: text.replace("hospital", "clinic"), "hospital"),
        (lambda text: text.splitlines()[0] + "\n", "no rows"),
    ],
)
def test_a_node_whose_table_does_not_fit_is_told_before_it_joins(tmp_path, capsys, change, says):
    app = tmp_path / "app"
    whole = table(tmp_path / "all.csv")
    assert cli.main(["deploy", "init", str(app), "ifca", str(whole), *TABLE]) == 0
    (tmp_path / "node.toml").write_text('data = "mine.csv"\nsmallest_client = 1\n')
    (tmp_path / "mine.csv").write_text(whole.read_text())
    command = ["deploy", "check", str(tmp_path / "node.toml"), "--app", str(app)]
    capsys.readouterr()
    assert cli.main(command) == 0
    assert "clients   6: a, b, c, d, e, f" in capsys.readouterr().out
    (tmp_path / "mine.csv").write_text(change(whole.read_text()))
    assert cli.main(command) == 2
    assert says in capsys.readouterr().err


def test_what_fails_on_the_server_in_a_method_of_ones_own_is_told_with_its_line(own, tmp_path):
    method, data, _ = write_all(own)
    file = own.folder / f"{method}.py"
    file.write_text(file.read_text().replace("mean = up.model", "mean = {}[up.model.dim()]"))
    words = [f"{method}:Method", f"{data}:Blobs", "rounds=1", f"out={tmp_path / 'run'}", "nodes=1"]
    app = app_from_arguments(words)
    node = NodeFile(memory=str(tmp_path / "m"), allow=load_allowed([words[0], words[1]]))
    grid, context = FakeGrid(app, [node]), SimpleNamespace(run_config=app.config(), run_id=1)
    with pytest.raises(CoterieError, match=rf"KeyError: 2 \({method}.py, line \d+, in round\)"):
        server_app()(grid, context)
