"""The walk of data through the house: which files one warm IFCA round goes through.

    python benchmarks/walk.py            # the figures that CONTRIBUTING gives
    python benchmarks/walk.py --files    # the files in the order of the walk as well

The third round of a run is followed with `sys.setprofile`, from the call of `IFCA.round` to its
return: once simulated, once over three nodes behind an in-process grid. A change of file is a call
from a function of one file of coterie to a function of another.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import coterie
from coterie.algorithms.ifca import IFCA

SOURCE = Path(coterie.__file__).parent
ROOT = SOURCE.parent.parent
WORDS = ["ifca", "rotated-digits", "rounds=3", "k=4", "start=random"]
ROUND = 3  # the one that is followed


class Walk:
    """A profile function that follows one round."""

    def __init__(self) -> None:
        self.round = 0
        self.root: FrameType | None = None  # of the round, while it goes on
        self.inside: list[str] = []  # files of the functions that have not returned
        self.functions: set[CodeType] = set()
        self.files: dict[str, None] = {}  # in the order in which the walk comes to them
        self.changes = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(SOURCE)) or event not in ("call", "return"):
            return
        if code is IFCA.round.__code__ and event == "call":
            self.round += 1
            self.root = frame if self.round == ROUND else self.root
        if self.root is None:
            return
        if event == "return":
            self.inside.pop()
            self.root = None if frame is self.root else self.root
            return
        file = str(Path(code.co_filename).relative_to(SOURCE))
        self.functions.add(code)
        self.files[file] = None
        self.changes += bool(self.inside) and self.inside[-1] != file
        self.inside.append(file)

    def figures(self) -> str:
        return (
            f"{len(self.functions)} functions, {len(self.files)} files, "
            f"{self.changes} changes of file"
        )


def simulated_round() -> Walk:
    from coterie.experiment.plan import make_plan

    plan = make_plan(WORDS)
    run = plan.run(plan.config())
    return follow(run.complete)


def deployed_round() -> Walk:
    sys.path.insert(0, str(ROOT))
    from coterie.flower.server import run_server
    from tests.flower.fake import FakeGrid, make_app, thirds

    with tempfile.TemporaryDirectory() as folder:
        app = make_app(*WORDS, out=str(Path(folder) / "run"), nodes=3)
        grid: Any = FakeGrid(app, thirds(Path(folder)))
        return follow(lambda: run_server(grid, app.config(), "1"))


def follow(work: Any) -> Walk:
    walk = Walk()
    sys.setprofile(walk)
    try:
        work()
    finally:
        sys.setprofile(None)
    return walk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the files too")
    options = parser.parse_args()
    for name, walk in (("simulated", simulated_round()), ("over Flower", deployed_round())):
        print(f"{name}: {walk.figures()}")
        if options.files:
            print("  " + "\n  ".join(walk.files))


if __name__ == "__main__":
    main()
