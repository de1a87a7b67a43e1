import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from coterie import Regression
from coterie.data.federation import Samples
from coterie.engine import malloc
from coterie.engine.simulator import Simulator
from tests.channel.echo import Echo


@pytest.fixture
def trimmed(monkeypatch):
    """The calls of the C function, which is not really called."""
    calls = []
    monkeypatch.setattr(malloc, "malloc_trim", None)
    library = SimpleNamespace(malloc_trim=calls.append, mallopt=lambda option, value: 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    return calls


def run_step(clients):
    """A step on so many clients, each a chunk by itself."""
    samples = Samples.of([(torch.zeros(1, 1), torch.zeros(1)) for _ in range(clients)])
    simulator = Simulator(samples, Regression(nn.Linear(1, 1)), chunk=1)
    simulator.at("round", 0).run(Echo().step, model=torch.zeros(4))


def test_nothing_is_handed_back_by_default():
    """Neither an import nor a run switches it on; asked in a process that nobody else has used."""
    code = """
import torch
import coterie
from coterie.checks import small_federation, small_task
from coterie.engine import malloc

coterie.simulate(coterie.FedAvg(), small_federation(), small_task(), rounds=1)
print(malloc.malloc_trim)
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert said.stdout.split() == ["None"]


@pytest.mark.parametrize(("chunks", "times"), [(7, 0), (8, 1), (9, 2), (16, 2), (20, 3)])
def test_the_simulator_hands_back_every_eight_chunks_and_at_the_end(trimmed, chunks, times):
    malloc.tune_malloc()
    run_step(chunks)
    assert trimmed == [0] * times


def test_a_c_library_without_the_function_is_left_alone(trimmed, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    malloc.tune_malloc()
    run_step(20)
    assert malloc.malloc_trim is None
