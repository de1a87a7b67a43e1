"""A node runs what is coterie's own and what its file allows, and says nothing about the rest."""

import re
import sys
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import CoterieError, SettingError
from coterie.flower.app import read_app, write_app
from coterie.flower.node import NodeFile, NodeWorker
from coterie.flower.permission import REFUSAL, load_allowed
from coterie.flower.server import run_server
from coterie.flower.wire import Packet
from tests.flower.fake import FakeGrid, make_app, metrics_alike, simulated, thirds
from tests.own import write_all

ENROL = Packet({"do": "enrol"})


def own_words(own):
    method, data, nets = write_all(own)
    names = [f"{method}:Method", f"{data}:blobs", f"{nets}:build"]
    return names, [*names[:2], f"network={names[2]}", "width=4", "rounds=2", "clients=6"]


def test_a_run_of_ones_own_over_three_nodes_is_the_simulated_one(own, tmp_path):
    names, words = own_words(own)
    app = make_app(*words, out=str(tmp_path / "run"), nodes=3)
    files = [replace(file, allow=load_allowed(names)) for file in thirds(tmp_path)]
    run = run_server(FakeGrid(app, files), app.config(), "1")
    expected = simulated(words)
    assert metrics_alike(run.metrics, expected.metrics, 1e-5)
    assert run.models.shape == (1, 4 * 4 + 4 + 4 * 3 + 3), "the server took another network"


@pytest.mark.parametrize("lacks", [0, 1, 2])
def test_what_is_not_allowed_is_refused_before_it_is_imported(own, lacks):
    names, words = own_words(own)
    config = make_app(*words).config()
    allowed = load_allowed(name for name in names if name != names[lacks])
    module = names[lacks].partition(":")[0]
    del sys.modules[module]
    with pytest.raises(SettingError) as refusal:
        NodeWorker(NodeFile(allow=allowed)).answer(config, ENROL)
    assert module not in sys.modules
    assert str(refusal.value) == REFUSAL


@pytest.mark.parametrize("name", ["os:system", "no_such_package:Method", "", "ifcaa", "../x:y"])
def test_the_refusal_is_the_same_whatever_there_is(own, name):
    config = make_app("fedavg", "digits").config()
    with pytest.raises(SettingError) as refusal:
        NodeWorker(NodeFile()).answer({**config, "algorithm": name}, ENROL)
    assert str(refusal.value) == REFUSAL


def test_a_node_file_lists_what_it_allows(own, tmp_path):
    method, data, nets = write_all(own)
    path = tmp_path / "node.toml"
    path.write_text(f'allow = ["{method}:Alias", "{data}:blobs", "{nets}:build"]')
    assert NodeFile.read(path).allow == {f"{method}:Method", f"{data}:blobs", f"{nets}:build"}
    path.write_text(f'allow = ["{method}:Nobody"]')
    with pytest.raises(SettingError, match=f"{method} has no Nobody"):
        NodeFile.read(path)
    for text in ('allow = "mine:Method"', "allow = [1]"):
        path.write_text(text)
        with pytest.raises(SettingError, match="`allow` must be a list of names"):
            NodeFile.read(path)


def test_an_app_names_the_package_and_tells_nodes_what_to_allow(own, tmp_path):
    names, words = own_words(own)
    (own.folder / "mine-1.2.dist-info").mkdir()
    (own.folder / "mine-1.2.dist-info" / "METADATA").write_text("Name: mine\nVersion: 1.2\n")
    tops = "\n".join(name.partition(":")[0] for name in names)
    (own.folder / "mine-1.2.dist-info" / "top_level.txt").write_text(tops)
    write_app(tmp_path / "app", words)
    project = (tmp_path / "app" / "pyproject.toml").read_text()
    assert '"mine==1.2"]' in project
    assert f'algorithm = "{names[0]}"' in project
    readme = (tmp_path / "app" / "README.md").read_text()
    assert "Method on blobs" in readme
    for name in names:
        assert f'"{name}"' in readme
    with pytest.raises(CoterieError, match="nothing else"):
        read_app(tmp_path / "app", frozenset())
    assert read_app(tmp_path / "app", load_allowed(names)).plan.network_name == names[2]


def test_a_setting_with_the_name_of_one_of_the_network_is_refused(own):
    where = own.write(
        "data",
        "from coterie import load\ndef digits(nodes: int = 3, seed: int = 0):\n"
        "    return load('digits', seed=seed)[0]\n",
    )
    with pytest.raises(SettingError, match="`nodes` means something else in a run over a network"):
        make_app("fedavg", f"{where}:digits")


@pytest.mark.filterwarnings("ignore:node . replied with an error:coterie.CoterieWarning")
def test_an_algorithm_may_use_steps_of_another_of_ones_own(own, tmp_path):
    """Each has to be allowed: the server cannot reach the second through the first."""
    names, words = own_words(own)
    method = names[0].partition(":")[0]
    outer = own.write(
        "outer",
        f"""
        from dataclasses import dataclass
        from {method} import Method

        @dataclass(frozen=True, kw_only=True)
        class Outer:
            k: int = 1
            def init(self, start): return Method().init(start)
            def round(self, state, clients): return Method().round(state, clients)
            def serve(self, state, clients): return Method().serve(state, clients)
        """,
    )
    words[0] = f"{outer}:Outer"
    app = make_app(*words, out=str(tmp_path / "run"), nodes=3)
    everything = load_allowed([*names, words[0]])
    files = [replace(file, allow=everything) for file in thirds(tmp_path)]
    run = run_server(FakeGrid(app, files), app.config(), "1")
    assert metrics_alike(run.metrics, simulated(words).metrics, 1e-5)
    app = make_app(*words, out=str(tmp_path / "other"), nodes=3, patience=60)
    files = [replace(file, allow=everything - {names[0]}) for file in thirds(tmp_path)]
    with pytest.raises(CoterieError, match="nothing else"):
        run_server(FakeGrid(app, files), app.config(), "1")


# What an exception says may hold values of the node's data: only its log has that.
FAULTS = {
    "cohort.ids / {}['loss']": ("KeyError", "KeyError: 'loss'"),
    "models.view(7, -1, 3)": ("RuntimeError", "shape '[7, -1, 3]' is invalid"),
    "models.nothing": ("AttributeError", "has no attribute 'nothing'"),
    "assert len(models) > 9, 'few'": ("AssertionError", "AssertionError: few"),
    "cohort.loss(models[:, 1:])": ("CoterieError", "`models` must be"),
}


@pytest.mark.filterwarnings("ignore::coterie.core.errors.CoterieWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_in_a_step_on_a_node_is_told_with_its_line_and_no_folder(
    own, tmp_path, fault, caplog, capfd
):
    names, words = own_words(own)
    file = own.folder / f"{names[0].partition(':')[0]}.py"
    # Only where there are samples, as on a node: the server does not carry steps out.
    file.write_text(file.read_text().replace("return Upload(", f"{fault}\n        return Upload("))
    app = make_app(*words, out=str(tmp_path / "run"), nodes=3)
    files = [replace(file, allow=load_allowed(names)) for file in thirds(tmp_path)]
    with pytest.raises(CoterieError) as failure:
        run_server(FakeGrid(app, files), app.config(), "1")
    said = str(failure.value)
    assert said.startswith("all nodes reply with an error: ")
    kind, logged = FAULTS[fault]
    told = rf"\({kind}, {file.name}, line \d+, in train\); the node's log says why"
    assert re.search(told, said), said
    assert logged not in said
    assert logged in caplog.text + capfd.readouterr().err
    assert "\n" not in said
    assert str(own.folder) not in said
