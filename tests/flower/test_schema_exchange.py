"""A schema is learnt from sums of the nodes: that of their tables together."""

import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.cli import main as cli
from coterie.core.errors import CoterieError, CoterieWarning, DataError
from coterie.data.tables.joint_schema import joint_columns, joint_target, learn_joint_schema
from coterie.data.tables.schema import Schema, read_schema
from coterie.data.tables.table import Table
from coterie.experiment.plan import make_plan
from coterie.flower.app import read_app, write_app
from coterie.flower.final_models import load_final_models
from coterie.flower.node import NodeWorker
from coterie.flower.node_file import NodeFile
from coterie.flower.schema_exchange import answer_question, check_answer, own_sums
from coterie.flower.server import run_server
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet, decode_packet
from tests.flower.fake import FAST, FakeGrid, simulated

WORDS = ["client=site", "label=outcome", "rounds=2", "evaluate=1"]


def mixed_table(path, label="text", seed=1, clients=9, rows=40):
    """Numbers far from 0, gaps, dates, booleans, categories common and rare, constant columns."""
    rng = np.random.default_rng(seed)
    count = clients * rows
    city = rng.choice([f"city {i}" for i in range(30)], count, p=rng.dirichlet(np.ones(30)))
    frame = pd.DataFrame(
        {
            "site": np.repeat([f"s{i}" for i in range(clients)], rows),
            "age": rng.normal(1e6, 3, count).round(3),
            "dose": rng.exponential(1e-4, count),
            "stage": rng.integers(1, 5, count),
            "smoker": rng.random(count) < 0.3,
            "day": pd.to_datetime("2021-03-01") + pd.to_timedelta(rng.integers(0, 700, count), "D"),
            "ward": rng.choice(["north", "south", "west"], count),
            "city": city,
            "same": 7,
            "note": [f"text {i}" for i in range(count)],
        }
    )
    score = (frame["age"] - 1e6) / 3 + (frame["ward"] == "west") + rng.normal(size=count)
    outcome = {
        "text": np.where(score > 0.5, "ill", np.where(score > -0.5, "unclear", "well")),
        "bool": score > 0,
        "codes": (score > 0).astype(int) + 3,
        "number": 5e4 + 2e3 * score,
        "amounts": (5000 + 900 * score).round().astype(int),
    }[label]
    frame["outcome"] = outcome
    frame.loc[rng.random(count) < 0.1, "dose"] = np.nan
    frame.loc[rng.random(count) < 0.1, "ward"] = None
    frame.to_csv(path, index=False)
    return path


def make_deployment(tmp_path, whole, *words, shares=((0, 2), (2, 5), (5, 9)), node=""):
    """The folder of an app without a schema, and nodes with tables of their own."""
    frame, files = pd.read_csv(whole), []
    names = sorted(frame["site"].unique())
    for number, (begin, end) in enumerate(shares):
        home = tmp_path / f"node{number}"
        home.mkdir()
        frame[frame["site"].isin(names[begin:end])].to_csv(home / "own.csv", index=False)
        (home / "node.toml").write_text(
            f'data = "own.csv"\nschema_rows = 1\nsmallest_client = 1\n{node}'
        )
        files.append(home / "node.toml")
    words = ["ifca", "table", *WORDS, "k=2", "start=random", *words, f"nodes={len(files)}"]
    write_app(tmp_path / "app", [*words, f"out={tmp_path / 'run'}"])
    return files


def run_app(tmp_path, files, attempt="1", **changes):
    config = read_app(tmp_path / "app").config() | changes
    grid = FakeGrid(App.from_config(config), [NodeFile.read(path) for path in files])
    grid.config = config
    return run_server(grid, config, attempt, pace=FAST), grid


def alike(one: Schema, other: Schema) -> None:
    """Two schemas are equal, numbers to rounding."""

    def flat(value):
        if isinstance(value, dict):
            return {k: flat(v) for k, v in value.items()}
        if isinstance(value, list):
            return [flat(v) for v in value]
        return pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value

    mine, theirs = one.raw(), other.raw()
    assert list(mine) == list(theirs)
    for name, value in theirs.items():
        if name == "encoders":
            assert len(value) == len(mine[name])
            for found, expected in zip(mine[name], value, strict=True):
                assert found == flat(expected)
        else:
            assert mine[name] == flat(value)


OPTIONS = [[], ["missing=2"], ["categorical=stage"], ["features=age,ward"], ["standardise=false"]]
OPTIONS += [["categories=4"], ["group=day"], ["stratify=false", "seed=5"], ["scale_target=false"]]


