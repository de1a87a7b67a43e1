"""The conformance suite: what every algorithm must hold to, whoever wrote it.

    from coterie.checks import check_algorithm
    check_algorithm(MyAlgorithm(k=3))
    check_algorithm(MyAlgorithm(k=3), task=Classification(MyNetwork), federation=my_data)

Each check runs the algorithm for a few rounds on a small federation in double precision and raises
an AssertionError that names the broken promise. `CHECKS` lists them for `pytest.mark.parametrize`.
What they may rely on is declared by the algorithm: its `Traits`.
"""

from coterie.checks.crossings import (
    folds_are_plain_data_that_adds_up,
    lost_replies_break_nothing,
    metered_bytes_are_the_declared_parts,
    missing_replies_are_normal,
    steps_leave_their_inputs_alone,
    withheld_clusters_change_no_model,
)
from coterie.checks.outcomes import (
    any_network_will_do,
    bad_settings_are_refused,
    chunks_do_not_matter,
    clusters_are_a_partition,
    empty_cluster_keeps_its_model,
    one_client_works,
    one_cluster_works,
    order_of_clients_does_not_matter,
    other_seed_gives_other_result,
    padding_does_not_matter,
    resuming_changes_nothing,
    same_seed_gives_same_bits,
    training_does_not_see_test_data,
    unseen_clients_are_served,
)
from coterie.checks.runs import assert_close, assert_same, short_run
from coterie.checks.small import (
    CLASSES,
    FEATURES,
    RAGGED,
    noisy_task,
    ragged_sizes,
    small_federation,
    small_task,
    task_for,
)
from coterie.checks.suite import CHECKS, applies, check_algorithm

__all__ = [
    "CHECKS",
    "CLASSES",
    "FEATURES",
    "RAGGED",
    "any_network_will_do",
    "applies",
    "assert_close",
    "assert_same",
    "bad_settings_are_refused",
    "check_algorithm",
    "chunks_do_not_matter",
    "clusters_are_a_partition",
    "empty_cluster_keeps_its_model",
    "folds_are_plain_data_that_adds_up",
    "lost_replies_break_nothing",
    "metered_bytes_are_the_declared_parts",
    "missing_replies_are_normal",
    "noisy_task",
    "one_client_works",
    "one_cluster_works",
    "order_of_clients_does_not_matter",
    "other_seed_gives_other_result",
    "padding_does_not_matter",
    "ragged_sizes",
    "resuming_changes_nothing",
    "same_seed_gives_same_bits",
    "short_run",
    "small_federation",
    "small_task",
    "steps_leave_their_inputs_alone",
    "task_for",
    "training_does_not_see_test_data",
    "unseen_clients_are_served",
    "withheld_clusters_change_no_model",
]
