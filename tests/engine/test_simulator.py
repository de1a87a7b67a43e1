import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from coterie import Regression
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator
from tests.channel.echo import Echo


def simulator(sizes, **options):
    clients = [(torch.full((n, 1), float(i)), torch.zeros(n)) for i, n in enumerate(sizes)]
    return Simulator(Samples.of(clients), Regression(nn.Linear(1, 1)), **options)


def test_padding_is_zero_and_sizes_are_kept():
    rows = simulator([3, 1]).samples.rows(torch.tensor([1, 0]))
    assert rows.x.shape == (2, 3, 1)
    assert rows.x[:, :, 0].tolist() == [[1, 0, 0], [0, 0, 0]]
    assert rows.size.tolist() == [1, 3]


def test_neighbours_of_equal_size_are_not_copied():
    samples = simulator([2, 2, 2]).samples
    rows = samples.rows(torch.tensor([1, 2]))
    assert rows.x.data_ptr() == samples.x[2:].data_ptr()
    assert rows.x[:, :, 0].tolist() == [[1, 1], [2, 2]]


def test_unseen_clients_are_numbered_behind_the_others_and_remember_nothing():
    seen = simulator([2, 2])
    seen.memory.keep("note", torch.tensor([0, 1]), torch.tensor([[5.0], [6.0]]))
    unseen = simulator([2], first=2, population=2, memory=seen.memory)
    cohort = unseen.cohort(unseen.ids, 0, (0,))
    assert cohort.ids.tolist() == [2]
    assert cohort.recall("note", torch.tensor([[9.0]])).tolist() == [[9.0]]


def test_nobody_recalls_what_nobody_kept():
    cohort = simulator([2, 2]).cohort(torch.arange(2), 0, (0,))
    with pytest.raises(AssertionError, match="recalls note but never kept it"):
        cohort.recall("note")


def test_replies_are_in_order_of_id_whatever_the_chunks():
    sizes = [5, 1, 4, 2]
    samples = Samples.of([(torch.zeros(n, 1), torch.zeros(n)) for n in sizes])
    some = Simulator(samples, Regression(nn.Linear(1, 1)), chunk=1).at("round", 0)
    ids, up = some.run(Echo().step, model=torch.zeros(4))
    assert ids.tolist() == [0, 1, 2, 3]
    assert up.size.tolist() == sizes


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
