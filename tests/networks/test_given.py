import pickle

import torch
from torch import nn

from coterie.networks.given import settings_of_module


def test_networks_are_copies_with_the_weights_of_the_module():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    made = settings_of_module(module)().module([3], 2)
    assert {name: value.tolist() for name, value in made.state_dict().items()} == {
        name: value.tolist() for name, value in before.items()
    }
    with torch.no_grad():
        made[0].weight += 1
    assert torch.equal(module[0].weight, before["0.weight"])


def test_settings_of_a_module_can_be_sent():
    module = nn.Linear(3, 2)
    sent = pickle.loads(pickle.dumps(settings_of_module(module)()))
    assert torch.equal(sent.module([3], 2).weight, module.weight)
