"""Imports point one way, so that the folder listing is the architecture."""

import ast
from pathlib import Path

import pytest

import coterie

SOURCE = Path(coterie.__file__).parent
# Each layer and what it may import of coterie besides itself.
LAYERS = {
    "tensors": set(),
    "core": {"tensors"},
    "vectors": {"core", "tensors"},
    "starts": {"core"},
    "algorithms": {"core", "vectors", "starts"},
    "networks": {"core"},
    "files": set(),
    "data": {"core", "tensors", "files"},
    "tasks": {"core", "data"},
    "channel": {"core", "tensors"},
    "engine": {"core", "tensors", "data", "channel"},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("coterie"):
            parts = node.module.split(".")
            names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
            yield from names
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("coterie."))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_lies_below_it(layer):
    place = SOURCE / layer
    files = list(place.rglob("*.py")) if place.is_dir() else [SOURCE / f"{layer}.py"]
    assert files
    for path in files:
        assert set(imported(path)) - {layer} <= LAYERS[layer], path


def test_algorithm_files_stay_short():
    for path in (SOURCE / "algorithms").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 260, path
