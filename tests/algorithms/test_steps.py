import pickle

import pytest
import torch

from coterie import FPFC, FPFCL1, IFCA, FeSEM, HypCluster, OneShot, Oracle
from coterie.algorithms.steps import ask_losses, held_out_loss, with_newcomers
from coterie.core.clients import step_name
from coterie.shelves import ALGORITHMS
from tests.algorithms.lines import simulator

MODELS = torch.tensor([[1.0], [-1.0]])
SHARING = [FPFC(), FeSEM(), HypCluster(), OneShot(), Oracle()]


@pytest.mark.parametrize("algorithm", SHARING, ids=lambda algorithm: type(algorithm).__name__)
def test_clients_choose_the_model_with_the_lowest_loss(algorithm):
    # Losses (w - y)^2 at y = 3: 4 and 16; at y = -2: 9 and 1.
    ids, up = simulator([3, -2]).at("round", 0).run(algorithm.choose, models=MODELS)
    assert ids.tolist() == [0, 1]
    assert up.cluster.tolist() == [0, 1]


def test_losses_of_those_who_answer_by_hand():
    clients = simulator([3, -2]).at("round", 0)
    ids, losses = ask_losses(HypCluster().losses, MODELS, clients)
    assert ids.tolist() == [0, 1]
    assert losses.tolist() == [[4.0, 16.0], [9.0, 1.0]]


def test_nobody_has_no_losses():
    clients = simulator([3, -2]).at("round", 0, ids=torch.arange(0))
    assert ask_losses(HypCluster().losses, MODELS, clients)[1].shape == (0, 2)


def test_newcomers_choose_and_others_stay():
    # Client 0 is in cluster 1 although it would choose 0; client 1 has none; 2 was never seen.
    clients = simulator([3, -2, 5]).at("serve")
    members, cluster = with_newcomers(Oracle().choose, MODELS, torch.tensor([1, -1]), clients)
    assert members.ids.tolist() == [0, 1, 2]
    assert cluster.tolist() == [1, 1, 0]


def test_the_held_out_loss_is_that_of_samples_not_trained_on():
    # One client with three samples at 0, 1 and 2: one of them is held out.
    cohort = simulator([0], sizes=[3]).cohort(torch.tensor([0]), 0, (0,))
    cohort._on.rows.y[:] = torch.tensor([[0.0, 1.0, 2.0]])
    held_out = next(y for _, y in cohort.split(0.7)[1])
    assert len(held_out) == 1
    assert held_out_loss(cohort, 0.7, torch.zeros(1, 1)).loss.item() == held_out.item() ** 2


def test_a_step_is_named_by_the_class_that_has_it():
    assert step_name(IFCA().train) == "IFCA.train"
    assert step_name(HypCluster().choose) == "HypCluster.choose"
    assert step_name(FPFCL1().train) == "FPFC.train"


@pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=lambda kind: kind.__name__)
def test_every_step_can_be_sent_to_another_process(kind):
    algorithm = kind()
    names = [name for name in dir(kind) if hasattr(getattr(kind, name), "__on_client__")]
    assert names
    for name in names:
        sent = pickle.loads(pickle.dumps(getattr(algorithm, name)))
        assert (sent.__self__, sent.__func__) == (algorithm, getattr(kind, name))
