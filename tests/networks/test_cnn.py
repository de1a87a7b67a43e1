import torch

from coterie.networks import CelebaCnn, CifarCnn, FemnistCnn
from coterie.networks.cnn import RandomCropFlip


def test_networks_take_the_images_of_their_federations():
    assert FemnistCnn(hidden=16).module([28, 28], 62)(torch.rand(2, 28, 28)).shape == (2, 62)
    assert CifarCnn().module([32, 32, 3], 10)(torch.rand(2, 32, 32, 3)).shape == (2, 10)
    assert CelebaCnn().module([84, 84, 3], 2)(torch.rand(2, 84, 84, 3)).shape == (2, 2)


def numbered():
    """One image per row whose pixels say where they are, so that a crop shows its place."""
    place = torch.arange(32.0)[:, None] * 100 + torch.arange(32.0)
    return place.expand(500, 3, 32, 32)


def unstandardised(layer, x):
    """Where the first and last pixel of each crop came from, by their order."""
    out = layer(x)
    return out[:, 0, 0, 0] < out[:, 0, 0, -1], out


def test_evaluation_crops_the_middle_and_does_not_mirror():
    upright, out = unstandardised(RandomCropFlip(24).eval(), numbered())
    assert bool(upright.all())
    middle = numbered()[:1, :, 4:28, 4:28]
    expected = (middle - middle.mean()) / middle.std(correction=0)
    torch.testing.assert_close(out[:1], expected)


def test_training_crops_anywhere_and_mirrors_every_second_image():
    torch.manual_seed(0)
    upright, out = unstandardised(RandomCropFlip(24).train(), numbered())
    assert 0.4 < upright.float().mean() < 0.6
    assert out.shape == (500, 3, 24, 24)
    # A crop and its mirror image are all that standardisation leaves of a linear picture.
    assert len({round(float(v), 3) for v in out[:, 0, 0, 0]}) == 2


def test_images_are_standardised_one_by_one():
    x = torch.rand(3, 3, 32, 32) * torch.tensor([1.0, 5.0, 100.0]).view(3, 1, 1, 1)
    out = RandomCropFlip(24).eval()(x).flatten(1)
    torch.testing.assert_close(out.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std(1, correction=0), torch.ones(3))


def test_a_plain_image_does_not_blow_up():
    assert RandomCropFlip(24).eval()(torch.full((1, 3, 32, 32), 0.5)).abs().max() == 0


def test_crops_cover_every_place():
    torch.manual_seed(0)
    x = torch.zeros(4000, 1, 32, 32)
    x[:, 0, 0, 0] = 1.0  # seen only from the corner, or mirrored from it
    seen = RandomCropFlip(24).train()(x).flatten(1).amax(1) > 0
    assert 0.003 < seen.float().mean() < 0.03  # 1 of 81 places
