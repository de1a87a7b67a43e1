import subprocess
import sys

import numpy as np
import pytest
import torch

import coterie
from coterie.data.federation import Samples, split_parts
from coterie.data.federations import synthetic


def test_fpfc_sizes_are_heavy_tailed_and_capped():
    free, capped = (coterie.load("fpfc-synthetic", clients=300, most=most)[0] for most in (0, 500))
    sizes = [f.train.sizes + f.test.sizes for f in (free, capped)]
    assert sizes[0].max() > 50 * sizes[0].median()
    assert sizes[1].max() == 500
    assert sizes[0].min() >= 250
    assert bool((sizes[0] % 5 == 0).all())


def test_rows_drawn_in_pieces_are_split_as_rows_that_are_there_at_once():
    sizes = np.array([7, 2, 11])
    x = np.arange(20 * synthetic.FEATURES, dtype=np.float32).reshape(20, -1)
    y = np.arange(20)
    pieces = [(0, 0, 7), (1, 7, 9), (2, 9, 13), (2, 13, 17), (2, 17, 20)]
    drawn = ((i, x[begin:end], y[begin:end]) for i, begin, end in pieces)
    found = synthetic.write_samples(sizes, drawn, 0.8, 5)
    parts = split_parts(torch.arange(20).split(sizes.tolist()), 0.8, 5)
    for samples, part in zip(found, parts, strict=True):
        expected = Samples.select(torch.from_numpy(x), torch.from_numpy(y), part)
        assert torch.equal(samples.x, expected.x)
        assert torch.equal(samples.y, expected.y)
        assert torch.equal(samples.offsets, expected.offsets)


HEAVY = """
import resource
import coterie

def most():  # KiB held at once so far
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = most()
federation, task = coterie.load("fpfc-synthetic", clients=400, most=0, seed=0)
coterie.simulate(coterie.FedAvg(steps=1), federation, task, rounds=1)
data = sum(p.x.nbytes + p.y.nbytes for p in (federation.train, federation.test)) / 1024
print((most() - before) / data)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is counted in KiB on Linux only")
def test_a_heavy_tailed_federation_takes_no_more_than_twice_its_data():
    # 289 MiB, a client of half a million rows among them.
    answer = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert float(answer.stdout) < 2


def test_the_clusters_of_fpfc_disagree_about_labels_but_each_is_learnable():
    federation, task = coterie.load("fpfc-synthetic", clients=8, most=600)
    oracle = coterie.simulate(coterie.Oracle(lr=0.5), federation, task, rounds=30, evaluate=30)
    fedavg = coterie.simulate(coterie.FedAvg(lr=0.5), federation, task, rounds=30, evaluate=30)
    assert oracle.metrics["accuracy"] > fedavg.metrics["accuracy"] + 0.1


def test_spread_zero_makes_leaf_clients_alike():
    def spread(**settings):
        federation, _ = coterie.load("leaf-synthetic", clients=40, most=200, **settings)
        means = torch.stack([federation.train.client(i)[0].mean() for i in range(40)])
        return means.std().item()

    assert spread(spread_features=0.0) < 0.3 < spread(spread_features=4.0)
