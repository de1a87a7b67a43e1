import pytest
import torch

import coterie
from coterie import Ditto
from coterie.core.algorithm import Serving
from coterie.evaluation.honest import HonestClients


def test_nobody_attacks_unless_somebody_is_named():
    ids = torch.tensor([0, 2, 3])
    assert HonestClients().among(ids).tolist() == [True, True, True]
    assert HonestClients().columns() == {}
    honest = HonestClients(torch.tensor([False, True, True, False]))
    assert honest.among(ids).tolist() == [True, False, True]
    assert honest.columns() == {"attacker": [False, True, True, False]}
    serving = Serving(torch.zeros(1, 2), ids, torch.zeros_like(ids))
    assert honest.only(serving).ids.tolist() == [0, 3]


@pytest.mark.filterwarnings("ignore:attackers are")
def test_models_of_attackers_are_not_tested_in_the_place_of_honest_ones(monkeypatch):
    # Test clients are others than those that train: each that trains is tested on one of them.
    images, labels = torch.rand(400, 8, 8), torch.arange(400) % 10
    monkeypatch.setattr(
        "coterie.data.sources.load_mnist", lambda part: ((255 * images).byte(), labels)
    )
    federation, task = coterie.load("rotated-mnist", clients=12, rotations=2, hidden=4)
    assert federation.unseen
    run = coterie.simulate(Ditto(), federation, task, rounds=2, attack="boosted", attackers=0.25)
    attackers = run.training.participants.attackers
    assert run.result["scored"] == 9
    assert not bool(attackers[run.evaluation.serving.ids].any())
    assert {"accuracy", "attackers_accuracy"} <= set(run.metrics)
    assert run.clients["accuracy"].notna().all()
