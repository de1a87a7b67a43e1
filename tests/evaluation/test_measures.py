import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    adjusted_rand_score,
    davies_bouldin_score,
    normalized_mutual_info_score,
)

from coterie.evaluation import measures as metrics


def test_clustering_does_not_depend_on_names():
    true = torch.tensor([0, 0, 1, 1, 2, 2])
    renamed = torch.tensor([5, 5, 0, 0, 3, 3])
    assert metrics.clustering_scores(renamed, true) == {"ari": 1.0, "nmi": 1.0, "purity": 1.0}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40))
def test_indices_are_those_of_scikit_learn(clusters):
    found, true = (torch.tensor(names) for names in zip(*clusters, strict=True))
    ours = metrics.clustering_scores(found, true)
    assert ours["ari"] == pytest.approx(adjusted_rand_score(true, found), abs=1e-12)
    assert ours["nmi"] == pytest.approx(normalized_mutual_info_score(true, found), abs=1e-12)


def test_indices_by_hand():
    """Of ten pairs four are together in found, four in true, two in both; by chance 1.6 are."""
    found, true = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 1])
    ours = metrics.clustering_scores(found, true)
    assert ours["ari"] == pytest.approx((2 - 1.6) / (4 - 1.6))
    one = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))
    both = -(2 * 0.4 * math.log(0.4) + 0.2 * math.log(0.2))
    assert ours["nmi"] == pytest.approx(2 * (2 * one - both) / (2 * one))


def test_purity_by_hand():
    found, true = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 1])
    assert metrics.clustering_scores(found, true)["purity"] == pytest.approx(4 / 5)


def test_a_true_cluster_in_two_pieces_is_pure_but_half_of_it_does_not_match():
    found, true = torch.tensor([7, 7, 7, 2, 2, 4]), torch.tensor([0, 0, 0, 0, 0, 1])
    assert metrics.clustering_scores(found, true)["purity"] == 1.0
    assert metrics.matched_fraction(found, true) == pytest.approx(4 / 6)
    # More true clusters than found ones: two of the three cannot match.
    assert metrics.matched_fraction(torch.zeros(3).long(), torch.arange(3)) == pytest.approx(1 / 3)


def test_a_single_cluster_has_no_index():
    assert (
        metrics.clustering_scores(torch.zeros(4).long(), torch.tensor([0, 0, 1, 1]))["ari"] == 0.0
    )


def test_two_models_on_one_truth_pass_the_nearest_but_not_the_one_to_one_distance():
    truth = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    found = metrics.distances_to_truth(torch.zeros(2, 2), truth)
    assert found == {"distance_nearest": 0.0, "distance": 2.5}
    assert metrics.distances_to_truth(truth.flip(0), truth)["distance"] == 0.0


def test_one_to_one_needs_as_many_models_as_truths():
    assert "distance" not in metrics.distances_to_truth(torch.zeros(3, 2), torch.zeros(2, 2))


def test_diverged_models_are_infinitely_far():
    found = metrics.distances_to_truth(
        torch.tensor([[math.nan], [0.0]]), torch.tensor([[0.0], [1.0]])
    )
    assert found["distance"] == math.inf


def test_davies_bouldin_worked_out_by_hand():
    # Centres 1, 10 and 30 with mean distances 1, 2 and 0 to them. The first two are alike by
    # (1 + 2) / 9, the third is most like the second: (0 + 2) / 20, for (0 + 1) / 29 is less.
    points = torch.tensor([[0.0], [2.0], [8.0], [12.0], [30.0]])
    cluster = torch.tensor([4, 4, 7, 7, 2])
    expected = (1 / 3 + 1 / 3 + 1 / 10) / 3
    assert metrics.davies_bouldin(points, cluster) == pytest.approx(expected)


def test_davies_bouldin_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(40, 6, generator=generator)
    cluster = torch.randint(5, (40,), generator=generator)
    points += 3 * cluster[:, None]
    expected = davies_bouldin_score(points.numpy(), cluster.numpy())
    assert metrics.davies_bouldin(points, cluster) == pytest.approx(expected, rel=1e-6)


def test_davies_bouldin_where_there_is_nothing_to_compare():
    points = torch.tensor([[0.0], [2.0], [1.0]])
    assert metrics.davies_bouldin(points, torch.zeros(3)) is None
    assert metrics.davies_bouldin(points, torch.tensor([0, 0, 1])) == math.inf
    # Clients that are all alike, in two clusters.
    assert metrics.davies_bouldin(torch.ones(4, 2), torch.tensor([0, 0, 1, 1])) == math.inf
