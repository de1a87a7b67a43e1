"""The map of samples."""

from dataclasses import replace

import pytest
import torch

import coterie
from coterie import Centre, Federation, KFed
from coterie.evaluation import sample_map as module
from coterie.evaluation.sample_map import sample_map


def ragged(**facts):
    """Clients with 1, 40 and 3 samples around 0 and 10, labelled by these."""
    sizes, generator = [1, 40, 3], torch.Generator().manual_seed(0)
    clients = []
    for size in sizes:
        y = torch.randint(2, (size,), generator=generator)
        x = 10.0 * y[:, None] + torch.randn(size, 2, generator=generator)
        clients.append((x, y))
    return replace(Federation.from_clients(clients), **facts)


def mapped(run, seed=0):
    return sample_map(run.evaluator.scorer, run.federation, run.serving, run.labels, seed)


@pytest.mark.parametrize("chunk", [0, 1])
def test_every_sample_has_its_own_client_cluster_and_loss(chunk):
    data = ragged(sample_clusters=True)
    run = coterie.simulate(KFed(k=2), data, Centre(2), rounds=1, chunk=chunk)
    found = mapped(run)
    assert found["client"] == [0] + [1] * 40 + [2] * 3
    assert found["cluster"] == run.labels.tolist()
    assert found["true"] == data.train.y.tolist()
    own = (data.train.x - run.models[run.labels]).square().sum(1)
    assert found["loss"] == pytest.approx(own.tolist(), abs=1e-4)
    assert found["drawn"] == "losses under the 2 models"
    assert len(found["x"]) == len(found["y"]) == 44


def test_there_are_at_most_so_many_samples_and_the_seed_draws_them(monkeypatch):
    monkeypatch.setattr(module, "PLACED", 7)
    run = coterie.simulate(KFed(k=2), ragged(), Centre(2), rounds=1)
    one, again, other = mapped(run), mapped(run), mapped(run, seed=1)
    assert one == again
    assert one["loss"] != other["loss"]
    assert len(one["cluster"]) == 7
    assert one["true"] is None  # labels are not said to be clusters


def test_clusters_that_are_not_known_and_one_model_have_no_map():
    run = coterie.simulate(KFed(k=2), ragged(), Centre(2), rounds=1)
    scorer, data, serving = run.evaluator.scorer, run.federation, run.serving
    unknown = torch.full((44,), -1)
    assert sample_map(scorer, data, serving, None, 0) is None
    assert sample_map(scorer, data, serving, unknown, 0) is None
    one = coterie.simulate(KFed(k=1), ragged(), Centre(2), rounds=1)
    assert mapped(one) is None
