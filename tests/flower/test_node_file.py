from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import torch

from coterie.core.errors import CoterieError, SettingError
from coterie.flower.app import read_app, write_app
from coterie.flower.node import NodeWorker
from coterie.flower.node_file import NOT_ACCEPTED, NodeFile
from coterie.flower.wire import Packet

SECRET = "Zebulon"  # a value that nobody may be told of
ENROL = Packet({"do": "enrol"})


@pytest.fixture
def site(tmp_path):
    """An app about a table, and a node with such a table that has more columns."""
    rows = [f"c{i % 4},{i % 7},{i % 5},{i % 2},{SECRET}{i}" for i in range(80)]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(["site,a,b,outcome,diagnosis", *rows]) + "\n")
    known = tmp_path / "known.csv"  # what the app is made for has no diagnosis
    lines = table.read_text().splitlines()
    known.write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    words = ["ifca", str(known), "client=site", "label=outcome", "k=2"]
    write_app(tmp_path / "app", words)
    write_app(tmp_path / "other", [*words[:3], "label=a", *words[4:]])
    write_app(tmp_path / "longer", [*words, "steps=500"])
    return NodeFile(data=str(table), memory=str(tmp_path / "memory")), tmp_path


def config_of(folder):
    return read_app(folder).config()


@pytest.mark.parametrize("changed", ["other", "longer"])
def test_with_an_accepted_app_other_settings_are_refused_on_the_node(site, changed):
    file, home = site
    accepting = NodeWorker(replace(file, app=str(home / "app")))
    assert accepting.answer(config_of(home / "app"), ENROL).header["clients"]
    with pytest.raises(SettingError) as refused:
        accepting.answer(config_of(home / changed), ENROL)
    assert str(refused.value) == NOT_ACCEPTED
    assert NodeWorker(file).answer(config_of(home / changed), ENROL).header["clients"]


def test_columns_that_are_not_offered_are_refused(site):
    file, home = site
    offers = replace(file, columns=frozenset({"site", "a", "b", "outcome"}))
    assert NodeWorker(offers).answer(config_of(home / "app"), ENROL).header["clients"]
    with pytest.raises(SettingError, match=NOT_ACCEPTED):
        NodeWorker(replace(offers, columns=frozenset({"site", "a"}))).answer(
            config_of(home / "app"), ENROL
        )


def test_errors_tell_the_server_nothing_that_the_node_holds(site, capfd):
    file, home = site
    config = config_of(home / "app")
    for name in ("label", "client"):
        with pytest.raises(CoterieError) as told:
            NodeWorker(file).answer({**config, name: "diagnosis"}, ENROL)
        for hidden in (SECRET, "diagnosis", str(home), "outcome"):
            assert hidden not in str(told.value), (name, str(told.value))
    assert "Traceback" in capfd.readouterr().err  # in the node's own log


def test_a_node_reads_no_table_that_the_server_names(site):
    file, home = site
    config = {**config_of(home / "app"), "path": file.data}
    with pytest.raises(CoterieError) as told:
        NodeWorker(replace(file, data="")).answer(config, ENROL)
    assert file.data not in str(told.value)


def test_a_step_of_more_work_than_the_app_says_is_refused(site):
    from coterie.flower.node_steps import check_work

    file, home = site
    algorithm = read_app(home / "app").plan.algorithm
    check_work(algorithm, {"steps": algorithm.steps})
    with pytest.raises(CoterieError, match="`steps` of this app is"):
        check_work(algorithm, {"steps": algorithm.steps + 1})
    assert torch.is_tensor(NodeWorker(file).answer(config_of(home / "app"), ENROL).tensors["sizes"])
