"""The conformance suite notices algorithms that break its promises."""

from collections.abc import Callable
from dataclasses import dataclass
from pickle import PicklingError
from typing import ClassVar

import pytest
import torch
from torch import nn

import coterie
from coterie import IFCA, Classification, FedAvg, checks
from coterie.algorithms import steps
from coterie.algorithms.fedavg import State, Upload
from coterie.core.algorithm import Info, Serving, Traits
from coterie.core.clients import on_client
from coterie.vectors.folds import ByCluster
from tests.evaluation.fedem import FedEM
from tests.tasks.taggers import tagging_federation, tagging_task


@dataclass(frozen=True, kw_only=True)
class MixesClients(FedAvg):
    """Each client takes home the mean model of its chunk."""

    @on_client
    def train(self, cohort, model):
        up = FedAvg.train(self, cohort, model)
        return up._replace(model=up.model.amax(0).expand_as(up.model))


@dataclass(frozen=True, kw_only=True)
class CountsPadding(FedAvg):
    """Moves by a number that depends on the padding."""

    @on_client
    def train(self, cohort, model):
        up = FedAvg.train(self, cohort, model)
        return up._replace(model=up.model + 1e-3 * cohort.mask.shape[1])


@dataclass(frozen=True, kw_only=True)
class ChangesItsInput(FedAvg):
    @on_client
    def train(self, cohort, model):
        model += 1
        return FedAvg.train(self, cohort, model)


@dataclass(frozen=True, kw_only=True)
class DividesByEverybody(FedAvg):
    """A sum over those who answered, divided by all clients: the model shrinks with every loss."""

    def round(self, state, clients):
        ids, up = clients.run(self.train, fold=ByCluster(1, {"model": "model"}), model=state.model)
        model = up.sum("model").sum(0) / clients.population
        return State(model.expand_as(state.model)), Info(ids, up.cluster, 1)


@dataclass(frozen=True, kw_only=True)
class ServesWhoeverAnswersFirst(FedAvg):
    """Takes it for granted that somebody answers when it serves."""

    choose = steps.choose

    def serve(self, state, clients):
        ids, up = clients.run(self.choose, models=state.model[None])
        return Serving(state.model[None], ids, up.cluster)


@dataclass(frozen=True, kw_only=True)
class FoldsWithAClosure(FedAvg):
    def round(self, state, clients):
        fold = ByCluster(1, {"model": "model"}, assign=ClosureOf(lambda ids: 0 * ids))
        ids, up = clients.run(self.train, fold=fold, model=state.model)
        return State(up.pooled_mean("model")), Info(ids, up.cluster, 1)


@dataclass(frozen=True)
class ClosureOf:
    function: Callable

    def clusters(self, ids, upload, sent):
        return self.function(ids)


@dataclass(frozen=True)
class SumsSquares(ByCluster):
    """Says less of its terms than it adds."""

    def add(self, total, ids, upload, sent):
        total = super().add(total, ids, upload, sent)
        return total._replace(weight=total.weight**2)


@dataclass(frozen=True, kw_only=True)
class FoldsWhatDoesNotAdd(FedAvg):
    def round(self, state, clients):
        fold = SumsSquares(1, {"model": "model"})
        ids, up = clients.run(self.train, fold=fold, model=state.model)
        return State(up.pooled_mean("model")), Info(ids, up.cluster, 1)


@dataclass(frozen=True, kw_only=True)
class UsesGlobalRandomness(FedAvg):
    @on_client
    def train(self, cohort, model):
        up = FedAvg.train(self, cohort, model)
        return Upload(up.cluster, up.model + 1e-3 * torch.randn_like(up.model), up.size)


@dataclass(frozen=True, kw_only=True)
class IgnoresTheSeed(FedAvg):
    def init(self, start) -> State:
        return State(torch.ones(start.task.layout.size, dtype=torch.float64))


@dataclass(frozen=True, kw_only=True)
class DependsOnIds(FedAvg):
    @on_client
    def train(self, cohort, model):
        up = FedAvg.train(self, cohort, model)
        return up._replace(model=up.model * (1 + 0.01 * cohort.ids[:, None]) ** 2)


@dataclass(frozen=True, kw_only=True)
class NamesAClusterThatIsNotThere(FedAvg):
    def serve(self, state, clients):
        return Serving(torch.cat([state.model[None]] * 2), clients.ids[1:], clients.ids[1:] * 0)


@dataclass(frozen=True, kw_only=True)
class AcceptsAnything(FedAvg):
    def __post_init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (MixesClients(), checks.chunks_do_not_matter),
        (CountsPadding(), checks.padding_does_not_matter),
        (ChangesItsInput(), checks.steps_leave_their_inputs_alone),
        (DividesByEverybody(), checks.missing_replies_are_normal),
        (ServesWhoeverAnswersFirst(), checks.lost_replies_break_nothing),
        (FoldsWithAClosure(), checks.folds_are_plain_data_that_adds_up),
        (FoldsWhatDoesNotAdd(), checks.folds_are_plain_data_that_adds_up),
        (UsesGlobalRandomness(), checks.same_seed_gives_same_bits),
        (UsesGlobalRandomness(), checks.resuming_changes_nothing),
        (IgnoresTheSeed(), checks.other_seed_gives_other_result),
        (DependsOnIds(), checks.order_of_clients_does_not_matter),
        (NamesAClusterThatIsNotThere(), checks.clusters_are_a_partition),
        (AcceptsAnything(), checks.bad_settings_are_refused),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_broken_algorithm_is_found_out(broken, check):
    with pytest.raises((AssertionError, AttributeError, IndexError, PicklingError)):
        check(broken)


