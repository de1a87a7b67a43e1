import pickle
from math import sqrt
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.clients import Each, LinearFold, Stacked
from coterie.core.errors import CoterieError
from coterie.core.fields import Cluster, Loss, Model, Size, Statistic, Update
from coterie.tensors.lazy import Lazy
from coterie.vectors.folds import ByCluster, NearestCentre, RowSent, WeightedRows
from coterie.vectors.moments import SecondMoments


class Upload(NamedTuple):
    cluster: Cluster
    model: Model
    size: Size


class Unassigned(NamedTuple):
    model: Model
    size: Size


class Step(NamedTuple):
    where: Cluster
    gradient: Update
    count: Size


class Mixed(NamedTuple):
    models: Model
    share: Statistic


UPLOAD = Upload(
    torch.tensor([0, 2, 0]),
    torch.tensor([[1.0, 0.0], [4.0, 4.0], [2.0, 6.0]]),
    torch.tensor([1, 5, 3]),
)
SENT = {"models": torch.tensor([[1.0, 1.0], [-1.0, -1.0], [8.0, 0.0]])}
PLAIN, BY_SIZE = (ByCluster(3, {"model": "models"}, by_size=by_size) for by_size in (False, True))


def folded(fold, upload, sent, cuts=()):
    ids = torch.arange(len(upload[0]))
    total = fold.start()
    for piece in torch.tensor_split(ids, list(cuts)):
        if len(piece):
            part = type(upload)(*(value[piece] for value in upload))
            total = fold.add(total, piece, part, sent)
    return fold.finish(total, sent)


def test_means_and_sums_by_hand():
    equal = folded(PLAIN, UPLOAD, SENT)
    assert equal.mean("model").tolist() == [[1.5, 3.0], [-1.0, -1.0], [4.0, 4.0]]
    # Displacements: (0, -1) and (1, 5) in cluster 0, (-4, 4) in cluster 2.
    assert equal.sum("model").tolist() == [[1.0, 4.0], [0.0, 0.0], [-4.0, 4.0]]
    assert equal.weights.tolist() == [2.0, 0.0, 1.0]
    assert equal.weight == 3
    assert equal.cluster.tolist() == [0, 2, 0]
    by_size = folded(BY_SIZE, UPLOAD, SENT)
    assert by_size.mean("model").tolist() == [[1.75, 4.5], [-1.0, -1.0], [4.0, 4.0]]


def test_a_pooled_mean_is_over_everybody():
    fold = ByCluster(3, {"model": "model"}, by_size=True)
    up = folded(fold, UPLOAD, {"model": torch.tensor([7.0, -7.0])})
    assert up.pooled_mean("model").tolist() == pytest.approx([3.0, 38 / 9])
    with pytest.raises(CoterieError, match=r"a download that is one for all \[d\], got \[3, 2\]"):
        folded(PLAIN, UPLOAD, SENT).pooled_mean("model")


def test_updates_are_displaced_from_zero_and_roles_say_which_field_is_what():
    step = Step(torch.tensor([1, 1]), torch.tensor([[2.0], [4.0]]), torch.tensor([1, 3]))
    sent = {"models": torch.tensor([[100.0], [200.0]])}
    up = folded(ByCluster(2, updates={"gradient": "models"}, by_size=True), step, sent)
    assert up.sum("gradient").tolist() == [[0.0], [14.0]]
    assert up.mean("gradient").tolist() == [[0.0], [3.5]]
    with pytest.raises(CoterieError, match=r"gradient of Step must .* Model, .*got update"):
        folded(ByCluster(2, {"gradient": "models"}), step, sent)
    with pytest.raises(CoterieError, match="Unassigned must have a field of the type Cluster"):
        folded(ByCluster(2), Unassigned(*UPLOAD[1:]), sent)


def random_case(seed, m=12, k=3, d=4):
    generator = torch.Generator().manual_seed(seed)
    upload = Upload(
        torch.randint(k, (m,), generator=generator),
        torch.randn(m, d, generator=generator),
        torch.randint(1, 9, (m,), generator=generator),
    )
    rows = torch.randn(k, d, generator=generator)
    index = torch.randint(k, (m,), generator=generator)
    sents = {"own": Each(rows, index), "rows": rows, "one": rows[0]}
    share = torch.rand(m, k, generator=generator)
    mixed = Mixed(torch.randn(m, k, d, generator=generator), share)
    return upload, mixed, sents


