import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from coterie.data.federation import Federation, Samples
from coterie.report.sample_sheets import COLUMNS, GAP, ROWS, SIDE, as_colour_images, sample_sheets


def federation(*shape, clients=3, samples=4, kind=torch.uint8):
    """Client i has images that are all of shade 50 i + label."""
    x = torch.stack(
        [
            torch.full(shape, (50 * i + j) % 256, dtype=kind)
            for i in range(clients)
            for j in range(samples)
        ]
    )
    y = torch.arange(samples).flip(0).repeat(clients)
    offsets = torch.arange(clients + 1) * samples
    x = torch.cat([part.flip(0) for part in x.split(samples)])
    return Federation(Samples(x, y, offsets))


def opened(sheet):
    return np.array(Image.open(io.BytesIO(base64.b64decode(sheet["png"]))))


def test_rows_are_clients_of_the_cluster_and_columns_their_labels_in_order():
    made = sample_sheets(federation(8, 8), torch.tensor([1, 0, 1]), None, seed=0)
    assert [(sheet["cluster"], sheet["clients"]) for sheet in made] == [(0, [1]), (1, [0, 2])]
    picture = opened(made[1])
    assert picture.shape == (2 * 8 + GAP, COLUMNS * (8 + GAP) - GAP, 4)
    middles = picture[4 :: 8 + GAP, 4 :: 8 + GAP]
    assert middles[:, :4, 0].tolist() == [[0, 1, 2, 3], [100, 101, 102, 103]]
    assert middles[:, :, 3].tolist() == [[255] * 4 + [0] * 6] * 2  # no more samples: transparent


def test_sheet_stays_small_however_large_images_and_clusters_are():
    made = sample_sheets(
        federation(3, 200, 100, clients=9, samples=12), torch.zeros(9).long(), None, 0
    )
    assert len(made[0]["clients"]) == ROWS
    assert opened(made[0]).shape[:2] == (
        ROWS * (SIDE + GAP) - GAP,
        COLUMNS * (SIDE // 2 + GAP) - GAP,
    )


def test_numbers_that_are_not_bytes_are_spread_over_all_shades():
    data = federation(8, 8, kind=torch.float32, clients=2)
    picture = opened(sample_sheets(data, torch.tensor([0, 0]), None, 0)[0])
    assert picture[4, 4].tolist() == [0, 0, 0, 255]
    assert picture[4 + 8 + GAP, 4 + 3 * (8 + GAP)].tolist() == [255, 255, 255, 255]


def test_where_samples_are_clustered_they_are_shown():
    labels = torch.tensor([0, 1] * 6)
    made = sample_sheets(federation(8, 8), torch.tensor([0, 0, 0]), labels, seed=0)
    assert [(sheet["cluster"], sheet["clients"]) for sheet in made] == [(0, []), (1, [])]
    # Labels fall from 3 to 0 in each client, so cluster 0 has the shades 3 and 1 of all three.
    middles = opened(made[0])[4, 4 :: 8 + GAP, 0][:6]
    assert sorted(middles.tolist()) == [1, 3, 51, 53, 101, 103]


@pytest.mark.parametrize("shape", [(5,), (3, 4), (7, 8, 8), (2, 3, 8, 8)])
def test_what_is_not_an_image_has_no_pictures(shape):
    assert sample_sheets(federation(*shape), torch.tensor([0, 0, 1]), None, 0) == []


@pytest.mark.parametrize("shape", [(9, 8), (1, 9, 8), (3, 9, 8), (9, 8, 1), (9, 8, 3)])
def test_images_are_recognised_with_channels_in_front_behind_or_none(shape):
    assert as_colour_images(torch.zeros(2, *shape)).shape == (2, 3, 9, 8)


def test_clients_with_models_of_their_own_have_no_pictures():
    assert sample_sheets(federation(8, 8), torch.tensor([2, 1, 0]), None, 0) == []


def test_draws_are_beside_the_samples_in_the_same_shades():
    labels = torch.tensor([0] * 12)
    draws = {0: torch.full((15, 8, 8), 100.4), 1: torch.full((15, 8, 8), 300.0)}
    made = sample_sheets(federation(8, 8), torch.tensor([0, 0, 0]), labels, 0, draws)
    assert [(sheet["cluster"], bool(sheet["png"])) for sheet in made] == [(0, True), (1, False)]
    first, other = (np.array(opened({"png": sheet["draws"]})) for sheet in made)
    assert first.shape[0] == 2 * 8 + GAP  # ten and five
    assert first[4, 4].tolist() == [100, 100, 100, 255]
    assert other[4, 4].tolist() == [255, 255, 255, 255]


def test_where_samples_are_not_here_draws_are_shown_alone():
    whole = federation(8, 8)
    away = Federation(Samples(whole.train.x[:1], whole.train.y[:1], whole.train.offsets))
    draws = {1: torch.zeros(3, 8, 8)}
    made = sample_sheets(away, torch.tensor([0, 1, 0]), None, 0, draws)
    assert [(s["cluster"], s["clients"], s["png"]) for s in made] == [(1, [], None)]
    assert made[0]["draws"]
    assert sample_sheets(away, torch.tensor([0, 1, 0]), None, 0) == []