def test_the_whole_suite_passes_on_a_sound_algorithm():
    checks.check_algorithm(FedAvg(steps=2))


def test_the_whole_suite_passes_on_a_method_whose_clients_mix_models():
    checks.check_algorithm(FedEM(k=2, steps=3))


@dataclass(frozen=True, kw_only=True)
class DrawsAndSendsNumbers(FedAvg):
    """The server draws how far clients go, and sends them the number and nothing else besides."""

    def round(self, state, clients):
        share = float(torch.rand((), generator=clients.generator("share")))
        fold = ByCluster(1, {"model": "model"})
        ids, up = clients.run(self.go, fold=fold, model=state.model, share=share, more=None)
        return State(up.pooled_mean("model")), Info(ids, up.cluster, 1)

    @on_client
    def go(self, cohort, model, share, more) -> Upload:
        up = FedAvg.train(self, cohort, model)
        return up._replace(model=model + share * (up.model - model))


def test_the_whole_suite_passes_where_the_server_draws_and_sends_numbers():
    checks.check_algorithm(DrawsAndSendsNumbers(steps=2))


def test_traits_that_are_not_kept_are_found_out():
    @dataclass(frozen=True, kw_only=True)
    class ClaimsMixtures(FedAvg):
        traits: ClassVar[Traits] = Traits(soft=True)

    with pytest.raises(AssertionError, match="its traits say soft=True"):
        checks.clusters_are_a_partition(ClaimsMixtures())

    @dataclass(frozen=True, kw_only=True)
    class ForgetsEmptyClusters(IFCA):
        def round(self, state, clients):
            after, info = super().round(state, clients)
            return after._replace(models=after.models + 1), info

    with pytest.raises(AssertionError, match="an empty cluster lost its model"):
        checks.empty_cluster_keeps_its_model(ForgetsEmptyClusters(k=2))


def test_which_checks_apply_is_declared_and_not_read_off_names():
    @dataclass(frozen=True, kw_only=True)
    class Undeclared(FedAvg):
        """A setting called k and no annotation of `init` say nothing."""

        k: int = 3

        def init(self, start):
            return super().init(start)

    def applying(algorithm):
        return {check.__name__ for check in checks.CHECKS if checks.applies(check, algorithm)}

    every = {check.__name__ for check in checks.CHECKS}
    assert applying(IFCA()) == every
    assert applying(FedAvg()) == every - {"empty_cluster_keeps_its_model", "one_cluster_works"}
    assert applying(Undeclared()) == applying(FedAvg())


def test_a_mixture_has_no_empty_cluster():
    @dataclass(frozen=True, kw_only=True)
    class Declared(FedEM):
        traits: ClassVar[Traits] = Traits(clusters="k", models="models", soft=True)

    assert not checks.applies(checks.empty_cluster_keeps_its_model, Declared())


def test_an_algorithm_that_raises_is_told_with_its_line_and_the_other_promises_are_tried():
    told = {}
    checks.check_algorithm(ServesWhoeverAnswersFirst(steps=1), tell=told.__setitem__)
    broken = {promise: text for promise, text in told.items() if text}
    assert len(told) > 15
    (text,) = broken.values()
    assert text.startswith("AttributeError: 'NoneType' object has no attribute 'cluster'")
    assert "(test_suite.py, line " in text
    with pytest.raises(AttributeError):
        checks.check_algorithm(ServesWhoeverAnswersFirst(steps=1))


class ByPicture(nn.Module):
    """A convolution, batch normalisation and dropout; in single precision."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(72, 10)

    def forward(self, x):
        return self.head(self.layers(x[:, None]))


@pytest.mark.parametrize("algorithm", [FedAvg(steps=1), IFCA(k=2, steps=1, start_rounds=1)])
def test_the_suite_runs_on_a_network_and_data_of_ones_own(algorithm):
    federation, _ = coterie.load("rotated-digits", clients=4)
    checks.check_algorithm(algorithm, task=Classification(ByPicture), federation=federation)


def test_the_suite_runs_on_sequences():
    federation = tagging_federation([3] * 4)
    checks.check_algorithm(FedAvg(steps=1), task=tagging_task(), federation=federation)


def test_the_suite_finds_out_on_ones_own_data_what_the_small_data_does_not_show():
    @dataclass(frozen=True, kw_only=True)
    class ManyFeatures(FedAvg):
        """Does something wrong only where samples are large."""

        @on_client(fold=ByCluster)
        def train(self, cohort, model) -> Upload:
            up = FedAvg.train(self, cohort, model)
            wide = up.model.shape[1] > 100
            return up._replace(model=up.model.amax(0).expand_as(up.model)) if wide else up

    federation, _ = coterie.load("rotated-digits", clients=8)
    with pytest.raises(AssertionError, match="models differ"):
        checks.check_algorithm(ManyFeatures(steps=1), federation=federation)
