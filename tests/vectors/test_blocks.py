import pytest
import torch

from coterie.vectors.blocks import (
    draw_blocks,
    draw_blocks_by_cluster,
    median_place,
    safe_block_size,
)


@pytest.mark.parametrize("outliers", [0.01, 0.05, 0.1, 0.25, 0.4, 0.5])
def test_most_blocks_of_a_safe_size_are_clean(outliers):
    size = safe_block_size(outliers)
    assert (1 - outliers) ** size >= 0.5 > (1 - outliers) ** (size + 1)


def test_blocks_are_drawn_with_replacement_from_everybody():
    places = draw_blocks(5, 200, 5, torch.Generator().manual_seed(0))
    assert places.shape == (200, 5)
    counts = torch.bincount(places.flatten(), minlength=5)
    assert bool((counts > 150).all())
    assert any(len(block.unique()) < 5 for block in places)


def test_blocks_by_cluster_have_equally_many_of_each():
    cluster = torch.tensor([0] * 90 + [1] * 8 + [3] * 2)
    places = draw_blocks_by_cluster(cluster, 40, 9, torch.Generator().manual_seed(0))
    for block in places:
        assert torch.bincount(cluster[block]).tolist() == [3, 3, 0, 3]
    few = draw_blocks_by_cluster(cluster, 4, 2, torch.Generator().manual_seed(0))
    assert few.shape == (4, 3)


@pytest.mark.parametrize(("values", "place"), [([3.0], 0), ([2.0, 1.0], 1), ([9.0, 1.0, 5.0], 2)])
def test_the_median_is_the_lower_one_in_the_middle(values, place):
    assert median_place(torch.tensor(values)) == place
