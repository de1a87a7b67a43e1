"""The conformance suite notices algorithms that break its promises."""

from collections.abc import Callable
from dataclasses import dataclass
from pickle import PicklingError

import pytest
import torch

from coterie import FedAvg, checks
from coterie.algorithms import steps
from coterie.algorithms.fedavg import State, Upload
from coterie.core.algorithm import Info, Serving
from coterie.core.clients import on_client
from coterie.vectors.folds import ByCluster


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
        return up._replace(model=up.model + 1e-3 * cohort._rows.x.shape[1])


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
