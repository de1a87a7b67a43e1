from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.vectors.folds import ByCluster


class Upload(NamedTuple):
    cluster: Tensor
    model: Tensor
    size: Tensor


class Unassigned(NamedTuple):
    model: Tensor
    size: Tensor


UPLOAD = Upload(
    torch.tensor([0, 2, 0]),
    torch.tensor([[1.0, 0.0], [4.0, 4.0], [2.0, 6.0]]),
    torch.tensor([1, 5, 3]),
)


def folded(fold, upload, cuts=()):
    ids = torch.arange(len(upload.size))
    total = fold.start()
    for piece in torch.tensor_split(ids, list(cuts)):
        if len(piece):
            total = fold.add(total, piece, Upload(*(value[piece] for value in upload)))
    return fold.finish(total)


def test_means_and_sums_by_hand():
    empty = torch.full((3, 2), -1.0)
    equal = folded(ByCluster(3), UPLOAD)
    assert equal.mean("model", empty).tolist() == [[1.5, 3.0], [-1.0, -1.0], [4.0, 4.0]]
    assert equal.sum("model").tolist() == [[3.0, 6.0], [0.0, 0.0], [4.0, 4.0]]
    assert equal.cluster.tolist() == [0, 2, 0]
    by_size = folded(ByCluster(3, by_size=True), UPLOAD)
    assert by_size.mean("model", empty).tolist() == [[1.75, 4.5], [-1.0, -1.0], [4.0, 4.0]]
    assert by_size.pooled_mean("model", torch.zeros(2)).tolist() == pytest.approx([3.0, 38 / 9])


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 12), max_size=4).map(sorted), seed=st.integers(0, 99))
def test_chunks_and_merges_do_not_show_in_the_mean(cuts, seed):
    generator = torch.Generator().manual_seed(seed)
    upload = Upload(
        torch.randint(3, (12,), generator=generator),
        torch.randn(12, 4, generator=generator),
        torch.randint(1, 9, (12,), generator=generator),
    )
    fold = ByCluster(3, by_size=True)
    whole, cut = folded(fold, upload), folded(fold, upload, cuts)
    empty = torch.zeros(3, 4)
    torch.testing.assert_close(whole.mean("model", empty), cut.mean("model", empty))
    half = torch.arange(6)
    one = fold.add(fold.start(), half, Upload(*(v[:6] for v in upload)))
    two = fold.add(fold.start(), half + 6, Upload(*(v[6:] for v in upload)))
    for first, second in ((one, two), (two, one)):
        merged = fold.finish(fold.merge(first, second))
        torch.testing.assert_close(merged.mean("model", empty), whole.mean("model", empty))
        assert torch.equal(merged.cluster, upload.cluster)


def test_the_mean_of_identical_uploads_is_that_upload():
    """Public codes divide a cluster's sum by all participants, and models shrink."""
    model = torch.randn(5)
    upload = Upload(torch.tensor([0, 1, 1, 1]), model.expand(4, 5), torch.tensor([1, 2, 30, 400]))
    for by_size in (False, True):
        mean = folded(ByCluster(2, by_size), upload).mean("model", torch.zeros(2, 5))
        assert torch.equal(mean, model.expand(2, 5))


def test_if_nobody_answers_everything_stays():
    nobody = ByCluster(2).finish(ByCluster(2).start())
    empty = torch.randn(2, 3)
    assert torch.equal(nobody.mean("model", empty), empty)
    assert torch.equal(nobody.pooled_mean("model", empty[0]), empty[0])
    assert nobody.sum("model").item() == 0
    assert nobody.cluster.tolist() == []


def test_fields_without_columns_are_folded_too():
    upload = Upload(torch.tensor([0, 1]), torch.zeros(2, 0), torch.tensor([1, 1]))
    assert folded(ByCluster(2), upload).mean("model", torch.zeros(2, 0)).shape == (2, 0)


def test_single_precision_models_do_not_show_how_they_were_chunked():
    model = torch.randn(80, 500, generator=torch.Generator().manual_seed(0))
    upload = Upload(torch.zeros(80).long(), model, torch.ones(80).long())
    one = folded(ByCluster(1), upload, cuts=range(1, 80))
    assert torch.equal(
        one.mean("model", torch.zeros(1, 500)),
        folded(ByCluster(1), upload).mean("model", torch.zeros(1, 500)),
    )


def test_half_precision_uploads_do_not_overflow():
    model = torch.full((3, 2), 2.0, dtype=torch.float16)
    upload = Upload(torch.zeros(3).long(), model, torch.full((3,), 30_000))
    mean = folded(ByCluster(1, by_size=True), upload).mean("model", torch.zeros(1, 2).half())
    assert mean.tolist() == [[2.0, 2.0]]


def test_assigned_is_by_cluster_with_the_clusters_of_the_server():
    ids, size = torch.tensor([3, 1, 0]), torch.tensor([1, 2, 3])
    model = torch.tensor([[0.0], [4.0], [6.0]])
    known = torch.tensor([1, 1, 0, 0])
    for by_size in (False, True):
        ours = ByCluster(2, by_size, assign=lambda ids, _: known[ids])
        plain = ByCluster(2, by_size=by_size)
        one = ours.finish(ours.add(ours.start(), ids, Unassigned(model, size)))
        two = plain.finish(plain.add(plain.start(), ids, Upload(known[ids], model, size)))
        assert one.cluster.tolist() == [1, 1, 0]  # in order of id
        empty = torch.zeros(2, 1)
        assert torch.equal(one.mean("model", empty), two.mean("model", empty))
