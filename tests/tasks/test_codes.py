import pytest
import torch
from torch import nn

import coterie
from coterie import Codes, Federation
from coterie.core.errors import DataError, SettingError
from coterie.networks import Gan, Mlp
from coterie.tasks.defaults import codes_task, default_task


def build(classes):
    return Gan(hidden=6, latent=2).module([3], classes)


def test_the_loss_is_the_squared_distance_of_the_code_from_the_centre():
    task, x = Codes(build, classes=2), torch.randn(5, 3)
    model = task.draw(torch.Generator().manual_seed(1))
    centres = torch.tensor([[0.0, 0, 0, 0], [1.0, 2, 3, 4]])
    codes = task.encode(model, x)
    models = task.with_centres(model, centres)
    for one, centre in zip(models, centres, strict=True):
        module = build(2)
        module.load_state_dict(task.layout.unflatten(one))
        apart = (codes - centre).square().sum(1)
        torch.testing.assert_close(task.losses(module(x), None), apart)
    torch.testing.assert_close(task.encode(models[1], x), codes)  # whatever its centre
    assert not task.predicts


def test_what_samples_are_made_of():
    task = Codes(build, classes=3)
    z, label = task.draw_latent(4000, torch.Generator().manual_seed(0))
    assert torch.equal(z[:, 2:].argmax(1), label)
    assert z[:, 2:].unique().tolist() == [0, 1]
    assert z[:, :2].std().item() == pytest.approx(0.1, abs=0.003)
    assert (label.bincount() / 4000).tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    precise, same = task.double().draw_latent(4000, torch.Generator().manual_seed(0))
    assert torch.equal(same, label)
    assert precise.dtype == torch.float64


def test_what_is_drawn_is_of_the_class_of_the_centre():
    task = Codes(build, classes=2)
    module = build(2)
    for part in (module.generator[0], module.generator[2]):
        part.weight.data.zero_()
    module.generator[0].weight.data[0, 3] = 1.0  # the second class
    module.generator[2].weight.data[:, 0] = 1.0
    model = task.layout.flatten(module)
    centres = torch.tensor([[0.0, 0, 0.9, 0.1], [0.0, 0, 0.2, 0.8]])
    first, second = (
        task.generate(one, 7, torch.Generator().manual_seed(0))
        for one in task.with_centres(model, centres)
    )
    assert first.shape == (7, 3)
    assert first.unique(dim=0).shape[0] == second.unique(dim=0).shape[0] == 1  # noise is not used
    assert not torch.allclose(first, second)


def test_classes_may_be_others_unless_a_module_is_brought():
    task = Codes(build, classes=2).double()
    assert task.with_classes(2) is task
    other = task.with_classes(5)
    assert (other.classes, other.layout.dtype) == (5, torch.float64)
    own = Codes(build(2))
    assert own.with_classes(5) is own


def test_what_has_no_codes_is_refused():
    with pytest.raises(SettingError, match=r"must have generator, critic, encoder, .* got Linear"):
        Codes(nn.Linear(3, 2))
    with pytest.raises(DataError, match="cannot take samples of shape"):
        Codes(build(2)).check_samples(torch.ones(2, 4), None)


def test_a_network_with_an_encoder_has_codes_whatever_the_targets():
    for targets in ([0, 1, 2, 0], [0.5, 1.0, 2.0, 0.0]):
        data = Federation.from_clients([(torch.rand(4, 2, 2), torch.tensor(targets))] * 2)
        task = default_task(data, Gan(hidden=4, latent=2))
        assert isinstance(task, Codes)
        assert codes_task(data, task) is task
        other = codes_task(data, default_task(data, Mlp(hidden=3)).double())
        assert (other.noise, other.layout.dtype) == (Gan().latent, torch.float64)


def test_any_algorithm_may_train_a_network_with_codes():
    data = Federation.from_clients([(torch.randn(6, 3), torch.zeros(6).long())] * 2)
    run = coterie.simulate(coterie.FedAvg(), data, Codes(build, classes=2), rounds=2)
    assert run.metrics["train_loss"] >= 0
