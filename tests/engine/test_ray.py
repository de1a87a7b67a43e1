import os
import sys
import warnings
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch

import coterie
from coterie import checks
from coterie.channel.metering import ByteMeter
from coterie.core.clients import Each, on_client
from coterie.core.errors import CoterieWarning, DataError, SettingError
from coterie.data.federation import Federation, Samples
from coterie.engine.ray import Shard
from tests.test_conformance import CASES

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = [
    # Ray itself leaves sockets open and warns of its own future.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def digits():
    return coterie.load("rotated-digits", clients=9, seed=0)


class Host:
    """An actor that holds one shard after another: what takes long is to start its process."""

    def hold(self, *arguments, **options):
        self.shard = Shard(*arguments, **options)

    def collect(self, *arguments):
        return self.shard.collect(*arguments)

    def mark_memory(self):
        self.shard.mark_memory()

    def memory_tensors(self):
        return self.shard.memory_tensors()

    def restore(self, tensors):
        self.shard.restore(tensors)


@pytest.fixture(scope="module")
def hosts():
    return [ray.remote(Host).remote() for _ in range(2)]


@pytest.fixture
def kept_actors(hosts, monkeypatch):
    """Runs have the same two actors, one after another."""
    free = list(hosts)

    class Kept:
        def options(self, **_):
            return self

        def remote(self, *arguments, **options):
            free.append(free.pop(0))
            ray.get(free[-1].hold.remote(*arguments, **options))
            return free[-1]

    monkeypatch.setattr(ray, "remote", lambda kind: Kept())
    monkeypatch.setattr(ray, "kill", lambda actor: None)


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_gives_the_result_of_one_process(name, kept_actors):
    data, algorithm = checks.small_federation(checks.ragged_sizes(CASES[name])), CASES[name]
    settings = {"rounds": 3, "fraction": 0.8, "lost": 0.2}
    one, other = (
        coterie.simulate(algorithm, data, checks.task_for(algorithm), **settings, **spread)
        for spread in ({}, {"shards": 2})
    )
    checks.assert_same(one, other)
    assert torch.equal(one.training.cluster, other.training.cluster)
    assert one.bytes.table() == other.bytes.table()
    assert [r["answered"] for r in one.records] == [r["answered"] for r in other.records]


@pytest.mark.parametrize("name", ["local", "ditto", "fpfc", "per-fedavg"])
def test_what_clients_kept_in_the_best_round_is_gone_back_to_in_shards(name, kept_actors, tmp_path):
    data, algorithm = checks.small_federation(), CASES[name]
    held = replace(algorithm, lr=3.0) if hasattr(algorithm, "lr") else algorithm
    settings = {"rounds": 9, "validation": 0.4, "checkpoint": 2}
    one, other = (
        coterie.simulate(
            held, data, checks.task_for(held), folder=tmp_path / where, **of, **settings
        )
        for where, of in (("one", {}), ("shards", {"shards": 2}))
    )
    checks.assert_same(one, other)
    assert one.best_round == other.best_round
    assert one.metrics == pytest.approx(other.metrics, rel=1e-9)
    settings["rounds"] = 12
    more, others = (
        coterie.simulate(
            held,
            data,
            checks.task_for(held),
            folder=tmp_path / where,
            resume=True,
            **of,
            **settings,
        )
        for where, of in (("one", {}), ("shards", {"shards": 2}))
    )
    assert more.metrics == pytest.approx(others.metrics, rel=1e-9)
    whole = coterie.simulate(held, data, checks.task_for(held), **settings)
    assert more.metrics == whole.metrics


def both(algorithm, data, **settings):
    """The same run in one process and in shards."""
    federation, task = data
    return [
        coterie.simulate(algorithm, federation, task, seed=0, **settings, **spread)
        for spread in ({}, {"shards": 2})
    ]


def alike(one, other):
    assert torch.equal(one.clusters, other.clusters)
    assert one.metrics == pytest.approx(other.metrics, rel=1e-4, abs=1e-4)
    torch.testing.assert_close(one.models, other.models, rtol=1e-4, atol=1e-5)
    assert one.bytes.table() == other.bytes.table()


@pytest.mark.parametrize(
    "algorithm",
    [
        coterie.IFCA(k=3, start="random", steps=2),
        coterie.IFCA(k=2, start="random", steps=2, stable=1),  # sends each its own model
        coterie.FeSEM(k=2, steps=2),  # the server assigns clusters
        coterie.OneShot(k=2, steps=2, fits=1, sample=4),
        coterie.FPFC(
            steps=2, lambdas=2, path_rounds=4, stages=1
        ),  # a row of its own for each client
        coterie.Ditto(steps=2),  # memory
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_shards_give_the_result_of_one_process(algorithm, digits):
    alike(*both(algorithm, digits, rounds=2, fraction=0.7))


def test_lost_replies_are_the_same_ones(digits):
    one, other = both(coterie.IFCA(k=2, steps=1, start="random"), digits, rounds=2, lost=0.4)
    alike(one, other)
    assert [r["answered"] for r in one.records] == [r["answered"] for r in other.records]
    assert any(r["answered"] < 9 for r in other.records)


@pytest.mark.filterwarnings("ignore:attackers are")
@pytest.mark.parametrize(
    "settings",
    [
        {"attack": "boosted"},
        {"attack": "boosted", "aggregate": "median"},
        {"attack": "gaussian", "screen": "norm"},
        {"attack": "little", "joins": "smallest", "screen": "lof"},
    ],
    ids=lambda settings: " ".join(settings.values()),
)
def test_attacks_and_defences_are_the_same(settings, digits):
    method = coterie.IFCA(k=2, steps=2, start_rounds=2)
    one, other = both(method, digits, rounds=2, attackers=0.3, **settings)
    alike(one, other)
    assert [r.get("excluded") for r in one.records] == [r.get("excluded") for r in other.records]
    assert one.metrics["attackers_accuracy"] == pytest.approx(other.metrics["attackers_accuracy"])


def test_labels_to_choose_by_stay_in_one_process(digits):
    with pytest.raises(SettingError, match="`chooses` must be poisoned where clients run on Ray"):
        both(coterie.FedAvg(), digits, rounds=1, attack="labels", chooses="clean")


def test_clusters_of_samples():
    federation, _ = coterie.load("gaussian-clusters", clients=6, seed=0)
    task = coterie.Centre(federation.train.x.shape[1])
    one, other = both(coterie.KFed(k=3), (federation, task), rounds=1)
    assert torch.equal(one.labels, other.labels)


def test_memory_is_in_the_checkpoint_and_a_run_goes_on_without_ray(digits, tmp_path):
    federation, task = digits
    whole = coterie.simulate(coterie.Ditto(steps=2), federation, task, rounds=4, seed=0)

    def stop(record, run):
        if record["round"] == 2:
            raise KeyboardInterrupt

    for place, first, then in (("a", {"shards": 3}, {}), ("b", {}, {"shards": 2})):
        settings = {"rounds": 4, "seed": 0, "checkpoint": 1, "folder": tmp_path / place}
        with pytest.raises(KeyboardInterrupt):
            coterie.simulate(
                coterie.Ditto(steps=2), federation, task, on_round=stop, **settings, **first
            )
        on = coterie.simulate(
            coterie.Ditto(steps=2), federation, task, resume=True, **settings, **then
        )
        assert on.rounds == 4
        alike(whole, on)


def test_replies_are_told_of_and_an_unknown_client_is_nowhere(digits):
    from coterie.engine.ray import RayClients
    from coterie.engine.simulator import Simulator

    federation, task = digits
    sharded = RayClients(Simulator(federation.train, task), shards=3)
    meter = ByteMeter()
    some = sharded.at("round", 0).through(listener=meter).only(torch.tensor([1, 4, 8]))
    ids, up = some.run(Numbers().step, number=Each(torch.arange(9.0)), factor=2.0)
    assert ids.tolist() == [1, 4, 8]
    assert up.doubled.tolist() == [2, 8, 16]
    assert meter.table()["Numbers.step"]["up"] == {"doubled": 3 * 4}
    shared = Each(torch.tensor([10.0, 20.0]), torch.tensor([0, 1] * 4 + [0]))
    _, up = some.run(Numbers().step, number=shared, factor=1.0)
    assert up.doubled.tolist() == [20, 10, 10]
    with pytest.warns(CoterieWarning, match="factor is 0"):
        some.run(Numbers().step, number=shared, factor=0.0)
    with pytest.raises(DataError, match="negative"):
        some.run(Numbers().step, number=shared, factor=-1.0)
    sharded.close()


class Upload(NamedTuple):
    doubled: torch.Tensor


class Numbers:
    @on_client
    def step(self, cohort, number, factor):
        if factor < 0:
            raise DataError("factor is negative")
        if factor == 0:
            warnings.warn("factor is 0", CoterieWarning, stacklevel=1)
        return Upload(number * factor)


def test_shards_are_of_like_size_and_never_empty():
    from coterie.engine.ray import shard_bounds

    offsets = torch.tensor([0, 1, 2, 3, 103, 104, 105, 205])
    cuts = shard_bounds(offsets, 3)
    assert cuts[0] == 0
    assert cuts[-1] == 7
    assert all(b > a for a, b in pairwise(cuts))
    assert shard_bounds(offsets, 7) == list(range(8))


def test_a_negative_number_of_shards_is_refused(digits):
    with pytest.raises(SettingError, match="`shards` must be at least 0, got -1"):
        coterie.simulate(coterie.FedAvg(), *digits, rounds=1, shards=-1)


def test_more_shards_than_clients_are_as_many_as_clients():
    samples = Samples.of([(torch.eye(3), torch.arange(3) % 2)] * 2)
    task = coterie.Classification(torch.nn.Linear(3, 2))
    run = coterie.simulate(coterie.FedAvg(), Federation(samples), task, rounds=1, shards=5)
    assert run.population.bounds == [0, 1, 2]
    assert run.population.actors == []  # gone with the run


@pytest.mark.parametrize("method", [coterie.IFCA(k=2, start="random"), coterie.Local()], ids=str)
def test_models_are_fine_tuned_as_in_one_process(digits, method):
    settings = {"rounds": 2, "finetune": 2, "finetune_for": "outliers", "finetune_distance": 1.0}
    here = coterie.simulate(method, *digits, **settings)
    there = coterie.simulate(method, *digits, shards=2, **settings)
    assert there.metrics == pytest.approx(here.metrics, rel=1e-4)
    assert torch.equal(there.personal.uses_own, here.personal.uses_own)
    assert 0 < int(here.personal.uses_own.sum()) < 9