@pytest.mark.filterwarnings("ignore::coterie.core.errors.CoterieWarning")
@pytest.mark.parametrize("label", ["text", "bool", "codes", "number", "amounts"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "as it is")
def test_the_schema_of_nodes_is_that_of_their_tables_together(tmp_path, label, options):
    whole = mixed_table(tmp_path / "all.csv", label)
    files = make_deployment(tmp_path, whole, *options)
    app = read_app(tmp_path / "app")
    sums = [own_sums(app, NodeFile.read(path)) for path in files]

    def ask(question, content):
        said = [answer_question(each, question_packet(question, content)) for each in sums]
        crossed = [json.loads(json.dumps(reply.header["answer"])) for reply in said]
        return [check_answer(question, content, answer) for answer in crossed]

    found = learn_joint_schema(app.plan.federation, ask)
    plan = make_plan(["ifca", str(whole), *WORDS, "k=2", "start=random", *options])
    alike(found, plan.build().schema)


def question_packet(question, content):
    return Packet({"do": "learn", "question": question, "content": json.loads(json.dumps(content))})


@pytest.mark.filterwarnings("ignore::coterie.core.errors.CoterieWarning")
def test_a_run_with_a_learnt_schema_is_the_simulation_and_its_nodes_predict(tmp_path):
    whole = mixed_table(tmp_path / "all.csv")
    files = make_deployment(tmp_path, whole)
    run, _ = run_app(tmp_path, files)
    other = simulated(["ifca", str(whole), *WORDS, "k=2", "start=random"])
    alike(run.federation.schema, other.federation.schema)
    assert read_schema(tmp_path / "run" / "schema.json") == run.federation.schema
    assert run.metrics["accuracy"] == pytest.approx(other.metrics["accuracy"], abs=0.01)
    assert run.metrics["loss"] == pytest.approx(other.metrics["loss"], rel=1e-3)
    file = NodeFile.read(files[1])
    found = load_final_models(file, read_app(tmp_path / "app")).predict_proba(file.data)
    np.testing.assert_allclose(found, other.predict_proba(file.data), atol=1e-3)
    again, grid = run_app(tmp_path, files, "2", resume=True, rounds=3)
    assert again.rounds == 3
    asked = [decode_packet(message.content).header["do"] for _, message in grid.sent]
    assert "learn" not in asked, "a run that goes on has its schema"


def said_by(files, words):
    """What the node of a file answers to all questions, as the server hears it."""
    worker = NodeWorker(NodeFile.read(files))
    found, content = [], {"target": "", "classes": [], "columns": []}
    for question in ("columns", "sums"):
        packet = Packet({"do": "learn", "question": question, "content": content})
        answer = worker.answer(words, packet).header["answer"]
        if question == "columns":
            content["columns"] = [[name, kind or "number"] for name, kind in answer["columns"]]
        found.append(answer)
    return found


def test_names_that_few_rows_have_do_not_leave_a_node(tmp_path):
    whole = mixed_table(tmp_path / "all.csv")
    files = make_deployment(tmp_path, whole)
    config = read_app(tmp_path / "app").config()
    own = pd.read_csv(files[0].parent / "own.csv")
    counts = own["city"].value_counts()
    for least in (1, 5, 10):
        files[0].write_text(f'data = "own.csv"\nschema_rows = {least}\n')
        said = json.dumps(said_by(files[0], config))
        for city, count in counts.items():
            assert (f'"{city}"' in said) <= (count >= least)
    assert "text 3" not in said, "a text that is different in every row"


def test_sums_of_fewer_rows_than_the_operator_allows_are_not_said(tmp_path):
    whole = mixed_table(tmp_path / "all.csv")
    frame = pd.read_csv(whole)
    frame["rare"] = np.nan
    frame.loc[frame.index[:3], "rare"] = 123.456
    frame.to_csv(whole, index=False)
    files = make_deployment(tmp_path, whole)
    files[0].write_text('data = "own.csv"\nschema_rows = 5\n')
    _, sums = said_by(files[0], read_app(tmp_path / "app").config())
    assert sums["numbers"]["rare"] == [0.0, 0.0]
    assert sums["numbers"]["age"][0] > 0
    files[0].write_text('data = "own.csv"\nschema_rows = 500\n')
    with pytest.raises(CoterieError, match="does not let it say anything for a schema"):
        said_by(files[0], read_app(tmp_path / "app").config())


@pytest.mark.filterwarnings("ignore::coterie.core.errors.CoterieWarning")
def test_a_node_that_says_nothing_takes_part_all_the_same(tmp_path):
    whole = mixed_table(tmp_path / "all.csv")
    files = make_deployment(tmp_path, whole)
    files[2].write_text('data = "own.csv"\nschema = false\n')
    with pytest.warns(CoterieWarning, match="learnt without 1 nodes"):
        run, _ = run_app(tmp_path, files)
    assert len(run.federation) == 9
    for path in files:
        path.write_text('data = "own.csv"\nschema = false\n')
    with (
        pytest.warns(CoterieWarning, match="does not let it say anything"),
        pytest.raises(CoterieError, match="a schema is learnt from 2 nodes or more, but 0 said"),
    ):
        run_app(tmp_path, files, out=str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_columns_that_the_operator_did_not_name_are_not_told_of(tmp_path):
    whole = mixed_table(tmp_path / "all.csv")
    named = 'columns = ["site", "outcome", "age", "ward"]\n'
    files = make_deployment(tmp_path, whole, node=named)
    columns, _ = said_by(files[0], read_app(tmp_path / "app").config())
    assert [name for name, _ in columns["columns"]] == ["age", "ward"]
    run, _ = run_app(tmp_path, files)
    assert run.federation.schema.columns == ["age", "ward"]
    files[0].write_text('data = "own.csv"\ncolumns = ["site", "age"]\n')
    with pytest.raises(CoterieError, match=r"do not fit the app|not those that the operator"):
        said_by(files[0], read_app(tmp_path / "app").config())


@pytest.mark.filterwarnings("ignore::coterie.core.errors.CoterieWarning")
def test_a_node_of_an_app_with_a_schema_is_asked_nothing_of_its_table(tmp_path):
    whole = mixed_table(tmp_path / "all.csv")
    files = make_deployment(tmp_path, whole)
    write_app(tmp_path / "pooled", ["ifca", str(whole), *WORDS, "k=2"])
    with pytest.raises(BadPacket, match="the app has a schema"):
        said_by(files[0], read_app(tmp_path / "pooled").config())


def test_check_shows_what_would_leave_the_node(tmp_path, capsys):
    whole = mixed_table(tmp_path / "all.csv")
    files = make_deployment(tmp_path, whole)
    files[0].write_text('data = "own.csv"\nschema_rows = 10\n')
    command = ["deploy", "check", str(files[0]), "--app", str(tmp_path / "app")]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "classes   ill, unclear, well" in said
    assert "ward: north, south, west" in said
    assert "note: none named (64 rows of others)" in said
    files[0].write_text('data = "own.csv"\nschema = false\n')
    assert cli.main(command) == 2
    assert "does not let it say anything for a schema" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("question", "content", "answer"),
    [
        ("columns", {}, {"columns": [], "label": None}),
        ("columns", {}, {"columns": [["a", "number"], ["a", "text"]], "label": None}),
        ("columns", {}, {"columns": [["a", "picture"]], "label": None}),
        ("columns", {}, {"columns": [["a", "number"]], "label": {"kind": "text"}}),
        ("sums", {"columns": [["a", "number"]], "classes": [], "target": ""}, {"sizes": [3]}),
        (
            "sums",
            {"columns": [["a", "number"]], "classes": [], "target": ""},
            {"sizes": [3], "numbers": {"a": [4.0, 1.0]}},
        ),
        (
            "sums",
            {"columns": [["a", "number"]], "classes": [], "target": ""},
            {"sizes": [3], "numbers": {"a": [2.0, float("nan")]}},
        ),
        (
            "sums",
            {"columns": [["a", "text"]], "classes": [], "target": ""},
            {"sizes": [3], "texts": {"a": {"counts": {"x": -1}, "rest": 0, "missing": 0}}},
        ),
        ("spread", {"means": {"a": 1.0}, "target": ""}, {"numbers": {"a": [0.0, -1.0]}}),
        ("unit", {}, {"largest": float("inf")}),
        ("unit", {}, {"largest": "many"}),
    ],
)
def test_answers_that_no_table_gives_are_refused(question, content, answer):
    with pytest.raises(BadPacket, match="it must answer what was asked"):
        check_answer(question, content, answer)


def test_tables_that_do_not_agree_are_one_sentence():
    with pytest.raises(DataError, match="`a` holds dates on some nodes and numbers on others"):
        joint_columns([[["a", "date"]], [["a", "number"]]])
    with pytest.raises(DataError, match="no column of features in common"):
        joint_columns([[["a", "date"]], [["b", "number"]]])
    whole = {"kind": "whole", "distinct": 2, "counts": {"1": 20}, "rest": 4}
    with pytest.raises(DataError, match="say target=classification or target=regression"):
        joint_target(Table(label="outcome"), [whole])
    with pytest.raises(DataError, match="some nodes have no label column `outcome`"):
        joint_target(Table(label="outcome"), [whole, None])
    with pytest.raises(DataError, match="two classes or more"):
        joint_target(Table(label="outcome", target="classification"), [whole])
