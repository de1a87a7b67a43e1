import numpy as np
import torch
from torch import nn

from coterie import Regression
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator
from tests.engine.test_simulator import simulator


def test_clients_of_like_size_share_a_chunk():
    chunks = list(simulator([9, 1, 8, 2, 9], chunk=2).chunks(torch.arange(5)))
    assert [chunk.tolist() for chunk in chunks] == [[1, 3], [2, 0], [4]]


def test_heavy_tailed_clients_are_hardly_padded():
    """n_i = 5 (int(lognormal(4, 2)) + 50), as in the FPFC paper."""
    rng = np.random.default_rng(0)
    sizes = 5 * (rng.lognormal(4, 2, size=1000).astype(int) + 50)
    offsets = torch.from_numpy(np.concatenate([[0], sizes.cumsum()]))
    samples = Samples(torch.zeros(int(offsets[-1]), 60), torch.zeros(int(offsets[-1])), offsets)
    many = Simulator(samples, Regression(nn.Linear(60, 1)))
    padded = [len(ids) * int(samples.sizes[ids].max()) for ids in many.chunks(many.ids)]
    assert sum(padded) < 1.3 * sizes.sum()
    assert max(padded) * 60 * 4 <= max(64 * 2**20, sizes.max() * 60 * 4)
    assert sum(len(ids) for ids in many.chunks(many.ids)) == 1000
    assert len(padded) < 100


def test_a_large_model_makes_small_chunks():
    wide = Regression(nn.Linear(2**20, 1))
    samples = Samples.of([(torch.zeros(1, 2**20), torch.zeros(1))] * 2)
    assert Simulator(samples, wide).chunking.clients == 15  # of 4 MiB each, in 64
    assert simulator([1]).chunking.clients == 256


def test_many_threads_have_chunks_in_which_none_is_idle(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert simulator([1]).chunking.clients == 1024
    wide = Samples.of([(torch.zeros(200, 784), torch.zeros(200))] * 300)
    many = Simulator(wide, Regression(nn.Sequential(nn.Linear(784, 200), nn.Linear(200, 1))))
    assert [len(ids) for ids in many.chunks(many.ids)] == [300]  # of 627 kB each, in 512 MB
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert len(next(many.chunks(many.ids))) == 106  # in 64 MB
