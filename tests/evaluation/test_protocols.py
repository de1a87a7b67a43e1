import pytest
import torch
from torch import nn

import coterie
from coterie import IFCA, Federation, Local, Regression
from coterie.core.errors import DataError, SettingError


def test_train_loss_and_test_loss_choose_by_different_data():
    """Each client's test part looks like the other group's training part."""
    ones, zeros = torch.ones(4, 1), torch.zeros(4)
    train = [(ones, zeros + 1), (ones, zeros - 1)]
    test = [(ones, zeros - 1), (ones, zeros + 1)]
    federation = Federation.from_clients(train, test=test)
    task = Regression(lambda: nn.Linear(1, 1, bias=False))
    losses = {
        protocol: coterie.simulate(
            IFCA(k=2, steps=30, start="farthest"), federation, task, rounds=5, protocol=protocol
        ).metrics["loss"]
        for protocol in ("train-loss", "test-loss")
    }
    assert losses["train-loss"] == pytest.approx(4.0, abs=1e-2)
    assert losses["test-loss"] == pytest.approx(0.0, abs=1e-2)


def unseen_federation(**known):
    torch.manual_seed(0)
    clients = [(torch.ones(4, 1), torch.full((4,), float(s))) for s in (1, 1, -1, -1)]
    tests = [(torch.ones(3, 1), torch.full((3,), float(s))) for s in (-1, 1)]
    return Federation.from_clients(clients, test=tests, unseen=True, **known)


def test_unseen_test_clients_are_served_by_test_loss():
    task = Regression(lambda: nn.Linear(1, 1, bias=False))
    run = coterie.simulate(IFCA(k=2, steps=30), unseen_federation(), task, rounds=5)
    assert run.metrics["loss"] == pytest.approx(0, abs=1e-2)
    assert run.result["protocol"] == "test-loss"
    with pytest.raises(
        SettingError, match="`protocol` train-loss needs test clients with training"
    ):
        coterie.simulate(IFCA(k=2), unseen_federation(), task, protocol="train-loss")


def test_a_local_model_is_tested_on_its_true_clusters_test_clients():
    task = Regression(lambda: nn.Linear(1, 1, bias=False))
    known = unseen_federation(cluster=[0, 0, 1, 1], test_cluster=[1, 0])
    run = coterie.simulate(Local(steps=30), known, task, rounds=5)
    assert run.metrics["loss"] == pytest.approx(0, abs=1e-2)
    with pytest.raises(DataError, match="only where the true clusters are known"):
        coterie.simulate(Local(), unseen_federation(), task, rounds=1)
