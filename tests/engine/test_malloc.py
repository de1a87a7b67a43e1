import subprocess
import sys
from pathlib import Path

import pytest
import torch

from coterie.engine import malloc as allocator

# Peak memory of a process is its own only in a process of its own.
MEASURED = """
import sys
import tempfile
from pathlib import Path
import torch
import coterie
from coterie.data.federation import Federation, Samples
from coterie.networks import mlp

def peak():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) // 1024

def run(clients, folder):
    x, y = torch.zeros(clients * 2, 64), torch.arange(clients * 2) % 10
    data = Federation(Samples(x, y, torch.arange(clients + 1) * 2))
    task = coterie.Classification(mlp(64, 100, 10))
    coterie.simulate(algorithm, data, task, rounds=2, evaluate=2, folder=folder)

algorithm = {"fedavg": coterie.FedAvg(steps=1), "ifca": coterie.IFCA(k=2, steps=1, start="random")}
algorithm = algorithm[sys.argv[1]]
with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    run(1_000, one)
    before = peak()
    run(10_000, other)
    print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize("algorithm", ["fedavg", "ifca"])
def test_memory_of_a_round_does_not_grow_with_the_number_of_clients(algorithm):
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, algorithm], capture_output=True, text=True, check=True
    )
    # The models of 9,000 more clients would take 258 MB, their samples and numbers take 8.
    assert int(done.stdout) < 100


@pytest.mark.parametrize(("chunks", "times"), [(0, 0), (7, 0), (8, 1), (16, 2), (35, 5)])
def test_chunks_come_through_and_memory_is_given_back_every_few(chunks, times, monkeypatch):
    given = []
    monkeypatch.setattr(allocator, "give_back", lambda: given.append(1))
    assert list(allocator.tidily(range(chunks))) == list(range(chunks))
    assert len(given) == times  # a rest of many chunks is not left to those of the next round


def test_nothing_happens_where_the_c_library_cannot_give_back(monkeypatch):
    monkeypatch.setattr(allocator, "c_function", lambda name: None)
    allocator.give_back()
    allocator.keep_freed.__wrapped__()


FAULTS = """
import resource, torch
from coterie.engine import malloc as allocator

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        blocks = [torch.ones(2**21) for _ in range(6)]  # 8 MB each
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
before = faults()
allocator.keep_freed()
faults()
print(before, faults())
"""


def needs(name):
    return pytest.mark.skipif(allocator.c_function(name) is None, reason=f"no {name} in C library")


@needs("mallopt")
def test_blocks_that_were_freed_are_used_again_without_asking_the_system():
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    assert after < max(1000, before / 10)  # of 2048 pages in each of 60 blocks


@needs("malloc_trim")
def test_freed_pages_are_handed_to_the_system():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1])

    blocks = [torch.ones(2**14) for _ in range(2000)]  # 64 KB each, from the heap
    pins = blocks[::50]
    held = resident()
    del blocks
    allocator.give_back()
    assert held - resident() > 20_000  # pages, of some 32,000
    assert len(pins) == 40