@settings(max_examples=30, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 12), max_size=4).map(sorted),
    seed=st.integers(0, 99),
    origin=st.sampled_from(["own", "rows", "one"]),
    by_size=st.booleans(),
)
def test_means_are_plain_means_however_uploads_are_cut_and_merged(cuts, seed, origin, by_size):
    upload, _, sent = random_case(seed)
    fold = ByCluster(3, {"model": origin}, by_size=by_size)
    whole, cut = folded(fold, upload, sent), folded(fold, upload, sent, cuts)
    torch.testing.assert_close(whole.mean("model"), cut.mean("model"))
    for j in range(3):
        here = upload.cluster == j
        weight = upload.size[here].double() if by_size else torch.ones(int(here.sum())).double()
        if here.any():
            plain = weight @ upload.model[here].double() / weight.sum()
            torch.testing.assert_close(whole.mean("model")[j], plain.float())
    half = torch.arange(6)
    one = fold.add(fold.start(), half, Upload(*(v[:6] for v in upload)), sent)
    two = fold.add(fold.start(), half + 6, Upload(*(v[6:] for v in upload)), sent)
    for first, second in ((one, two), (two, one)):
        merged = fold.finish(fold.merge(first, second), sent)
        torch.testing.assert_close(merged.mean("model"), whole.mean("model"))
        assert torch.equal(merged.cluster, upload.cluster)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 9999), size=st.integers(1, 50), scale=st.floats(1e-3, 1e3))
def test_no_client_adds_more_than_the_bound(seed, size, scale):
    """The model of the worst client lies at the limit, and so does its weight."""
    upload, mixed, sent = random_case(seed, m=6)
    for by_size in (False, True):
        fold = ByCluster(3, {"model": "rows"}, by_size=by_size)
        away = upload.model / upload.model.norm(dim=1, keepdim=True) * scale
        sizes = upload.size.clamp_max(size)
        sizes[0] = size
        worst = upload._replace(model=sent["rows"][upload.cluster] + away, size=sizes)
        bound = fold.bound({"model": scale}, size if by_size else 1.0)
        assert largest_joint_norm(fold, worst, sent) == pytest.approx(bound, rel=1e-3)
    fold = WeightedRows(3, "share", {"models": "rows"})
    away = mixed.models / mixed.models.norm(dim=2, keepdim=True) * scale
    share = mixed.share / mixed.share.sum(1, keepdim=True)
    worst = mixed._replace(models=sent["rows"] + away, share=share)
    assert largest_joint_norm(fold, worst, sent) <= fold.bound({"models": scale}) * (1 + 1e-3)


def largest_joint_norm(fold, upload, sent):
    terms = fold.terms(torch.arange(6), upload, sent)
    return float(torch.cat([term.flatten(1) for term in terms.values()], 1).norm(dim=1).max())


def test_the_bound_by_hand():
    assert PLAIN.bound({"model": 2.0}) == sqrt(1 + 4)
    assert BY_SIZE.bound({"model": 2.0}, 10) == 10 * sqrt(1 + 4)
    with pytest.raises(AssertionError, match="every client weighs 1"):
        PLAIN.bound({"model": 2.0}, 10)


@pytest.mark.parametrize("weighted", [False, True])
def test_terms_have_the_shapes_that_were_said_before_and_add_up(weighted):
    upload, mixed, sent = random_case(1)
    fold = ByCluster(3, {"model": "own"}, by_size=True)
    if weighted:
        fold, upload = WeightedRows(3, "share", {"models": "rows"}), mixed
    assert isinstance(fold, LinearFold)
    assert not isinstance(Stacked(), LinearFold)
    total = fold.add(fold.start(), torch.arange(12), upload, sent)
    terms = fold.terms(torch.arange(12), upload, sent)
    shapes = fold.term_shapes(sent)
    assert list(shapes) == list(terms) == list(total.terms)
    for name, (shape, dtype) in shapes.items():
        assert terms[name].shape == (12, *shape)
        assert terms[name].dtype == total.terms[name].dtype == dtype
        torch.testing.assert_close(terms[name].sum(0), total.terms[name])


