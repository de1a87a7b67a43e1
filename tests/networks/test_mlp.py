import pytest
import torch
from torch import nn

from coterie.core.errors import SettingError
from coterie.networks import Linear, Mlp


def test_a_perceptron_without_a_hidden_layer_is_a_linear_model():
    layers = list(Mlp(hidden=0).module([2, 3], 4))
    assert [type(layer) for layer in layers] == [nn.Flatten, nn.Linear]
    assert layers[1].weight.shape == (4, 6)
    assert Mlp(hidden=5).module([2, 3], 4)[1].weight.shape == (5, 6)


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_model_is_drawn_as_pytorch_draws_its_layers(bias):
    torch.manual_seed(3)
    ours = Linear(bias=bias).module([4], 2)[1]
    torch.manual_seed(3)
    theirs = nn.Linear(4, 2, bias=bias)
    assert torch.equal(ours.weight, theirs.weight)
    assert (ours.bias is None) == (theirs.bias is None)


def test_bernoulli_weights_are_the_first_zeros_and_ones_of_the_seed():
    torch.manual_seed(3)
    weight = Linear(bias=False, weights="bernoulli").module([50], 1)[1].weight
    expected = torch.randint(2, (50,), generator=torch.Generator().manual_seed(3)).float()
    assert torch.equal(weight[0], expected)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(SettingError, match=r"`hidden` of Mlp must be auto, 0 or .*64,32, got -1"):
        Mlp(hidden=-1)
    with pytest.raises(SettingError, match="one of uniform, bernoulli, got normal"):
        Linear(weights="normal")
    for hidden in ("64,", "64,0", "0,0", "wide", "", True, 1.5):
        with pytest.raises(SettingError, match="whole numbers of at least 1 with commas between"):
            Mlp(hidden=hidden)


def test_hidden_layers_have_the_widths_that_are_named():
    layers = list(Mlp(hidden="64,32").module([3], 4))
    kinds = [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [type(layer) for layer in layers] == kinds
    assert [layer.weight.shape for layer in layers if hasattr(layer, "weight")] == [
        (64, 3),
        (32, 64),
        (4, 32),
    ]


def test_a_network_of_fitting_size_goes_by_the_samples_of_a_client():
    auto = Mlp(hidden="auto")
    assert [auto.for_samples(n).widths for n in (1, 999, 1000, 3999, 4000)] == [
        [],
        [],
        [32],
        [32],
        [64, 32],
    ]
    assert Mlp(hidden=7).for_samples(10_000).widths == [7]
    assert auto.widths == []
