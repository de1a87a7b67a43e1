import pytest
import torch

from coterie import TKM
from coterie.algorithms.first_centres import FirstClustering, sample_clients, trained_models
from coterie.channel.lost_replies import LoseReplies
from coterie.core.errors import CoterieError
from tests.algorithms.boost import Boost
from tests.algorithms.lines import simulator

# A method whose `fit_part` goes half the way to a client's target.
METHOD = TKM(lr=0.25, steps=1)
ZERO = torch.tensor([0.0])


def clustering(**options):
    return FirstClustering(**{"k": 2, "part": "all", "tries": 5, "sample": 100, **options})


def first(targets, **options):
    clients = simulator(targets).at("start", 0)
    return clustering(**options).find(METHOD.fit_part, clients, ZERO, seed=0)


def below_100(points):
    return points[:, 0] < 100


def test_centres_are_those_of_what_clients_make_of_the_common_model():
    found = first([2, 4, -6, -8])
    assert found.models[found.cluster].flatten().tolist() == [1.5, 1.5, -3.5, -3.5]


def test_outliers_are_in_no_mean_and_join_the_nearest_centre():
    found = first([2, 4, -6, -8, 1000], inliers=below_100)
    assert found.models[found.cluster].flatten().tolist() == [1.5, 1.5, -3.5, -3.5, 1.5]


def test_outliers_that_leave_after_the_clustering_have_taken_a_centre():
    found = first([2, 4, -6, -8, 1000], inliers=below_100, outliers_first=False)
    assert found.models[found.cluster].flatten().tolist() == [-1.0] * 4 + [500.0]


def test_if_too_few_are_left_nobody_is_an_outlier():
    found = first([2, 4, -6, -8], inliers=lambda points: points[:, 0] > 1.5)
    assert found.models[found.cluster].flatten().tolist() == [1.5, 1.5, -3.5, -3.5]


def test_clients_that_are_not_sampled_join_the_nearest_centre():
    found = first([2, 2, -8, -8, 2, -8, 2, -8], sample=4)
    assert found.models[found.cluster].flatten().tolist() == [1, 1, -4, -4, 1, -4, 1, -4]


def test_a_sample_has_so_many_clients():
    clients = simulator(range(10)).at("start", 0)
    assert len(sample_clients(clients, 4, seed=0).ids) == 4
    assert sample_clients(clients, 10, seed=0) is clients


def test_models_that_are_not_finite_do_not_count():
    clients = simulator([2, 3, 4]).at("start", 0).through(Boost(frozenset([1]), torch.inf))
    ids, models = trained_models(METHOD.fit_part, clients, 2, model=ZERO)
    assert ids.tolist() == [0, 2]
    assert models.flatten().tolist() == [1.0, 2.0]


def test_without_enough_models_it_says_so():
    clients = simulator([2, 4]).at("start", 0).through(LoseReplies(1.0))
    with pytest.raises(CoterieError, match="fewer than k = 2 clients sent a finite model"):
        trained_models(METHOD.fit_part, clients, 2, model=ZERO)
