"""The conformance suite: all checks, and which of them apply to an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coterie.checks import crossings, outcomes
from coterie.checks.small import CASE, Case, small_federation
from coterie.core.algorithm import Algorithm, traits_of
from coterie.core.errors import CoterieError
from coterie.core.imports import describe_failure
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.experiment.settings import make_settings
from coterie.networks import Mlp
from coterie.registry import resolve
from coterie.tasks.defaults import default_task
from coterie.tasks.network import NetworkTask

Check = Callable[[Any], None]
Tell = Callable[[str, str], None]  # a promise, and what is broken of it; empty: nothing

CHECKS: list[Check] = [
    outcomes.chunks_do_not_matter,
    outcomes.padding_does_not_matter,
    outcomes.any_network_will_do,
    outcomes.same_seed_gives_same_bits,
    outcomes.other_seed_gives_other_result,
    outcomes.resuming_changes_nothing,
    outcomes.order_of_clients_does_not_matter,
    outcomes.clusters_are_a_partition,
    outcomes.empty_cluster_keeps_its_model,
    outcomes.one_client_works,
    outcomes.one_cluster_works,
    crossings.missing_replies_are_normal,
    crossings.lost_replies_break_nothing,
    crossings.folds_are_plain_data_that_adds_up,
    crossings.withheld_clusters_change_no_model,
    crossings.steps_leave_their_inputs_alone,
    crossings.metered_bytes_are_the_declared_parts,
    outcomes.training_does_not_see_test_data,
    outcomes.unseen_clients_are_served,
    outcomes.bad_settings_are_refused,
]
NOT_ON_OWN_DATA = (outcomes.any_network_will_do, outcomes.bad_settings_are_refused)


def check_algorithm(
    algorithm: Algorithm[Any] | str,
    task: Task | None = None,
    federation: Federation | None = None,
    *,
    tell: Tell | None = None,
) -> None:
    """Run every check that applies to an algorithm, and again on a task and data of one's own.

    The algorithm may be given by its name. Of a federation the first eight clients are taken, with
    a few samples each. A task without a federation must fit the samples of `small_federation`. With
    `tell`, a broken promise is told and not raised.
    """
    if isinstance(algorithm, str):
        algorithm = make_settings(resolve("algorithm", algorithm), {})
    run_checks(algorithm, CHECKS, tell)
    if task is None and federation is None:
        return
    if task is None and federation is not None:
        task = default_task(federation, Mlp(hidden=6))
    before = CASE.set(Case(federation, in_double(task, federation or small_federation())))
    own = [check for check in CHECKS if check not in NOT_ON_OWN_DATA]
    try:
        run_checks(algorithm, own, tell)
    finally:
        CASE.reset(before)


def run_checks(algorithm: Any, checks: Sequence[Check], tell: Tell | None) -> None:
    """Run those of some checks that apply."""
    for check in checks:
        if not applies(check, algorithm):
            continue
        broken = ""
        try:
            check(algorithm)
        except AssertionError as error:
            if tell is None:
                raise
            broken = str(error) or "it is broken"
        except Exception as error:
            if tell is None:
                raise
            broken = describe_failure(error) or f"{type(error).__name__}: {error}"
        if tell is not None:
            tell((check.__doc__ or check.__name__).partition("\n")[0], broken)


def in_double(task: Any, federation: Federation) -> Any:
    """A task in double precision, if its network can be had so."""
    if not isinstance(task, NetworkTask):
        return task
    precise: Any = task.double()
    try:
        precise.check_samples(federation.train.x[:2], federation.train.y[:2])
    except (CoterieError, RuntimeError, TypeError):
        return task
    return precise


def applies(check: Check, algorithm: Algorithm[Any]) -> bool:
    """Whether a check says something about an algorithm, by the traits that it declares."""
    traits = traits_of(algorithm)
    if check is outcomes.any_network_will_do:
        return not hasattr(algorithm, "task")  # else it does not take any network
    if check is outcomes.other_seed_gives_other_result:
        return traits.draws
    if check is outcomes.order_of_clients_does_not_matter:
        return not traits.clients_draw
    if check is outcomes.empty_cluster_keeps_its_model:
        return bool(traits.models) and not traits.soft  # a mixture has no empty cluster
    return bool(traits.clusters) if check is outcomes.one_cluster_works else True
