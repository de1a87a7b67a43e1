import math

import pytest
import torch
from torch import nn

from coterie import UIFCA, Density, Federation, simulate
from coterie.core.errors import DataError
from coterie.core.kernel import Descent, StepRule
from coterie.core.rows import Rows
from coterie.engine.kernels import blocks, kernel_for
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.kernels.vmapped import VmappedKernel
from coterie.networks.flows import LinearFlowModule, RealNvp
from coterie.tasks.density import gives_log_probabilities


class Laplace(nn.Module):
    """A density of a user's own, with one place for each feature: no scaling, no draws."""

    def __init__(self, features=2):
        super().__init__()
        self.place = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return -(x - self.place).abs().sum(1) - x.shape[1] * math.log(2)


def test_the_loss_is_the_negative_log_probability_whatever_the_labels():
    task, x = Density(LinearFlowModule([2])), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    losses = task.losses(task.module(x), None)
    assert losses.tolist() == pytest.approx([math.log(2 * math.pi), math.log(2 * math.pi) + 12.5])
    assert not task.predicts


def test_a_mixture_by_hand():
    # Log-probabilities log 1/2 and log 1/4 in shares 1/4 and 3/4: 1/8 + 3/16 = 5/16.
    outputs = torch.tensor([0.5, 0.25]).log()[:, None, None]  # [k, m, n]
    found = Density(Laplace()).mix(outputs, torch.tensor([[0.25, 0.75]]))
    assert found.exp().tolist() == [[pytest.approx(5 / 16)]]


def test_models_are_told_the_scale_of_samples_and_keep_all_else():
    task = Density(LinearFlowModule([2]))
    models = torch.randn(3, 4, task.layout.size)
    scaled = task.with_scaling(models, torch.tensor([5.0, 6.0]), torch.tensor(7.0))
    parts, before = task.layout.unflatten(scaled), task.layout.unflatten(models)
    assert parts["inputs.shift"].flatten(0, 1).unique(dim=0).tolist() == [[5, 6]]
    assert parts["inputs.scale"].unique().tolist() == [7]
    assert all(torch.equal(parts[name], before[name]) for name in ("A", "c"))
    assert (task.scales, task.features) == (True, 2)
    own = Density(Laplace())
    assert (own.scales, own.features) == (False, 0)
    assert own.with_scaling(models, torch.zeros(2), torch.ones(())) is models


def test_what_is_drawn_has_the_distribution_of_the_model():
    task = Density(LinearFlowModule([2]))
    model = task.with_scaling(
        torch.tensor([2.0, 0, 0, 4.0, 0, 0, 0, 0, 0]), torch.tensor([5.0, -1.0]), torch.tensor(2.0)
    )
    drawn = task.generate(model, 4000, torch.Generator().manual_seed(0))
    assert drawn.mean(0).tolist() == pytest.approx([5, -1], abs=0.05)
    assert drawn.std(0).tolist() == pytest.approx([1, 0.5], rel=0.05)
    again = task.generate(model, 4000, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)
    assert Density(Laplace()).generate(torch.zeros(2), 3, torch.Generator()) is None


def test_images_are_drawn_in_their_shape_with_pixels_in_zero_to_one():
    task = Density(RealNvp(couplings=2, hidden=3).module([4, 6], 1))
    drawn = task.generate(task.layout.flatten(task.module), 5, torch.Generator().manual_seed(0))
    assert drawn.shape == (5, 4, 6)
    assert 0 <= drawn.min() < drawn.max() <= 1


@pytest.mark.parametrize(
    ("network", "says"),
    [(nn.Linear(2, 1), "one log-probability per sample"), (nn.Linear(3, 1), "cannot take samples")],
)
def test_a_network_that_gives_no_log_probabilities_is_refused(network, says):
    with pytest.raises(DataError, match=says):
        Density(network).check_samples(torch.zeros(4, 2), torch.zeros(4))
    assert not gives_log_probabilities(Density(network), torch.zeros(4, 2))


def test_a_network_of_ones_own_is_enough():
    assert gives_log_probabilities(Density(Laplace()), torch.zeros(1, 2))
    x = torch.cat([torch.randn(40, 2) - 6, torch.randn(40, 2) + 6])
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    data = Federation.from_clients([(x[half], (half >= 40).long()) for half in order.split(40)])
    run = simulate(UIFCA(k=2, lr=0.2, batch=0, fit_rounds=2), data, Density(Laplace()), rounds=12)
    places = run.models[run.models[:, 0].argsort()]
    assert places.flatten().tolist() == pytest.approx([-6, -6, 6, 6], abs=0.6)


