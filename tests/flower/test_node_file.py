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


@pytest.mark.parametrize("name", ["client", "split", "group", "time", "categorical"])
def test_no_setting_names_a_column_that_is_not_offered(site, name):
    """The schema is as it was: what a table is read by is in the settings as well."""
    file, home = site
    offers = replace(file, columns=frozenset({"site", "a", "b", "outcome"}), client="site")
    config = config_of(home / "app")
    assert NodeWorker(offers).answer(config, ENROL).header["clients"]
    with pytest.raises(SettingError, match=NOT_ACCEPTED):
        NodeWorker(offers).answer({**config, name: "diagnosis"}, ENROL)


def test_only_the_column_that_the_node_names_tells_who_its_clients_are(site):
    file, home = site
    config = config_of(home / "app")
    schema = config["schema"].replace('"client": "site"', '"client": "b"')
    assert schema != config["schema"]
    offers = replace(file, client="site")
    for other in ({"client": "b"}, {"client": "b", "schema": schema}, {"schema": schema}):
        with pytest.raises(SettingError, match=NOT_ACCEPTED):
            NodeWorker(offers).answer({**config, **other}, ENROL)
    assert NodeWorker(offers).answer(config, ENROL).header["clients"] == ["c0", "c1", "c2", "c3"]


def test_clients_that_are_too_small_take_no_part(site):
    file, home = site
    table = home / "rows.csv"
    table.write_text(table.read_text() + "tiny,1,1,0,x\ntiny,2,2,1,x\ntiny,2,1,1,x\n")
    config = config_of(home / "app")
    assert "tiny" not in NodeWorker(file).answer(config, ENROL).header["clients"]
    all_of_them = NodeWorker(replace(file, smallest_client=1)).answer(config, ENROL)
    assert "tiny" in all_of_them.header["clients"]
    with pytest.raises(CoterieError) as told:  # how large they are stays here
        NodeWorker(replace(file, smallest_client=99)).answer(config, ENROL)
    assert not {"99", "c0"} & set(str(told.value).split())


@pytest.mark.parametrize(
    ("bound", "changed", "says"),
    [
        ({"largest_model": 3}, {}, "numbers is larger than this node allows"),
        ({"longest_step": 0}, {}, "TookTooLong"),
    ],
)
def test_what_is_larger_or_longer_than_the_node_allows_is_refused(site, bound, changed, says):
    file, home = site
    with pytest.raises(CoterieError, match=says):
        NodeWorker(replace(file, **bound)).answer({**config_of(home / "app"), **changed}, ENROL)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, True),
        ({"batch": 1, "steps": 9}, False),
        ({"batch": 1, "steps": 10}, True),
        ({"batch": 1, "epochs": 1}, True),
        ({"batch": 9, "steps": 9, "average": "gradients"}, False),
    ],
)
def test_an_upload_is_of_as_many_samples_as_the_smallest_client_has(settings, allowed):
    from coterie import IFCA
    from coterie.flower.node_file import check_batch

    if allowed:
        check_batch(NodeFile(smallest_client=10), IFCA(k=2, **settings))
        return
    with pytest.raises(SettingError, match=r"samples \(`batch`\) is of fewer"):
        check_batch(NodeFile(smallest_client=10), IFCA(k=2, **settings))


def test_with_an_accepted_app_no_step_of_another_algorithm_is_carried_out():
    from coterie import IFCA, FedAvg, KFed
    from coterie.flower.node_steps import check_made_of

    app = IFCA(k=2)
    check_made_of(app, "ifca", {**vars(app), "k": 1}, IFCA(k=2))
    check_made_of(app, "fedavg", vars(FedAvg()), FedAvg())
    with pytest.raises(SettingError, match="ifca has no steps of k-fed"):
        check_made_of(app, "k-fed", vars(KFed(k=2, k_local=99)), KFed(k=2))
    for wrong in ({"batch": 1}, {"lr": 9.0}):
        with pytest.raises(SettingError, match="in this app is"):
            check_made_of(app, "ifca", {**vars(app), **wrong}, IFCA(k=2))


@pytest.mark.parametrize("kind", range(6))
def test_what_an_algorithm_of_somebodys_own_says_in_an_error_stays_here(site, kind, capfd):
    """Whatever error it raises, also one of coterie's own that is about messages."""
    from coterie.flower.node_file import told_to_server
    from tests.faults.servers import ERRORS

    try:
        raise ERRORS[kind](f"the first row is {SECRET}")
    except Exception as error:
        told = str(told_to_server(error, "the step failed"))
    assert SECRET not in told
    assert told.startswith("the step failed")
    assert SECRET in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("smallest_client = 0", "must be from 1 to"),
        ("largest_model = -1", "must be from 1 to"),
        ("longest_step = 0", "must be from 1 to"),
        ("map_samples = -1", "must be from 0 to"),
        ("client = 3", "must be a text"),
    ],
)
def test_bounds_that_cannot_be_are_refused(tmp_path, text, says):
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(SettingError, match=says):
        NodeFile.read(tmp_path / "node.toml")
