"""Algorithms, federations and networks of a user's own, in files outside the tree."""

import sys
from pathlib import Path
from textwrap import dedent
from uuid import uuid4

import pytest

METHOD = """
    '''Mine: clients send their losses, the server takes the mean of their models.'''

    from dataclasses import dataclass
    from typing import NamedTuple

    import torch
    from torch import Tensor

    from coterie.core.algorithm import Info, Serving, Start
    from coterie.core.clients import Clients, on_client
    from coterie.core.cohort import Cohort
    from coterie.core.local_training import LocalTraining


    class State(NamedTuple):
        models: Tensor  # [1, d]


    class Upload(NamedTuple):
        model: Tensor  # [m, d]


    @dataclass(frozen=True, kw_only=True)
    class Method(LocalTraining):
        '''The mean of all models, moved by a factor.'''

        factor: float = 1

        def init(self, start: Start) -> State:
            return State(start.models(1))

        def round(self, state: State, clients: Clients) -> tuple[State, Info]:
            ids, up = clients.run(self.train, models=state.models)
            if not len(ids):
                return state, Info(ids, ids, 1)
            mean = up.model.mean(0, keepdim=True)
            return State(state.models + self.factor * (mean - state.models)), Info(ids, ids * 0, 1)

        def serve(self, state: State, clients: Clients) -> Serving:
            return Serving(state.models, clients.ids, clients.ids * 0)

        @on_client
        def train(self, cohort: Cohort, models: Tensor) -> Upload:
            return Upload(self.local_update(cohort, models.expand(len(cohort), -1)))


    Alias = Method
"""
DATA = """
    from dataclasses import dataclass

    import torch
    from coterie import Federation


    def blobs(clients: int = 6, gap: float = 2, seed: int = 0) -> Federation:
        '''Two blobs for each client.'''
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for _ in range(clients):
            y = torch.arange(20) % 3
            parts.append((torch.randn(20, 4, generator=generator) + gap * y[:, None], y))
        return Federation.from_clients(parts, test=parts)


    @dataclass(frozen=True, kw_only=True)
    class Blobs:
        '''The same as a settings class.'''

        clients: int = 6
        suggests = {"network": "linear", "rounds": 3}

        def build(self, seed):
            return blobs(self.clients, seed=seed)
"""
NETS = """
    import math
    from dataclasses import dataclass

    import torch
    from torch import nn


    def build(shape, outputs, width: int = 5):
        '''Two layers.'''
        first = nn.Linear(math.prod(shape), width)
        return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(width, outputs))


    def fixed():
        return nn.Linear(4, 3)


    class Module(nn.Module):
        '''A class of modules.'''

        def __init__(self, outputs: int, width: int = 7) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, width), nn.Linear(width, outputs)

        def forward(self, x):
            return self.last(self.first(x).relu())


    @dataclass(frozen=True, kw_only=True)
    class Net:
        '''A settings class.'''

        width: int = 5

        def module(self, shape, outputs):
            return build(shape, outputs, self.width)
"""


class OwnFiles:
    """A folder of modules with names that nothing else has, so that tests share none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"own_{uuid4().hex[:8]}"

    def write(self, name: str, text: str) -> str:
        """Write a module; the name under which it can be imported."""
        (self.folder / f"{self.mark}_{name}.py").write_text(dedent(text), encoding="utf-8")
        return f"{self.mark}_{name}"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Files of the user's own in a folder from which this process can import."""
    monkeypatch.syspath_prepend(str(tmp_path))
    files = OwnFiles(tmp_path)
    yield files
    for name in [name for name in sys.modules if name.startswith(files.mark)]:
        del sys.modules[name]


def write_all(files: OwnFiles) -> tuple[str, str, str]:
    """The method, the data and the networks above; the names of the modules."""
    texts = {"method": METHOD, "data": DATA, "nets": NETS}
    return tuple(files.write(name, text) for name, text in texts.items())