def test_weighted_rows_by_hand():
    # Two clients, two models of one number each.
    models = torch.tensor([[[1.0], [5.0]], [[3.0], [9.0]]])
    mixed = Mixed(models, torch.tensor([[0.5, 0.0], [1.5, 0.0]]))
    sent = {"models": torch.tensor([[10.0], [20.0]])}
    up = folded(WeightedRows(2, "share", {"models": "models"}), mixed, sent, cuts=[1])
    assert up.mean("models").tolist() == [[2.5], [20.0]]  # nobody gave the second any weight
    assert up.weights.tolist() == [2.0, 0.0]
    assert up.cluster is None


def test_the_mean_of_identical_uploads_is_that_upload():
    """Public codes divide a cluster's sum by all participants, and models shrink."""
    model = torch.randn(5)
    upload = Upload(torch.tensor([0, 1, 1, 1]), model.expand(4, 5), torch.tensor([1, 2, 30, 400]))
    for by_size in (False, True):
        fold = ByCluster(2, {"model": "models"}, by_size=by_size)
        mean = folded(fold, upload, {"models": torch.randn(2, 5)}).mean("model")
        assert torch.equal(mean, model.expand(2, 5))


def test_if_nobody_answers_everything_stays():
    nobody = PLAIN.finish(PLAIN.start(), SENT)
    assert torch.equal(nobody.mean("model"), SENT["models"])
    assert not nobody.sum("model").any()
    assert nobody.weight == 1
    assert nobody.cluster.tolist() == []
    one = ByCluster(2, {"model": "model"}, updates={"gradient": "model"})
    nobody = one.finish(one.start(), {"model": torch.ones(3)})
    assert nobody.pooled_mean("model").tolist() == [1, 1, 1]
    assert nobody.pooled_mean("gradient").tolist() == [0, 0, 0]


def test_a_weight_at_or_below_the_floor_is_nobodys():
    """With noise a weight may come back a little above or below zero."""
    total = PLAIN.add(PLAIN.start(), torch.arange(3), UPLOAD, SENT)
    noisy = total._replace(weight=torch.tensor([1.9, -0.3, 0.5], dtype=torch.float64))
    mean = PLAIN.finish(noisy, SENT, floor=0.5).mean("model")
    assert torch.equal(mean[1:], SENT["models"][1:])
    assert mean[0].tolist() == pytest.approx([1 + 1 / 1.9, 1 + 4 / 1.9])


def test_a_model_that_has_diverged_spoils_no_other():
    sent = {"models": torch.tensor([[1.0, 1.0], [torch.inf, torch.nan], [8.0, 0.0]])}
    mean = folded(PLAIN, UPLOAD, sent, cuts=[1]).mean("model")
    assert mean[[0, 2]].tolist() == [[1.5, 3.0], [4.0, 4.0]]
    assert mean[1, 0] == torch.inf


def test_fields_without_columns_are_folded_too():
    upload = Upload(torch.tensor([0, 1]), torch.zeros(2, 0), torch.tensor([1, 1]))
    fold = ByCluster(2, {"model": "models"})
    assert folded(fold, upload, {"models": torch.zeros(2, 0)}).mean("model").shape == (2, 0)


def test_single_precision_models_do_not_show_how_they_were_chunked():
    model = torch.randn(80, 500, generator=torch.Generator().manual_seed(0))
    upload = Upload(torch.zeros(80).long(), model, torch.ones(80).long())
    fold, sent = ByCluster(1, {"model": "model"}), {"model": torch.full((500,), 0.3)}
    one = folded(fold, upload, sent, cuts=range(1, 80))
    assert torch.equal(one.mean("model"), folded(fold, upload, sent).mean("model"))


def test_half_precision_uploads_do_not_overflow():
    model = torch.full((3, 2), 2.0, dtype=torch.float16)
    upload = Upload(torch.zeros(3).long(), model, torch.full((3,), 30_000))
    fold = ByCluster(1, {"model": "model"}, by_size=True)
    up = folded(fold, upload, {"model": torch.zeros(2).half()})
    assert up.mean("model").tolist() == [[2.0, 2.0]]
    assert up.mean("model").dtype == torch.float16


