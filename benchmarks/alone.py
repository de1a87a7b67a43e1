"""Work in a process of its own, whose memory and threads are nobody else's."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def answer(
    script: str, words: list[object], options: argparse.Namespace, python: str = sys.executable
) -> Any:
    """What a script that is given some words prints as JSON."""
    done = subprocess.run(
        [python, script, *map(str, words)],
        env=options.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def other_python(checkout: Path) -> str:
    """The interpreter of another checkout of coterie, in the environment that `make` made there."""
    return str(checkout / ".venv" / "bin" / "python")
