from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import calinski_harabasz_score

from coterie.vectors import gram as module
from coterie.vectors.bipartition import LINKAGES, bipartition, contrast, cosines


def similar(a, seed):
    """A random similarity matrix [a, a]."""
    return cosines(torch.randn(a, 3, generator=torch.Generator().manual_seed(seed)))


def across(similarity, group):
    inside = torch.zeros(len(similarity), dtype=torch.bool)
    inside[list(group)] = True
    return float(similarity[inside][:, ~inside].max())


def test_cosines_by_hand():
    found = cosines(torch.tensor([[3.0, 4.0], [4.0, 3.0], [-6.0, -8.0]]))
    # 3*4 + 4*3 = 24, and both have norm 5; the third is the first, turned round.
    expected = [[1, 0.96, -1], [0.96, 1, -0.96], [-1, -0.96, 1]]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64))


def test_cosines_are_added_up_over_all_blocks(monkeypatch):
    rows = torch.randn(4, 11, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(module, "COLUMNS", 3)
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    torch.testing.assert_close(cosines(rows), unit @ unit.T)


def test_a_zero_row_is_like_nobody():
    found = cosines(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    assert found[0].tolist() == [0.0, 0.0]
    assert found[1, 1].item() == pytest.approx(1)


@given(st.integers(2, 7), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_single_linkage_has_the_least_largest_similarity_across(a, seed):
    similarity = similar(a, seed)
    groups = [g for size in range(1, a // 2 + 1) for g in combinations(range(a), size)]
    best = min(across(similarity, group) for group in groups)
    smaller, found = bipartition(similarity, "single")
    assert found == pytest.approx(best, abs=1e-12)
    assert found == across(similarity, torch.nonzero(smaller).flatten().tolist())


@given(st.integers(2, 12), st.integers(0, 10**6), st.sampled_from(LINKAGES))
@settings(max_examples=60, deadline=None)
def test_the_mask_is_the_smaller_group_and_neither_is_empty(a, seed, method):
    smaller, _ = bipartition(similar(a, seed), method)
    assert 1 <= int(smaller.sum()) <= a // 2
    if 2 * int(smaller.sum()) == a:
        assert not smaller[0]


def test_complete_and_single_linkage_differ_on_a_chain():
    # Vectors at 0, 40, 80 and 125 degrees. Single linkage chains the first three and leaves the
    # last, cos 45 across. Complete linkage joins 0-40 and 80-125 (the first pair at cos 40, the
    # second at cos 45, before any pair of groups), with cos 40 across.
    angle = torch.deg2rad(torch.tensor([0.0, 40.0, 80.0, 125.0], dtype=torch.float64))
    similarity = cosines(torch.stack([angle.cos(), angle.sin()], 1))
    single, far = bipartition(similarity, "single")
    assert single.tolist() == [False, False, False, True]
    assert far == pytest.approx(2**-0.5)
    complete, near = bipartition(similarity, "complete")
    assert complete.tolist() == [False, False, True, True]
    assert near == pytest.approx(float(torch.deg2rad(torch.tensor(40.0)).cos()))


def test_merges_of_one_height_still_give_two_groups():
    smaller, across_both = bipartition(torch.eye(4, dtype=torch.float64))
    assert 1 <= int(smaller.sum()) <= 2
    assert across_both == 0


def test_contrast_is_the_calinski_harabasz_index_of_the_directions():
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(1)).double()
    group = torch.tensor([1, 0, 0, 1, 1, 0, 0, 0, 0]).bool()
    unit = torch.nn.functional.normalize(rows, dim=1)
    expected = calinski_harabasz_score(unit.numpy(), group.numpy())
    assert contrast(cosines(rows), group) == pytest.approx(expected)


def test_contrast_at_its_ends():
    same = cosines(torch.tensor([[1.0, 2.0]]).expand(4, 2))
    group = torch.tensor([True, False, False, True])
    assert contrast(same, group) == 0
    opposite = cosines(torch.tensor([[1.0, 2.0], [-1.0, -2.0], [-1.0, -2.0], [1.0, 2.0]]))
    assert contrast(opposite, group) == float("inf")
