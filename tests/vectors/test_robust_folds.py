import pickle

import pytest
import torch

import coterie
from coterie import CFL, FPFC, IFCA, FedAvg, FeSEM, HypCluster, KFed, Local, Oracle
from coterie.algorithms.fedavg import Upload
from coterie.core.errors import SettingError
from coterie.engine.kernels.displaced import BaseModels, DisplacedModels
from coterie.tensors.lazy import Lazy, select_rows
from coterie.vectors.folds import ByCluster
from coterie.vectors.robust_folds import AGGREGATES, RobustByCluster, RobustMean, robust_fold

RULES = [rule for rule in AGGREGATES if rule != "mean"]
SENT = {"models": torch.tensor([[0.0], [5.0], [9.0]])}
IDS = torch.tensor([0, 1, 2, 3, 4, 5])
UP = Upload(
    torch.tensor([0, 0, 2, 0, 2, 0]),
    torch.tensor([[1.0], [3.0], [7.0], [900.0], [8.0], [2.0]]),
    torch.tensor([1, 1, 1, 1000, 1, 1]),
)


def finished(fold, chunks):
    total = fold.start()
    for places in chunks:
        some = Upload(*(value[places] for value in UP))
        total = fold.add(total, IDS[places], some, SENT)
    return fold.finish(total, SENT)


def test_the_median_of_every_cluster_and_what_was_sent_where_nobody_is():
    # Cluster 0 has 1, 2, 3 and 900: the median is 2.5; cluster 2 has 7 and 8.
    fold = RobustByCluster(ByCluster(3, {"model": "models"}), RobustMean("median"))
    up = finished(fold, [IDS])
    assert up.mean("model").flatten().tolist() == [2.5, 5.0, 7.5]
    assert up.weights.tolist() == [4.0, 0.0, 2.0]
    assert up.cluster.tolist() == UP.cluster.tolist()


def test_a_size_that_a_client_tells_does_not_count():
    sized = ByCluster(3, {"model": "models"}, by_size=True)
    assert float(finished(sized, [IDS]).mean("model")[0]) > 800
    fold = RobustByCluster(sized, RobustMean("trimmed", 0.25))
    up = finished(fold, [IDS])
    assert up.mean("model").flatten().tolist() == [2.5, 5.0, 7.5]
    assert up.weight == 6


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore:aggregate=")
def test_chunks_and_shards_do_not_matter(rule):
    fold = RobustByCluster(ByCluster(3, {"model": "models"}), RobustMean(rule, 0.01))
    whole = finished(fold, [IDS])
    parts = finished(fold, [torch.tensor([4, 5]), torch.tensor([1]), torch.tensor([3, 0, 2])])
    assert torch.equal(whole.mean("model"), parts.mean("model"))
    assert torch.equal(whole.cluster, parts.cluster)
    one, other = (
        fold.add(fold.start(), IDS[p], Upload(*(v[p] for v in UP)), SENT)
        for p in (IDS[3:], IDS[:3])
    )
    merged = fold.finish(fold.merge(one, other), SENT)
    assert torch.equal(whole.mean("model"), merged.mean("model"))
    assert pickle.loads(pickle.dumps(fold)) == fold


@pytest.mark.parametrize("rule", RULES)
def test_equal_uploads_are_their_own_mean(rule):
    federation, task = coterie.load("rotated-digits", clients=1, rotations=1, hidden=4)
    x, y = federation.train.client(0)
    alike = coterie.Federation.from_clients([(x, y)] * 8)
    plain, robust = (
        coterie.simulate(FedAvg(), alike, task, rounds=3, aggregate=each) for each in ("mean", rule)
    )
    assert torch.allclose(plain.models, robust.models, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "method",
    [
        IFCA(k=2, start="random"),
        IFCA(k=2, start="random", average="gradients"),
        IFCA(k=2, start="random", share="joint"),
        HypCluster(k=2, start="random"),
        FeSEM(k=2),
        Oracle(),
    ],
    ids=["ifca", "gradients", "shared", "hypcluster", "fesem", "oracle"],
)
@pytest.mark.filterwarnings("ignore:aggregate=")
def test_every_algorithm_that_averages_has_robust_means(method, rule):
    federation, task = coterie.load("rotated-digits", clients=12, rotations=2, hidden=4)
    plain, robust = (
        coterie.simulate(method, federation, task, rounds=2, aggregate=each)
        for each in ("mean", rule)
    )
    assert plain.models.shape == robust.models.shape
    assert not torch.equal(plain.models, robust.models)
    assert bool(robust.models.isfinite().all())


