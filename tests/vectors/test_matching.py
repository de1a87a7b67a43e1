import pytest
import torch
from torch import nn

from coterie.core.errors import SettingError
from coterie.core.layout import Layout
from coterie.networks import CelebaCnn, CifarCnn, FemnistCnn, Mlp
from coterie.vectors.matching import (
    best_order,
    half_gaps,
    hidden_layers,
    match_units,
    shuffle_units,
)


def stack(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*layers)


STACKS = {
    "one hidden layer": (lambda: Mlp(hidden=60).module([8, 8], 10), (8, 8)),
    "three hidden layers": (
        lambda: stack(
            *(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 30), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.Linear(30, 12), nn.Sigmoid(), nn.Linear(12, 3)),
        ),
        (9,),
    ),
    "without biases, nested": (
        lambda: stack(
            stack(nn.Linear(9, 20, bias=False), nn.ReLU()), nn.Linear(20, 3, bias=False)
        ),
        (9,),
    ),
    "normalised": (
        lambda: stack(
            *(nn.BatchNorm1d(9), nn.Linear(9, 20), nn.BatchNorm1d(20), nn.ReLU()),
            nn.Linear(20, 3),
        ),
        (9,),
    ),
    "normalised when flat": (
        lambda: stack(
            *(nn.Conv2d(2, 6, 3), nn.MaxPool2d(2), nn.Flatten(), nn.BatchNorm1d(6 * 9)),
            *(nn.ReLU(), nn.Linear(6 * 9, 3)),
        ),
        (2, 8, 8),
    ),
    "words, flattened": (
        lambda: stack(nn.Linear(4, 7), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 7, 3)),
        (5, 4),
    ),
    "in one dimension": (
        lambda: stack(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                      nn.Linear(6, 3)),
        (2, 8),
    ),
    "femnist": (lambda: FemnistCnn(hidden=50).module([28, 28], 62), (28, 28)),
    "cifar": (lambda: CifarCnn().module([32, 32, 3], 10), (32, 32, 3)),
    "celeba": (lambda: CelebaCnn().module([84, 84, 3], 2), (84, 84, 3)),
}  # fmt: skip


def output(module, layout, vector, shape):
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1)).double()
    return torch.func.functional_call(module.double().eval(), layout.unflatten(vector), (x,))


def vector_of(module, layout):
    """The parameters and buffers, the latter such that they can be told apart."""
    torch.manual_seed(2)
    vector = layout.flatten(module)
    return torch.where(vector.frac() == 0, torch.rand_like(vector), vector)


@pytest.mark.parametrize("name", STACKS)
def test_shuffled_units_compute_the_same_and_are_matched_back_exactly(name):
    build, shape = STACKS[name]
    module = build().double()
    layout = Layout(module)
    vector, layers = vector_of(module, layout), hidden_layers(module, layout)
    for seed in range(3):
        shuffled = shuffle_units(layers, vector, torch.Generator().manual_seed(seed))
        assert not torch.equal(shuffled, vector)
        torch.testing.assert_close(
            output(module, layout, shuffled, shape), output(module, layout, vector, shape)
        )
        assert torch.equal(match_units(layers, shuffled[None], vector)[0], vector)


def test_every_hidden_layer_is_found():
    module = FemnistCnn(hidden=50).module([28, 28], 62)
    layers = hidden_layers(module, Layout(module))
    assert [len(layer.own) for layer in layers] == [32, 64, 50]
    # 5 x 5 of one channel and a bias; of 32 channels; 64 channels of 7 x 7.
    assert [layer.own.shape[1] for layer in layers] == [26, 25 * 32 + 1, 64 * 49 + 1]
    assert [layer.outgoing.shape[1] for layer in layers] == [64 * 25, 49 * 50, 62]


def test_three_units_by_hand():
    # Units as (incoming, bias, outgoing): those of the model are the centre's in the order 2, 0, 1,
    # a little changed.
    module = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    layout = Layout(module)
    centre = torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0, 30.0, 4.0, 5.0, 6.0, 0.5])
    model = torch.tensor([3.1, 1.1, 2.1, 30.0, 10.0, 20.0, 6.0, 4.0, 5.0, 0.7])
    layers = hidden_layers(module, layout)
    expected = torch.tensor([1.1, 2.1, 3.1, 10.0, 20.0, 30.0, 4.0, 5.0, 6.0, 0.7])
    assert torch.equal(match_units(layers, model[None], centre)[0], expected)


