import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.networks.couplings import (
    LARGEST_LOG_SCALE,
    ImageCoupling,
    PartCoupling,
    bounded,
    partition,
)

SHAPES = st.one_of(st.tuples(st.integers(4, 23)), st.tuples(st.integers(2, 7), st.integers(2, 7)))


@settings(max_examples=60, deadline=None)
@given(shape=SHAPES, masks=st.sampled_from(["checkerboard", "cyclic", "random"]))
def test_every_number_is_in_exactly_one_part_and_parts_are_of_like_size(shape, masks):
    parts = partition(masks, shape)
    assert len(parts) == (2 if masks == "checkerboard" else 4)
    features = torch.Size(shape).numel()
    assert torch.cat(parts).sort().values.tolist() == list(range(features))
    if masks != "cyclic" or len(shape) == 1:
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
    assert all(torch.equal(a, b) for a, b in zip(parts, partition(masks, shape), strict=True))


def test_cyclic_parts_of_an_image_are_quadrants_clockwise():
    # 3 rows and 4 columns: the upper half has the odd row.
    #   0 1 | 2 3
    #   4 5 | 6 7
    #   ----+----
    #   8 9 | 10 11
    found = [part.tolist() for part in partition("cyclic", [3, 4])]
    assert found == [[0, 1, 4, 5], [2, 3, 6, 7], [10, 11], [8, 9]]


def test_neighbours_have_different_colours_on_the_checkerboard():
    black, white = partition("checkerboard", [3, 3])
    assert black.tolist() == [0, 2, 4, 6, 8]
    assert white.tolist() == [1, 3, 5, 7]


def drawn(coupling):
    """A coupling in double precision with random weights in place of the zeros it begins with."""
    generator = torch.Generator().manual_seed(0)
    for weight in coupling.double().parameters():
        weight.data = 0.3 * torch.randn(weight.shape, generator=generator).double()
    return coupling.eval()


COUPLINGS = {
    "parts": lambda pair, parts: PartCoupling(pair, parts, 5),
    "images": lambda pair, parts: ImageCoupling(pair, parts, 4, 3, 1, norm=False),
}


@pytest.mark.parametrize("kind", COUPLINGS)
@pytest.mark.parametrize("pair", [((0,), (1,)), ((3,), (0,)), ((0, 2), (1, 3)), ((1, 3), (0, 2))])
def test_only_what_is_changed_changes_and_only_by_what_is_seen(kind, pair):
    # Of a 4 x 4 image a PartCoupling has the parts one behind the other, an ImageCoupling the rows.
    parts = partition("cyclic", [4, 4])
    if kind == "parts":
        parts = list(torch.arange(16).split([len(part) for part in parts]))
    coupling = drawn(COUPLINGS[kind](pair, parts))
    u = torch.randn(1, 16, generator=torch.Generator().manual_seed(1)).double()

    def split(v):
        return list(v.split(coupling.sizes, 1))

    def changed_samples(v):
        return torch.cat(coupling(split(v))[0], 1).sum(0)

    slopes = torch.autograd.functional.jacobian(changed_samples, u)[:, 0]  # [16, 16]
    inside = torch.zeros(16, 16, dtype=torch.bool)
    seen, changed = (torch.cat([parts[j] for j in some]) for some in pair)
    inside[changed[:, None], seen] = True
    inside |= torch.eye(16, dtype=torch.bool)
    assert slopes[~inside].abs().max() == 0
    assert slopes[inside].abs().min() > 0
    after, log_determinant = coupling(split(u))
    torch.testing.assert_close(log_determinant[0], slopes.slogdet().logabsdet)
    torch.testing.assert_close(torch.cat(coupling.inverse(after), 1), u)


def test_log_scales_are_bounded_with_slope_one():
    s = torch.tensor([-1e3, 0.0, 1e3], dtype=torch.float64, requires_grad=True)
    found = bounded(s)
    assert found.tolist() == [-LARGEST_LOG_SCALE, 0, LARGEST_LOG_SCALE]
    assert torch.autograd.grad(found[1], s)[0][1] == 1


@pytest.mark.parametrize("kind", COUPLINGS)
def test_a_coupling_begins_by_changing_nothing(kind):
    u = torch.randn(3, 16)
    coupling = COUPLINGS[kind](((0,), (1,)), partition("cyclic", [4, 4])).eval()
    after, log_determinant = coupling(list(u.split(coupling.sizes, 1)))
    assert torch.equal(torch.cat(after, 1), u)
    assert log_determinant.tolist() == [0, 0, 0]
