"""What the process of a node has in memory."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

# Libraries that draw pages, analyse, or simulate: a worker answers messages, and needs none.
NOT_NEEDED = {"plotly", "sklearn", "scipy", "ray", "jinja2", "matplotlib", "pandas", "sympy"}
WORKER = """
import json, sys, tempfile
from pathlib import Path
import coterie.deploy.worker
from coterie.flower.app import read_app, write_app
from coterie.flower.node import Node
from coterie.flower.node_file import NodeFile
from coterie.flower.wire import Packet

with tempfile.TemporaryDirectory() as home:
    write_app(Path(home) / "app", ["ifca", "rotated-digits", "clients=4", "samples=20", "k=2"])
    node = Node(read_app(Path(home) / "app", frozenset()), NodeFile(memory=home))
    node.answer(Packet({"do": "enrol"}))
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_a_worker_imports_nothing_that_it_does_not_need():
    found = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    imported = set(json.loads(found.stdout.splitlines()[-1]))
    assert "torch" in imported
    assert not imported & NOT_NEEDED
