"""CelebA from its own files."""

import numpy as np
import pytest
import torch
from PIL import Image

from coterie.core.errors import DataError
from coterie.data.sources import celeba, load_celeba

OWNERS = {"000001.jpg": "20", "000002.jpg": "3", "000003.jpg": "20", "000004.jpg": "100"}
COLOURS = {"000001.jpg": (200, 0, 0), "000002.jpg": (0, 200, 0), "000003.jpg": (0, 0, 200)}
SMILES = {"000001.jpg": 1, "000002.jpg": -1, "000003.jpg": -1, "000004.jpg": 1}
ATTRIBUTES = "\n".join(
    ["4", "Bald Smiling Young ", *(f"{name} -1  {value} 1" for name, value in SMILES.items()), ""]
)


def write(folder, inside="", attributes=ATTRIBUTES, identities=None):
    place = folder / "celeba" / inside
    (place / "img_align_celeba").mkdir(parents=True)
    for name, colour in COLOURS.items():
        pixels = np.broadcast_to(np.array(colour, np.uint8), (218, 178, 3))
        Image.fromarray(np.ascontiguousarray(pixels)).save(place / "img_align_celeba" / name)
    if identities is None:
        identities = "".join(f"{name} {owner}\n" for name, owner in OWNERS.items())
    (place / "identity_CelebA.txt").write_text(identities)
    (place / "list_attr_celeba.txt").write_text(attributes)
    return place


@pytest.mark.parametrize("inside", ["", "raw", "data/raw"])
def test_faces_lie_by_person_with_their_own_labels(folder, inside):
    write(folder, inside)
    assert celeba.SOURCE.get(print) == folder / "celeba"
    data = load_celeba()
    assert data.people == ("3", "20", "100")
    assert data.images.names == ("000002.jpg", "000001.jpg", "000003.jpg", "000004.jpg")
    assert data.person.tolist() == [0, 1, 1, 2]
    assert data.smiling.tolist() == [0, 1, 0, 1]
    assert len(data.images) == 4


def test_images_are_decoded_when_they_are_asked_for(folder):
    write(folder)
    images = load_celeba().images[torch.tensor([2, 0])]
    assert images.shape == (2, 84, 84, 3)
    assert images.dtype == torch.uint8
    for image, colour in zip(images, [(0, 0, 200), (0, 200, 0)], strict=True):
        assert (image.float().mean((0, 1)) - torch.tensor(colour)).abs().max() < 4


def test_an_image_is_scaled_as_leaf_scales_it(folder):
    place = write(folder)
    path = place / "img_align_celeba" / "000002.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (218, 178, 3), np.uint8)
    Image.fromarray(noise).save(path)
    with Image.open(path) as image:
        expected = np.asarray(image.resize((84, 84)).convert("RGB"))
    assert (load_celeba().images[torch.tensor([0])][0].numpy() == expected).all()


def test_a_missing_image_is_told_by_its_path(folder):
    write(folder)
    with pytest.raises(DataError, match=r"the image .*000004.jpg cannot be read"):
        load_celeba().images[torch.tensor([3])]


@pytest.mark.parametrize("spoil", [lambda d: d[: len(d) // 2], lambda d: b"<html>", lambda d: b""])
def test_a_broken_image_is_refused(folder, spoil):
    path = write(folder) / "img_align_celeba" / "000001.jpg"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match=r"the image .*000001.jpg cannot be read"):
        load_celeba().images[torch.tensor([1])]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attributes": ""}, "must be its number of images, 0, got nothing"),
        ({"attributes": ATTRIBUTES[:-24]}, "must be its number of images, 3, got 4"),
        ({"attributes": ATTRIBUTES[:-4]}, "line 6 of .* must be a file and 3 times 1 or -1"),
        ({"attributes": ATTRIBUTES.replace("Smiling", "Hat")}, "must have a column Smiling"),
        ({"attributes": ATTRIBUTES.replace("-1  1 1", "-1  0 1")}, "line 3 of .* 1 or -1"),
        ({"attributes": "héllo"}, r"list_attr_celeba.txt cannot be read"),
        ({"identities": ""}, r"identity_CelebA.txt is empty"),
        ({"identities": "000001.jpg\n"}, "line 1 of .* must be a file and an identity"),
        ({"identities": "000001.jpg x\n"}, "line 1 of .* must be a file and an identity"),
        ({"identities": "../../x.jpg 1\n"}, r"must name files in img_align_celeba, got ../../x"),
        ({"identities": "000009.jpg 1\n"}, "has no line for 000009.jpg"),
    ],
)
def test_a_wrong_list_is_refused(folder, changes, sentence):
    write(folder, **changes)
    with pytest.raises(DataError, match=sentence):
        load_celeba()


def test_without_files_the_sentence_says_which_to_place_where(folder):
    with pytest.raises(DataError, match=r"place there list_attr_celeba.txt, identity_CelebA.txt"):
        load_celeba()