def test_small_flows_are_trained_side_by_side_and_convolutions_one_by_one():
    conv = RealNvp(nets="conv", channels=2, blocks=1).module([4, 4], 1)
    assert type(kernel_for(Density(conv), 2)) is PerClientKernel
    for module in (LinearFlowModule([3]), RealNvp(hidden=3).module([4, 4], 1), Laplace()):
        assert type(kernel_for(Density(module), 1)) is VmappedKernel
    assert type(kernel_for(Density(Laplace()), 0)) is PerClientKernel, "not one tensor per sample"


FLOWS = {
    "linear": lambda: LinearFlowModule([5]),
    "realnvp": lambda: RealNvp(couplings=3, hidden=4).module([5], 1),
    "realnvp of two parts": lambda: RealNvp(couplings=4, hidden=4, masks="random").module([5], 1),
}


def models_of(task, generator):
    """Four models that scale their samples, in double precision, and samples for them."""
    draw = 0.3 * torch.randn(4, task.layout.size, generator=generator, dtype=torch.double)
    draw += task.layout.flatten(task.module)
    models = task.with_scaling(draw, torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0]), torch.tensor(3.0))
    x = torch.randn(4, 6, 5, generator=generator, dtype=torch.double)
    return models, Rows(x, torch.zeros(4, 6), torch.tensor([6, 1, 3, 4]))


@pytest.mark.parametrize("flow", FLOWS)
def test_the_gradients_of_flows_are_those_of_differentiation(flow):
    generator = torch.Generator().manual_seed(0)
    task = Density(FLOWS[flow]()).double()
    models, rows = models_of(task, generator)
    weights = torch.rand(4, 6, generator=generator, dtype=torch.double) * rows.mask
    reference, kernel = PerClientKernel(task), VmappedKernel(task)
    assert kernel.is_exact_for(rows)
    for some in (None, weights):
        found = kernel.gradient(models, rows, [0] * 4, some)
        torch.testing.assert_close(found, reference.gradient(models, rows, [0] * 4, some))


@pytest.mark.parametrize("room", [1, 2**30])  # one client at a time, or all
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("flow", FLOWS)
def test_flows_side_by_side_descend_as_each_alone(flow, optimizer, room, monkeypatch):
    monkeypatch.setattr(blocks, "WEIGHT_BYTES", room)
    task = Density(FLOWS[flow]()).double()
    models, rows = models_of(task, torch.Generator().manual_seed(0))
    batches = [torch.arange(4 * 2).view(4, 2) % size for size in rows.size.tolist()]
    rule, moves = StepRule(0.01, optimizer, clip=1.0), torch.ones(task.layout.size)
    moves[:7] = 0
    for work in (
        Descent(StepRule(0.01, optimizer), [4] * 4, batches, [0] * 4),
        Descent(rule, [3, 1, 4, 2], None, [0] * 4, part=moves > 0, weight_decay=0.1),
    ):
        found = VmappedKernel(task).descend(models, rows, work)
        expected = PerClientKernel(task).descend(models, rows, work)
        torch.testing.assert_close(found, expected)
        assert not torch.equal(found, models)


def test_tensors_of_several_types_and_frozen_ones_are_done_one_by_one_or_by_differentiation():
    mixed = LinearFlowModule([3])
    mixed.c = nn.Parameter(mixed.c.double())
    rows = Rows(torch.randn(2, 3, 3), torch.zeros(2, 3), torch.tensor([3, 3]))
    assert not VmappedKernel(Density(mixed)).is_exact_for(rows)
    for flow in FLOWS:
        task = Density(FLOWS[flow]())
        next(task.module.parameters()).requires_grad_(False)
        task = Density(task.module)
        models = task.layout.flatten(task.module).repeat(4, 1)
        some = Rows(torch.randn(4, 3, 5), torch.zeros(4, 3), torch.tensor([3] * 4))
        found = VmappedKernel(task).gradient(models, some, [0] * 4)
        torch.testing.assert_close(found, PerClientKernel(task).gradient(models, some, [0] * 4))


def test_a_linear_flow_without_an_inverse_is_lost_and_takes_no_other_with_it():
    task = Density(LinearFlowModule([2]))
    models = task.layout.flatten(task.module).repeat(2, 1)
    models[0, :4] = 0.0  # A = 0
    rows = Rows(torch.ones(2, 3, 2), torch.zeros(2, 3), torch.tensor([3, 3]))
    kernel = VmappedKernel(task)
    step = Descent(StepRule(0.1), [2, 2], None, [0, 0])
    ends = kernel.descend(models, rows, step)
    assert not ends[0, :4].isfinite().any()
    assert torch.allclose(ends[1], kernel.descend(models[1:], Rows(*(p[1:] for p in rows)), step))
