import importlib
import itertools
import pickle
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import coterie
from coterie import Federation
from coterie.cli.describe import list_names
from coterie.core import seeds
from coterie.core.errors import SettingError
from coterie.experiment.settings import YIELDED, RunSettings, settings_of
from coterie.registry import algorithm_name, full_name, resolve, resolve_any, suggestions
from coterie.shelves import ALGORITHMS, FEDERATIONS, NETWORKS, SHELVES
from coterie.tasks.defaults import default_task
from tests.own import OwnFiles, write_all


@pytest.mark.parametrize("kind", SHELVES)
def test_no_two_names_share_a_class(kind):
    for one, other in itertools.combinations(SHELVES[kind].values(), 2):
        assert one is not other


def test_no_name_is_on_two_shelves():
    names = [*ALGORITHMS, *FEDERATIONS, *NETWORKS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_runs_on_every_federation_for_their_settings_have_names_of_their_own(name):
    own = {setting.name for setting in settings_of(ALGORITHMS[name])}
    others = {**FEDERATIONS, **NETWORKS, "every run": RunSettings}
    shared = {(other, s.name) for other, kind in others.items() for s in settings_of(kind)}
    shared -= {("every run", name) for name in YIELDED}
    assert {(other, setting) for other, setting in shared if setting in own} == set()


def test_every_federation_suggests_a_network_there_is():
    for federation in FEDERATIONS.values():
        assert federation.suggests["network"] in NETWORKS


def test_an_unknown_name_is_refused_with_the_near_ones():
    assert resolve("algorithm", "ifca") is coterie.IFCA
    with pytest.raises(SettingError, match="no algorithm is named ifcaa; did you mean `ifca`"):
        resolve("algorithm", "ifcaa")
    with pytest.raises(SettingError, match=r"no network is named zzz \(networks: linear, mlp"):
        resolve("network", "zzz")
    with pytest.raises(SettingError, match=r"one of your own: package\.module:name"):
        resolve("algorithm", "mypackage.mine.Method")


def test_an_algorithm_has_its_name_or_that_of_its_class():
    assert algorithm_name(coterie.KFed()) == "k-fed"
    assert algorithm_name(OwnFiles(Path())) == "tests.own:OwnFiles"


def test_a_thing_has_one_name_however_it_is_named(own):
    method, data, nets = write_all(own)
    assert full_name("algorithm", f"{method}:Alias") == f"{method}:Method"
    assert full_name("algorithm", "coterie:IFCA") == "ifca"
    assert full_name("federation", f"{data}:blobs") == f"{data}:blobs"
    own.write("again", f"from {nets} import build as renamed")
    assert full_name("network", f"{own.mark}_again:renamed") == f"{nets}:build"
    made = resolve("algorithm", f"{method}:Method")()
    assert algorithm_name(made) == f"{method}:Method"


def test_what_is_made_by_hand_keeps_the_path_by_which_it_was_named(own):
    text = "from functools import wraps\nfrom torch import nn\n\ndef make():\n    def build():\n"
    where = own.write(
        "made", f"{text}        return nn.Linear(4, 3)\n    return build\nnet = make()"
    )
    assert full_name("network", f"{where}:net") == f"{where}:net"
    assert resolve("network", f"{where}:net")().module([4], 3).out_features == 3


@pytest.mark.parametrize("name", ["build", "Module", "Net"])
def test_a_network_is_a_function_a_module_or_a_settings_class(own, name):
    *_, nets = write_all(own)
    kind = resolve("network", f"{nets}:{name}")
    task = default_task(small_blobs(), kind(width=9))
    assert task.layout.shapes[0] == (9, 4)
    assert [setting.name for setting in settings_of(kind)] == ["width"]
    assert pickle.loads(pickle.dumps(kind(width=2))) == kind(width=2)


def test_a_network_may_be_a_function_without_parameters(own):
    *_, nets = write_all(own)
    assert default_task(small_blobs(), resolve("network", f"{nets}:fixed")()).layout.size == 15


def test_a_network_that_is_there_already_is_one_by_its_name(own):
    where = own.write("made", "from torch import nn\n\ntrained = nn.Linear(4, 3)")
    name = f"{where}:trained"
    kind = resolve("network", name)
    assert kind is resolve("network", name)
    assert resolve_any(name) == ("network", kind)
    assert full_name("network", name) == name
    task = default_task(small_blobs(), kind())
    trained = importlib.import_module(where).trained
    for seed in range(2):
        assert torch.equal(task.draw(seeds.generator(seed)), task.layout.flatten(trained))


def small_blobs():
    return Federation.from_clients([(torch.ones(3, 4), torch.tensor([0, 1, 2]))])


def test_a_federation_is_a_function_or_a_settings_class(own):
    _, data, _ = write_all(own)
    function, kind = (resolve("federation", f"{data}:{name}") for name in ("blobs", "Blobs"))
    assert [setting.name for setting in settings_of(function)] == ["clients", "gap"]
    assert len(function(clients=4).build(seed=3)) == len(kind(clients=4).build(3)) == 4
    one, other, again = (function().build(seed).train.x for seed in (1, 2, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert suggestions(function) == {"network": "mlp"}
    assert suggestions(kind) == {"network": "linear", "rounds": 3}


WRONG = [
    ("algorithm", "blobs", "is not an algorithm: .* frozen dataclass .* got the function blobs"),
    ("algorithm", "NoServe", "is not an algorithm: .* it has no serve"),
    ("algorithm", "Thawed", "is not an algorithm: .* it is not frozen"),
    ("algorithm", "number", "is not an algorithm: .* got something of the type int"),
    (
        "algorithm",
        "Listed",
        "the setting `sizes` of .*:Listed must be of the type bool, int, float",
    ),
    ("algorithm", "Unknown", "the types of the settings of .*:Unknown cannot be read: .*Missing"),
    ("federation", "number", "is not a federation: .*build.seed.* got something of the type int"),
    ("federation", "NoServe", "is not a federation: .* got the class NoServe"),
    ("network", "number", "is not a network: .* got something of the type int"),
    ("network", "NoServe", "is not a network: .*module.shape, outputs.* got the class NoServe"),
    ("network", "untyped", "the parameter `width` of untyped needs a type or a default"),
    ("network", "listed", "the setting `widths` of listed must be of the type .* got list"),
    ("algorithm", "NoStart", r"init of .*:NoStart must take \(self, start\), got \(self\)$"),
    ("algorithm", "More", r"round of .* take \(self, state, clients\), got .*, clients, third\)$"),
    ("federation", "Built", r"build of .*:Built must take \(self, seed\), got \(self\)$"),
    ("network", "Made", r"module of .*:Made must take \(self, shape, outputs\), got \(self, s\)$"),
]


@pytest.mark.parametrize(("kind", "name", "sentence"), WRONG)
def test_what_is_of_another_kind_is_refused_in_a_sentence(own, kind, name, sentence):
    where = own.write(
        "wrong",
        """
        from __future__ import annotations

        from dataclasses import dataclass

        number = 5

        def blobs(): ...
        def untyped(shape, outputs, width): ...
        def listed(widths: list[int] = [3]): ...

        @dataclass(frozen=True)
        class NoServe:
            def init(self, start): ...
            def round(self, state, clients): ...

        @dataclass
        class Thawed(NoServe.__base__):
            def init(self, start): ...
            def round(self, state, clients): ...
            def serve(self, state, clients): ...

        @dataclass(frozen=True)
        class Listed(NoServe):
            sizes: tuple[int, ...] = (1, 2)
            def serve(self, state, clients): ...

        @dataclass(frozen=True)
        class Unknown(NoServe):
            size: Missing = 1
            def serve(self, state, clients): ...

        @dataclass(frozen=True)
        class NoStart(Listed):
            def init(self): ...

        @dataclass(frozen=True)
        class More(Listed):
            def round(self, state, clients, third): ...

        @dataclass(frozen=True)
        class Built:
            def build(self): ...

        @dataclass(frozen=True)
        class Made:
            def module(self, s): ...
        """,
    )
    with pytest.raises(SettingError, match=sentence) as refusal:
        resolve(kind, f"{where}:{name}")
    assert "\n" not in str(refusal.value)


@pytest.fixture
def offered(own):
    """A package with entry points, installed as far as Python is concerned."""
    write_all(own)
    (own.folder / "mine-1.2.dist-info").mkdir()
    (own.folder / "mine-1.2.dist-info" / "METADATA").write_text("Name: mine\nVersion: 1.2\n")
    points = own.folder / "mine-1.2.dist-info" / "entry_points.txt"
    points.write_text(
        f"[coterie.algorithms]\nmine = {own.mark}_method:Alias\nifca = {own.mark}_method:Method\n"
        f"broken = {own.mark}_nowhere:Method\n"
        f"[coterie.federations]\nblobs = {own.mark}_data:blobs\n"
        f"[coterie.networks]\ntwo-layers = {own.mark}_nets:build\n"
    )
    return own


def test_packages_offer_names_by_entry_points(offered, capsys):
    assert resolve("algorithm", "mine") is resolve("algorithm", f"{offered.mark}_method:Method")
    assert full_name("algorithm", "mine") == f"{offered.mark}_method:Method"
    assert full_name("network", "two-layers") == f"{offered.mark}_nets:build"
    assert resolve("algorithm", "ifca") is coterie.IFCA, "a built-in name was taken"
    with pytest.raises(SettingError, match="did you mean `two-layers`"):
        resolve("network", "two-layer")
    assert resolve_any("blobs") == ("federation", resolve("federation", "blobs"))


def test_list_names_the_package_of_an_entry_point(offered):
    lines = list_names().splitlines()
    (line,) = [line for line in lines if line.startswith("  mine ")]
    assert line.endswith("The mean of all models, moved by a factor. (mine 1.2)")
    (broken,) = [line for line in lines if line.startswith("  broken ")]
    assert f"no module is named {offered.mark}_nowhere" in broken
    assert len([line for line in lines if line.startswith("  ifca ")]) == 1


def test_a_name_that_two_packages_offer_is_refused(offered):
    (offered.folder / "other-1.dist-info").mkdir()
    (offered.folder / "other-1.dist-info" / "METADATA").write_text("Name: other\nVersion: 1\n")
    (offered.folder / "other-1.dist-info" / "entry_points.txt").write_text(
        "[coterie.algorithms]\nmine = another.module:Method\n"
    )
    with pytest.raises(SettingError, match=r"several packages offer a.* named mine: say .* and "):
        resolve("algorithm", "mine")


def test_the_kind_of_a_name_is_found(own):
    method, data, nets = write_all(own)
    kinds = {f"{method}:Method": "algorithm", f"{data}:blobs": "federation", "k-fed": "algorithm"}
    kinds |= {f"{data}:Blobs": "federation", f"{nets}:build": "network", f"{nets}:Net": "network"}
    for name, kind in kinds.items():
        assert resolve_any(name) == (kind, resolve(kind, name))
    with pytest.raises(SettingError, match="is no algorithm, federation or network, but some"):
        resolve_any("math:pi")


@pytest.mark.parametrize("name", [*ALGORITHMS, *FEDERATIONS, *NETWORKS])
def test_a_setting_that_is_given_another_default_keeps_its_rule(name):
    kind = {**ALGORITHMS, **FEDERATIONS, **NETWORKS}[name]
    rules = {field.name: field.metadata["rule"] for field in fields(kind)}
    bases = [base for base in kind.__mro__[1:] if is_dataclass(base)]
    inherited = [field for base in bases for field in fields(base) if field.metadata["rule"]]
    assert [field.name for field in inherited if rules[field.name] is None] == []


def test_suggestions_for_an_algorithm_come_before_its_own_and_these_before_the_usual_ones():
    special = {"mine": {"rounds": 3}}
    data = SimpleNamespace(suggests={"rounds": 1, "lr": 1, "k": 1}, suggests_for=special)
    mine = SimpleNamespace(suggests={"rounds": 2, "lr": 2})
    assert suggestions(data) == {"network": "mlp", "rounds": 1, "lr": 1, "k": 1}
    assert suggestions(data, mine) == {"network": "mlp", "rounds": 2, "lr": 2, "k": 1}
    assert suggestions(data, mine, "mine") == {"network": "mlp", "rounds": 3, "lr": 2, "k": 1}
    assert suggestions(FEDERATIONS["gaussian-clusters"], coterie.UIFCA)["network"] == "linear-flow"
