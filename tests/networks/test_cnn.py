import torch

from coterie.networks import CelebaCnn, CifarCnn, FemnistCnn


def test_networks_take_the_images_of_their_federations():
    assert FemnistCnn(hidden=16).module([28, 28], 62)(torch.rand(2, 28, 28)).shape == (2, 62)
    assert CifarCnn().module([32, 32, 3], 10)(torch.rand(2, 32, 32, 3)).shape == (2, 10)
    assert CelebaCnn().module([84, 84, 3], 2)(torch.rand(2, 84, 84, 3)).shape == (2, 2)
