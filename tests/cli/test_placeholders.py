"""Texts about names are the same with and without the libraries."""

import os
import subprocess
import sys

import pytest

from coterie.cli.describe import describe_name, list_names
from coterie.shelves import SHELVES

EVERY = """
import sys
from coterie.cli.placeholders import use_placeholders
use_placeholders()
from coterie.cli.describe import describe_name, list_names
from coterie.shelves import SHELVES
print(list_names())
for shelf in SHELVES.values():
    for name in shelf:
        print(describe_name(name))
assert not hasattr(sys.modules["torch"], "__version__")
"""


def run_python(*words, **environment):
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_placeholders_change_no_text():
    done = run_python("-c", EVERY)
    assert done.returncode == 0, done.stderr
    texts = [list_names(), *(describe_name(name) for shelf in SHELVES.values() for name in shelf)]
    assert done.stdout == "".join(text + "\n" for text in texts)


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["describe", "ifca"],
        ["describe", "table"],
        ["describe", "realnvp"],
        ["--help"],
        ["--version"],
        [],
        ["help", "run"],
        ["complete", "coterie run ifca rotated-digits st"],
    ],
)
def test_what_prints_names_imports_no_library(words):
    done = run_python("-X", "importtime", "-m", "coterie", *words)
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    # Parts that libraries import themselves, and nobody of coterie's files: of no placeholder.
    heavy = {"torch._C", "numpy._core", "scipy._lib", "sklearn", "pandas", "plotly", "jinja2"}
    assert not imported & heavy
    assert "coterie.cli.main" in imported
    assert done.stdout


def test_names_of_ones_own_are_described_with_the_libraries(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "SIDE = int(torch.tensor([2.0, 3.0]).sum())  # needs PyTorch itself\n\n"
        "def build(shape, outputs, width: int = SIDE):\n"
        '    """A network of one\'s own."""\n'
        "    return nn.Linear(shape[0], outputs)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "describe", "mine:build"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "width=5" in done.stdout