def test_the_server_assigns_by_the_row_that_was_sent_or_by_the_nearest_centre():
    ids, size = torch.tensor([3, 1, 0]), torch.tensor([1, 2, 3])
    model = torch.tensor([[0.0, 9.0], [4.0, 9.0], [6.0, 0.0]])
    known, rows = torch.tensor([1, 1, 0, 0]), torch.tensor([[5.0, 0.0], [1.0, 0.0]])
    first = torch.tensor([True, False])
    for assign, cluster in (
        (RowSent("model"), known[ids]),
        (NearestCentre("model", rows[:, first], first), torch.tensor([1, 0, 0])),
    ):
        for each in (Each(rows, known), Each(rows, known).for_clients(torch.tensor([0, 1, 3]))):
            sent = {"model": each}
            ours = ByCluster(2, {"model": "model"}, by_size=True, assign=assign)
            plain = ByCluster(2, {"model": "model"}, by_size=True)
            total = ours.add(ours.start(), ids, Unassigned(model, size), sent)
            one = ours.finish(total, sent)
            total = plain.add(plain.start(), ids, Upload(cluster, model, size), sent)
            two = plain.finish(total, sent)
            assert one.cluster.tolist() == cluster.flip(0).tolist()  # in order of id
            assert torch.equal(one.mean("model"), two.mean("model"))


def test_a_row_of_ones_own_is_no_origin():
    with pytest.raises(CoterieError, match="got a row for each client"):
        folded(ByCluster(3, {"model": "model"}), UPLOAD, {"model": Each(torch.zeros(3, 2))})


def test_what_is_withheld_is_not_even_in_a_partial_fold():
    fold = ByCluster(3, {"model": "models"}, withheld=True)
    total = fold.add(fold.start(), torch.arange(3), UPLOAD, SENT)
    assert (total.ids, total.cluster) == ([], [])
    up = fold.finish(total, SENT)
    assert up.cluster is None
    assert torch.equal(up.mean("model"), folded(PLAIN, UPLOAD, SENT).mean("model"))


def test_folds_and_what_they_carry_can_be_sent():
    fold = ByCluster(3, {"model": "models"}, assign=NearestCentre("model", torch.ones(3, 2)))
    again = pickle.loads(pickle.dumps(fold))
    total = pickle.loads(pickle.dumps(again.add(again.start(), torch.arange(3), UPLOAD, SENT)))
    assert torch.equal(
        fold.finish(total, SENT).mean("model"), folded(fold, UPLOAD, SENT).mean("model")
    )


class Measured(NamedTuple):
    size: Statistic
    loss: Loss
    square: Statistic


def measured(seed):
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.rand(n, 3, generator=generator) for n in (4, 1, 6)]
    points = [torch.randn(len(w), 2, generator=generator) for w in weights]
    size = torch.stack([w.sum(0) for w in weights])
    loss = torch.randn(3, 3, 1, generator=generator)
    return size, loss, SecondMoments(points, weights)


@pytest.mark.parametrize("seed", range(3))
def test_updates_may_have_a_width_of_their_own_and_need_not_be_formed(seed):
    size, loss, formula = measured(seed)
    fold = WeightedRows(3, "size", updates={"loss": 1, "square": 4})
    assert isinstance(fold, LinearFold)
    shapes = {name: shape for name, (shape, _) in fold.term_shapes({}).items()}
    assert shapes == {"weight": (3,), "loss": (3, 1), "square": (3, 4)}
    ids, lazy = torch.arange(3), Lazy(formula)
    up = fold.finish(fold.add(fold.start(), ids, Measured(size, loss, lazy), {}), {})
    assert lazy.formed is None
    expected = torch.einsum("mk,mkd->kd", size.double(), formula.dense().double())
    torch.testing.assert_close(up.sum("square"), expected, rtol=1e-6, atol=1e-6)
    terms = fold.terms(ids, Measured(size, loss, lazy), {})
    torch.testing.assert_close(terms["square"].sum(0), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(terms["loss"].sum(0), up.sum("loss"))
    torch.testing.assert_close(up.weights, size.double().sum(0))
    nobody = fold.finish(fold.start(), {})
    assert nobody.sum("square").tolist() == [[0.0] * 4] * 3
    assert nobody.mean("loss").tolist() == [[0.0]] * 3


@pytest.mark.parametrize("sent", [{"model": torch.zeros(3, 2)}, {}], ids=["the same", "nothing"])
def test_only_a_row_that_was_sent_says_where_a_client_is(sent):
    with pytest.raises(CoterieError, match="a download that is an `Each`, got model"):
        RowSent("model").clusters(torch.arange(3), None, sent)