@pytest.mark.parametrize("method", [CFL(), FPFC(), Local(), KFed()])
def test_an_algorithm_without_such_a_mean_is_refused(method):
    federation, task = coterie.load("rotated-digits", clients=8, hidden=4)
    with pytest.raises(SettingError, match=r"`aggregate` must be mean for .* got median"):
        coterie.simulate(method, federation, task, rounds=1, aggregate="median")


def test_too_few_clients_for_krum_are_refused():
    federation, task = coterie.load("rotated-digits", clients=8, hidden=4)
    with pytest.raises(SettingError, match=r"krum needs at least 9 clients .* 3 of them, got 8"):
        coterie.simulate(FedAvg(), federation, task, aggregate="krum", tolerate=0.4)
    with pytest.raises(SettingError, match="bulyan needs at least 11 clients"):
        coterie.simulate(FedAvg(), federation, task, aggregate="bulyan", tolerate=0.3)
    for rule, least in (("trimmed", 3), ("krum", 5), ("bulyan", 7)):  # to withstand a single one
        with pytest.raises(
            SettingError, match=rf"{rule} needs at least {least} clients .* 1 of th"
        ):
            coterie.simulate(FedAvg(), federation, task, aggregate=rule, per_round=2)
    with pytest.raises(SettingError, match=r"`tolerate` of RunSettings must be below 0.5"):
        coterie.simulate(FedAvg(), federation, task, aggregate="trimmed", tolerate=0.5)


def test_a_small_cluster_withstands_fewer_with_a_warning():
    fold = RobustByCluster(ByCluster(3, {"model": "models"}), RobustMean("krum", 0.3))
    with pytest.warns(coterie.CoterieWarning) as told:
        up = finished(fold, [IDS])
    assert [str(each.message) for each in told] == [
        "aggregate=krum withstands 0 of the 4 clients of a cluster, not 1: it has too few",
        "aggregate=krum takes the median of the 2 clients of a cluster: it has too few",
    ]
    assert up.mean("model").flatten().tolist() == [3.0, 5.0, 7.5]  # all others count


def test_models_that_were_never_formed_are_not_formed_for_a_mean():
    torch.manual_seed(0)
    models, index = torch.randn(2, 7), torch.tensor([0, 1, 1, 0, 1])
    for cluster in (index, torch.tensor([0, 0, 1, 1, 1])):  # where they began, or elsewhere
        base = BaseModels(select_rows(models, index))
        formula = DisplacedModels(
            [(base, None)], torch.randn(5, 2, 4), torch.randn(5, 4, 3), torch.randn(5, 1), 6
        )
        lazy, plain = Lazy(formula), formula.dense()
        size = torch.ones(5)
        fold, sent = ByCluster(2, {"model": "models"}), {"models": models}
        for rule in ("median", "geometric-median"):
            robust = RobustByCluster(fold, RobustMean(rule))
            one, other = (
                robust.finish(
                    robust.add([], torch.arange(5), Upload(cluster, value, size), sent), sent
                ).mean("model")
                for value in (lazy, plain)
            )
            torch.testing.assert_close(one, other)
        assert lazy.formed is None


def test_clusters_cannot_be_withheld_from_who_looks_at_single_clients():
    for name, value in (("aggregate", "median"), ("screen", "norm")):
        with pytest.raises(SettingError, match=f"as {name}={value} does, got clusters"):
            coterie.experiment.settings.RunSettings(withhold="clusters", **{name: value})


def test_only_folds_that_average_are_replaced():
    replace = robust_fold(RobustMean("median"))
    assert isinstance(replace(None, ByCluster(1, {"model": "model"})), RobustByCluster)
    assert replace(None, ByCluster(2)) == ByCluster(2)
