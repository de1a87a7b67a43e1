import pytest
import torch
from torch import nn

from coterie.core.errors import SettingError
from coterie.core.layout import Layout, frozen_digest


def network():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def test_flatten_and_unflatten_are_inverse_with_buffers():
    module = network()
    module[1].running_mean += 5
    module[1].num_batches_tracked += 7
    layout = Layout(module)
    tensors = layout.unflatten(layout.flatten(module))
    for name, value in module.state_dict().items():
        assert torch.equal(tensors[name], value)
        assert tensors[name].dtype == value.dtype


def test_parameters_come_first_and_buffers_are_not_trained():
    layout = Layout(network())
    assert layout.trained_size == 2 * 3 + 3 + 3 + 3 + 3 * 2 + 2
    assert layout.size == layout.trained_size + 3 + 3 + 1


def test_frozen_parameters_stay_in_the_module():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    layout = Layout(module)
    assert layout.frozen == ["0.weight", "0.bias"]
    assert layout.trained == ["1.weight", "1.bias", "2.weight", "2.bias"]
    assert layout.size == 3 + 3 + 6 + 2 + (3 + 3 + 1)
    assert not set(layout.frozen) & set(layout.names)
    assert torch.equal(layout.flatten(module)[:3], module[1].weight)


def test_the_head_is_the_last_layer_that_is_trained():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    module[1].requires_grad_(False)
    layout = Layout(module)
    assert layout.part("head").all()
    for name in ("1", "1.weight"):
        with pytest.raises(SettingError, match=f"{name} of the network is frozen"):
            layout.part(name)


def test_the_digest_is_of_frozen_weights_alone():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    assert frozen_digest(module) == ""
    module[0].requires_grad_(False)
    before = frozen_digest(module)
    module[1].weight.data += 1
    assert frozen_digest(module) == before
    module[0].bias.data[0] += 1e-6
    assert frozen_digest(module) != before


def test_head_is_the_last_layer_and_body_the_rest():
    layout = Layout(network())
    head, body = layout.part("head"), layout.part("body")
    assert int(head.sum()) == 3 * 2 + 2
    assert torch.equal(head, ~body)
    assert torch.equal(layout.part("2"), head)
    assert int(layout.part("2.bias").sum()) == 2


def test_an_unknown_part_is_refused_with_the_near_ones():
    with pytest.raises(SettingError, match=r"no part named haed; did you mean `head`"):
        Layout(network()).part("haed")


def test_a_module_without_parameters_is_refused():
    with pytest.raises(SettingError, match="ReLU has no parameters to train"):
        Layout(nn.ReLU())


def test_a_step_moves_what_is_trained_by_the_rate_and_takes_buffers_over():
    layout = Layout(nn.BatchNorm1d(1))  # weight, bias; mean, variance, count
    model, gradient = torch.tensor([[1.0, 2.0, 3.0, 4.0, 0.0]]), torch.tensor([1.0, 2, 3, 4, -1])
    assert layout.step(model, gradient, 0.5).tolist() == [[0.5, 1, 0, 0, 1]]
    plain = Layout(nn.Linear(1, 1))
    assert plain.step(torch.ones(2), torch.ones(2), 0.25).tolist() == [0.75, 0.75]
