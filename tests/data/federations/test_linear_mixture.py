import pytest
import torch

import coterie


def test_the_linear_mixture_is_that_of_the_paper():
    federation, task = coterie.load(
        "linear-mixture", clients=6, samples=4000, features=5, groups=3, separation=0.5, noise=0.2
    )
    assert federation.cluster.tolist() == [0, 0, 1, 1, 2, 2]
    assert federation.truth.norm(dim=1).tolist() == pytest.approx([0.5] * 3)
    for i in range(6):
        x, y = federation.train.client(i)
        residual = y - x @ federation.truth[federation.cluster[i]]
        assert residual.std().item() == pytest.approx(0.2, rel=0.1)
        assert torch.cov(x.T).diag().tolist() == pytest.approx([1.0] * 5, rel=0.15)
    draw = task.draw(torch.Generator().manual_seed(0))
    assert set(draw.tolist()) <= {0.0, 1.0}


def test_the_authors_scale_is_not_normalised():
    federation, _ = coterie.load("linear-mixture", features=50, separation=0.5, scale="raw")
    assert set(federation.truth.flatten().tolist()) == {0.0, 0.5}
