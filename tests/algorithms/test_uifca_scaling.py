import math

import pytest
import torch

from coterie import UIFCA, Density, Federation
from coterie.algorithms.uifca_scaling import ask_mean_losses, ask_scaling
from coterie.core.errors import CoterieError
from coterie.engine.simulator import Simulator
from coterie.networks.flows import LinearFlowModule
from tests.tasks.test_density import Laplace


def clients(*values, task=None):
    pairs = [(torch.tensor(v).double(), [0] * len(v)) for v in values]
    return Simulator(Federation.from_clients(pairs).train, task or flow())


def flow(features=2):
    return Density(LinearFlowModule([features]).double())


DATA = [[0.0, 4.0], [2.0, 4.0]], [[4.0, 10.0]]


def test_one_centre_and_one_scale_by_hand():
    # Means (2, 6). Squared distances in all: 4 + 4, 0 + 4, 4 + 16, of 3 samples of 2 numbers each.
    found = ask_scaling(UIFCA().measure_samples, flow(), clients(*DATA).at("start"))
    assert found.tolist() == pytest.approx([2, 6, math.sqrt(32 / 6)])


def test_samples_that_are_all_alike_are_divided_by_one():
    found = ask_scaling(UIFCA().measure_samples, flow(), clients([[3.0, 5.0]] * 4).at("start"))
    assert found.tolist() == [3, 5, 1]


def test_a_network_that_does_not_scale_is_told_nothing():
    assert ask_scaling(UIFCA().measure_samples, Density(Laplace()), None).shape == (0,)


def test_if_nobody_answers_it_is_said():
    nobody = clients(*DATA).at("start", ids=torch.arange(0))
    with pytest.raises(CoterieError, match="no client answered during the start"):
        ask_scaling(UIFCA().measure_samples, flow(), nobody)


def test_mean_losses_are_over_samples_and_not_over_clients():
    # Standard normal: |x|^2 / 2 is 8, 10 and 58, and log 2 pi; the mean of the first is 76 / 3.
    models = torch.tensor([[1.0, 0, 0, 1, 0, 0, 0, 0, 1]]).double()
    found = ask_mean_losses(UIFCA().measure_losses, models, clients(*DATA).at("round"))
    assert found.tolist() == pytest.approx([76 / 3 + math.log(2 * math.pi)])


def test_samples_far_from_zero_have_their_scale():
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) + 5000
    far = Simulator(
        Federation.from_clients([(x[:20], [0] * 20), (x[20:], [0] * 30)]).train,
        Density(LinearFlowModule([2])),
    )
    found = ask_scaling(UIFCA().measure_samples, far.task, far.at("start"))
    x = x.double()
    assert found[-1].item() == pytest.approx((x - x.mean(0)).square().mean().sqrt().item())
