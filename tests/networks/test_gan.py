import pytest
import torch

from coterie.core.errors import SettingError
from coterie.networks.gan import Gan


@pytest.mark.parametrize("shape", [[5], [4, 6], [3, 4, 4]])
def test_what_goes_in_and_out_of_the_three_networks(shape):
    module = Gan(hidden=7, latent=3).module(shape, 2)
    made = module.generator(torch.randn(6, 5))
    assert made.shape == (6, *shape)
    assert module.critic(made).shape == (6, 1)
    assert module.encoder(made).shape == (6, 5)
    assert module.centre.tolist() == [0] * 5


def test_images_have_wider_networks_than_vectors():
    for shape, width in (([5], 64), ([4, 6], 256)):
        module = Gan().module(shape, 2)
        widths = [part[-1].in_features for part in (module.critic, module.encoder)]
        assert widths == [width, width]


def test_pixels_are_from_0_to_1_and_vectors_are_any_numbers():
    for shape, bounded in (([2, 2], True), ([4], False)):
        module = Gan(hidden=4, latent=1).module(shape, 1)
        made = module.generator(1000 * torch.randn(50, 2))
        assert bool(((made >= 0) & (made <= 1)).all()) == bounded


def test_a_code_is_noise_and_probabilities_less_the_centre():
    module = Gan(hidden=4, latent=2).module([3], 3)
    for weight in module.encoder.parameters():
        weight.data.zero_()
    module.encoder[-1].bias.data = (
        torch.tensor([5.0, 6.0, 0.0, 0.0, 0.0])
        + torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]) * torch.tensor(2.0).log()
    )
    module.encoder[-1].bias.data[4] = 0.0  # 2, 2 and 1 to 5: shares 0.4, 0.4, 0.2
    module.centre = torch.tensor([1.0, 1.0, 0.0, 0.4, 0.0])
    torch.testing.assert_close(module(torch.ones(1, 3)), torch.tensor([[4.0, 5.0, 0.4, 0.0, 0.2]]))


def test_samples_without_one_shape_are_refused():
    with pytest.raises(SettingError, match="samples of one shape"):
        Gan().module([-1], 2)