def test_conflicts_are_solved_by_the_least_sum():
    # Both units of the centre at 0 and 1 are nearest to the model's unit at 0.9: 0 and 1 to 0.9
    # and 5 costs .81 + 16, the other way round 25 + .01.
    centre = torch.tensor([[0.0], [1.0]])
    assert best_order(torch.tensor([[0.9], [5.0]]), centre).tolist() == [0, 1]
    assert best_order(torch.tensor([[5.0], [0.9]]), centre).tolist() == [1, 0]


def test_half_the_way_to_the_nearest_other_unit_by_hand():
    assert half_gaps(torch.tensor([[0.0], [1.0], [5.0]])).tolist() == [0.5, 0.5, 2.0]
    assert half_gaps(torch.tensor([[3.0]])).tolist() == [torch.inf]


def test_a_shortcut_for_units_in_order_is_one():
    """Units that are nearer than half the gap are where the assignment would put them."""
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(12, 30, generator=generator)
    gap = half_gaps(centre)
    for scale in (0.5, 0.99):
        way = torch.randn(12, 30, generator=generator)
        units = centre + scale * gap[:, None].float() * way / way.norm(dim=1, keepdim=True)
        assert best_order(units, centre).tolist() == list(range(12))


def test_matching_never_takes_a_model_farther_from_the_centre():
    build, _ = STACKS["three hidden layers"]
    module = build()
    layout = Layout(module)
    layers = hidden_layers(module, layout)
    draws = torch.randn(6, layout.size, generator=torch.Generator().manual_seed(0))
    centre, models = draws[0], draws[1:]
    before = (models - centre).norm(dim=1)
    after = (match_units(layers, models, centre) - centre).norm(dim=1)
    assert bool((after < before).all())


def test_models_that_are_not_finite_stay():
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    layout = Layout(module)
    broken = torch.full((1, layout.size), torch.nan)
    found = match_units(hidden_layers(module, layout), broken, torch.ones(layout.size))
    assert bool(found.isnan().all())


def test_units_next_to_frozen_weights_have_a_fixed_order():
    module = nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 7), nn.ReLU(),
        nn.Linear(7, 2),
    )  # fmt: skip
    module[0].requires_grad_(False)
    layers = hidden_layers(module, Layout(module))
    assert [len(layer.own) for layer in layers] == [6, 7]
    module[6].requires_grad_(False)
    assert [len(layer.own) for layer in hidden_layers(module, Layout(module))] == [6]


def test_a_linear_model_has_no_hidden_units():
    module = nn.Linear(4, 2)
    assert hidden_layers(module, Layout(module)) == []
    models = torch.randn(3, 10)
    assert torch.equal(match_units([], models, models[0]), models)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.layer(x)


TIED = nn.Linear(4, 4)
REFUSED = {
    "Residual": nn.Sequential(nn.Linear(4, 4), Residual(), nn.Linear(4, 2)),
    "LSTM": nn.Sequential(nn.LSTM(4, 4)),
    "LayerNorm": nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
    "PixelShuffle": nn.Sequential(nn.Conv2d(1, 4, 3), nn.PixelShuffle(2), nn.Conv2d(1, 2, 3)),
    "Softmax": nn.Sequential(nn.Linear(4, 4), nn.Softmax(0), nn.Linear(4, 2)),
    "MaxPool1d": nn.Sequential(nn.Linear(4, 4), nn.MaxPool1d(2), nn.Linear(2, 2)),
    "Linear (2)": nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Linear(4, 2)),
    "Conv2d (1)": nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2)),
    "Linear (0)": nn.Sequential(TIED, TIED),
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_whose_units_cannot_be_matched_are_refused(name):
    with pytest.raises(SettingError, match=r"hidden units can be matched in stacks") as refusal:
        hidden_layers(REFUSED[name], Layout(REFUSED[name]))
    assert f"got {name.partition(' ')[0]} (" in str(refusal.value)
