"""Imports point one way and a name means one thing, so that the listing is the architecture."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import coterie

SOURCE = Path(coterie.__file__).parent
# Every part of the tree and what it may import of coterie besides itself, from the lowest up.
LAYERS = {
    "version": set(),
    "files": set(),
    "shelves": set(),
    "tensors": set(),
    "core": {"tensors"},
    "vectors": {"core", "tensors"},
    "starts": {"core", "vectors"},
    "networks": {"core", "tensors"},
    "data": {"core", "tensors", "files"},
    "tasks": {"core", "networks", "data", "tensors"},
    "algorithms": {"core", "vectors", "starts", "data", "tasks"},
    "channel": {"core", "vectors", "tensors"},
    "engine": {"core", "tensors", "data", "channel"},
    "registry": {"core", "networks", "shelves"},
    "evaluation": {"core", "vectors", "tensors", "data", "engine"},
    "report": {"core", "data", "evaluation", "files"},
}
LAYERS["prediction"] = {*LAYERS}
LAYERS["experiment"] = {*LAYERS}
# What touches Flower's undocumented parts is used by the adapter and by the processes around it.
LAYERS["deploy/steady_clock"] = set()
LAYERS["deploy/flwr_internals"] = {"core", "deploy/steady_clock"}
LAYERS["flower"] = {*LAYERS}
LAYERS["deploy"] = {*LAYERS}
LAYERS["estimators"] = {*LAYERS} - {"flower", "deploy"}
LAYERS["checks"] = {*LAYERS} - {"flower", "deploy", "estimators"}
LAYERS["extend"] = {"core", "vectors", "starts", "algorithms", "data", "tasks", "checks"}
LAYERS["cli"] = {*LAYERS}

# Names that several modules may define: the parts of every algorithm, entry points, and how a
# module finds names that it imports late.
SHARED_NAMES = {"State", "Upload", "main", "__getattr__"}


def layer_of(module):
    """The layer of a dotted path inside coterie, as in `core.clients`."""
    parts = module.split(".")
    return "/".join(parts[:2]) if "/".join(parts[:2]) in LAYERS else parts[0]


def imported_layers(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "coterie":
            yield from (alias.name for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.startswith("coterie."):
                inside = node.module.removeprefix("coterie.")
                yield from {layer_of(f"{inside}.{alias.name}") for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("coterie.")]
            yield from (layer_of(name.removeprefix("coterie.")) for name in names)


def files_of(layer):
    place = SOURCE / layer
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    return [path for path in files if layer_of(dotted(path)) == layer]


def dotted(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_lies_below_it(layer):
    files = files_of(layer)
    assert files
    for path in files:
        assert set(imported_layers(path)) - {layer} <= LAYERS[layer], path


def test_the_layers_are_all_there_is():
    top = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or is_package(path)}
    assert top - {"__init__", "__main__"} == {layer.partition("/")[0] for layer in LAYERS}


def is_package(path):
    return (path / "__init__.py").exists()


def test_one_name_is_one_thing():
    homes = defaultdict(set)  # overloads are in one file; what is defined there twice ruff finds
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                homes[node.name].add(str(path.relative_to(SOURCE)))
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert {name: twice[name] for name in twice if name not in SHARED_NAMES} == {}


def test_private_attributes_stay_in_their_file():
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        known = {node.attr for node in ast.walk(tree) if is_own(node)}
        known |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        known |= {node.target.id for node in ast.walk(tree) if is_declared(node)}
        used = {node.attr for node in ast.walk(tree) if is_private(node)}
        assert used - known - LIBRARIES_OWN == set(), path


# Private parts of libraries that have no public way to the same.
LIBRARIES_OWN = {
    "_insert_message",  # of Flower; each has a contract test
    "_pull_and_store_message",
    "_push_messages",
    "_fields",  # of named tuples, documented
    "_replace",
    "_asdict",
    "_forward_hooks",  # of torch.nn.Module
    "_forward_pre_hooks",
    "_make_wrapper_subclass",
    "_pytree",
    "_linear_pointwise",  # oneDNN's product
    "_exit",  # of os, documented
}


def is_private(node):
    name = getattr(node, "attr", "") if isinstance(node, ast.Attribute) else ""
    return name.startswith("_") and not name.startswith("__")


def is_own(node):
    """An attribute of `self` that is set somewhere in the file."""
    return is_private(node) and isinstance(node.ctx, ast.Store)


def is_declared(node):
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def test_algorithm_files_stay_short():
    for path in (SOURCE / "algorithms").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 250, path


def test_tests_mirror_the_source():
    tests = Path(__file__).parent
    for path in sorted(tests.rglob("test_*.py")):
        place = path.relative_to(tests).parent
        if place == Path("faults"):  # a suite of its own: what is damaged, not which module it is
            continue
        assert (SOURCE / place).is_dir(), f"{path} tests no folder of the source"
        if place == Path():
            continue
        module = path.stem.removeprefix("test_")
        assert module in stems(SOURCE / place) | TESTS_OF_A_FOLDER.get(str(place), set()), path


def stems(folder):
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or is_package(path)}


# Tests that are of a folder as a whole.
TESTS_OF_A_FOLDER = {
    "cli": {"own_names"},
    "experiment": {"network_grids"},
    "flower": {"conformance", "kept_memory"},
    "data/federations": {"federations"},
    "data/sources": {"sources"},
    "engine": {"other_device"},
    "engine/kernels": {"agreement"},
    "report": {"browser"},
}


def test_the_listing_names_every_part():
    text = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text()
    listing = text.split("```")[1]
    modules = [path for path in SOURCE.glob("*.py") if not path.name.startswith("__")]
    parts = [*modules, *filter(is_package, SOURCE.rglob("*"))]
    for path in parts:
        name = f"{path.name}/" if path.is_dir() else path.name
        assert f" {name} " in listing or f" {name}\n" in listing, name
