import pytest

import coterie
from coterie import FPFC
from coterie.algorithms import fpfc_path
from tests.algorithms.lines import line, simulator


def test_the_path_finds_lambda_and_the_clusters():
    run = coterie.simulate(
        FPFC(lr=0.125, steps=4, nu=0.5, lambdas=4, path_rounds=30),
        line([0, 0.2, 0.1, 5, 5.1, 5.2], sizes=[5] * 6),
        simulator([1], draws=[0]).task,
        rounds=10,
    )
    assert run.clusters.tolist() == [0, 0, 0, 1, 1, 1]
    assert 0.2 < float(run.state.lam) < 4  # 0.05 to 0.8 of a distance of about 5


@pytest.mark.parametrize(("stages", "begin"), [(0, 1.0), (2, 2.3125)])
def test_models_of_the_best_clusters_train_on_as_long_as_they_serve_better(stages, begin):
    # A step takes a quarter of the way to 4, from 0. The one lambda of the path is judged by models
    # after one round: 1. Each stage is another: 4 (1 - 0.75^3) = 2.3125 after two.
    fpfc = FPFC(lr=0.125, steps=1, lambdas=1, path_rounds=1, stages=stages)
    run = coterie.simulate(
        fpfc, line([4, 4], sizes=[5] * 2), simulator([1], draws=[0]).task, rounds=1
    )
    assert run.state.omega.flatten().tolist() == [begin + (4 - begin) / 4] * 2


def test_models_that_serve_no_better_train_no_longer(monkeypatch):
    fit_clusters, calls = fpfc_path.fit_clusters, []

    def counted(*arguments):
        calls.append(arguments)
        return fit_clusters(*arguments)

    monkeypatch.setattr(fpfc_path, "fit_clusters", counted)
    coterie.simulate(
        FPFC(lr=0.125, steps=1, lambdas=1, path_rounds=1, stages=9),
        line([0, 0], sizes=[5] * 2),
        simulator([1], draws=[0]).task,
        rounds=1,
    )
    assert len(calls) == 2  # the lambda's, and the first stage, which changed nothing
