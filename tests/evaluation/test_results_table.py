"""The table of a comparison, worked out by hand."""

import math

import pytest

from coterie.evaluation.results_table import ComparisonResults
from coterie.evaluation.significance import Repeat


def results(**accuracy):
    """The results of algorithms with these accuracies, one for each seed."""
    runs = {
        name: {seed: {"accuracy": value} for seed, value in enumerate(values)}
        for name, values in accuracy.items()
    }
    return ComparisonResults({"rotated-digits": runs})


def result(seed=0, split=0, resplits=True, metric="accuracy", baseline=None, **metrics):
    """What result.json says of a run: 80 samples to train on, 20 to be tested on."""
    data = {"seed": split, "resplits": resplits, "train": 80, "test": 20}
    return {
        "seed": seed,
        "data": data,
        "metric": metric,
        "metrics": metrics,
        "baseline": baseline or {},
    }


def compared(metric="", **algorithms):
    return ComparisonResults.of({"wards": algorithms}, metric)


def with_data(runs, **facts):
    """The same runs with other facts about their data."""
    return {
        name: [each | {"data": each["data"] | facts} for each in several]
        for name, several in runs.items()
    }


def test_differences_are_paired_by_seed():
    # Differences of -2, -4 and -3 points: mean -3, standard error 1/sqrt(3), t = -3 sqrt(3) with
    # two degrees of freedom, for which p = 1 - |t| / sqrt(2 + t^2) = 1 - 5.196 / 5.385.
    head, rows = results(ifca=[0.9, 0.8, 0.7], local=[0.88, 0.76, 0.67]).table("rotated-digits")
    assert head == ["algorithm", "accuracy", "against ifca"]
    assert rows[0] == ["ifca", "80.00 ± 10.00", ""]
    assert rows[1] == ["local", "77.00 ± 10.54", "-3.00 (p = 0.035)"]


def test_one_seed_has_no_deviation_and_no_p_value():
    _, rows = results(ifca=[0.9], local=[0.88]).table("rotated-digits")
    assert rows == [["ifca", "90.00", ""], ["local", "88.00", "-2.00"]]


def test_equal_differences_have_no_p_value():
    _, rows = results(ifca=[0.75, 0.5], local=[0.5, 0.25]).table("rotated-digits")
    assert rows[1][-1] == "-25.00"


def test_splits_of_the_same_samples_are_corrected_for_their_overlap():
    # The differences of above on three splits, 20 samples tested on and 80 trained on: the test is
    # that of test_significance.py, with p = 0.0591.
    ifca, local = [0.9, 0.8, 0.7], [0.88, 0.76, 0.67]
    runs = {
        name: [result(split=i, accuracy=value) for i, value in enumerate(values)]
        for name, values in {"ifca": ifca, "local": local}.items()
    }
    found = compared(**runs)
    assert found.table("wards")[1][1][-1] == "-3.00 (p = 0.059)"
    caption = found.caption("wards")
    assert "3 splits of the data, one start on each (seed=0)" in caption
    assert "Nadeau and Bengio, 0.25 test samples for each one of training" in caption
    # Drawn anew each time, the same differences are independent.
    fresh = {
        n: [each | {"data": {**each["data"], "resplits": False}} for each in r]
        for n, r in runs.items()
    }
    found = compared(**fresh)
    assert found.table("wards")[1][1][-1] == "-3.00 (p = 0.035)"
    assert "overlap" not in found.caption("wards")
    # A validation part is not tested on, and counts with what is trained on: 20 / 100.
    wide = {
        n: [each | {"data": {**each["data"], "validation": 20}} for each in r]
        for n, r in runs.items()
    }
    assert compared(**wide).overlaps == {"wards": pytest.approx(0.2)}


def test_starts_on_one_split_are_a_plain_test_that_says_so():
    runs = {
        name: [result(seed=i, accuracy=value) for i, value in enumerate(values)]
        for name, values in {"ifca": [0.9, 0.8, 0.7], "local": [0.88, 0.76, 0.67]}.items()
    }
    found = compared(**runs)
    assert found.table("wards")[1][1][-1] == "-3.00 (p = 0.035)"
    assert "3 starts on one split of the data (split_seed=0)" in found.caption("wards")
    assert "other starts on these data, not about other data" in found.caption("wards")


def test_starts_on_each_split_count_as_their_mean():
    # Gaps of -1 and -3 points on split 0, -4 and -8 on split 1: means -2 and -6, variance 8, and
    # t = 4 / sqrt((1/2 + 1/4) 8) with one degree of freedom.
    gaps = {(0, 0): -0.01, (0, 1): -0.03, (1, 0): -0.04, (1, 1): -0.08}
    best = [result(seed=j, split=i, accuracy=0.9) for i, j in gaps]
    mine = [result(seed=j, split=i, accuracy=0.9 + gap) for (i, j), gap in gaps.items()]
    p = 1 - 2 * math.atan(4 / math.sqrt(6)) / math.pi
    difference = compared(ifca=best, local=mine).differences("wards")["local"]
    assert difference.mean == pytest.approx(-4)
    assert difference.p == pytest.approx(p)


def test_several_methods_are_adjusted_by_holm():
    ifca = [result(seed=i, accuracy=value) for i, value in enumerate([0.9, 0.8, 0.7])]
    one = [result(seed=i, accuracy=value) for i, value in enumerate([0.88, 0.76, 0.67])]
    other = [result(seed=i, accuracy=value) for i, value in enumerate([0.80, 0.69, 0.605])]
    alone = compared(ifca=ifca, one=one).differences("wards")["one"].p
    both = compared(ifca=ifca, one=one, other=other)
    found = both.differences("wards")
    assert found["other"].p < found["one"].p == pytest.approx(max(alone, found["other"].p))
    assert found["other"].p == pytest.approx(
        2 * compared(ifca=ifca, one=other).differences("wards")["one"].p
    )
    assert "adjusted for 2 methods (Holm)" in both.caption("wards")


def test_the_metric_that_is_named_decides_by_its_own_direction():
    ifca = result(accuracy=0.9, auc=0.7, loss=0.9)
    local = result(accuracy=0.8, auc=0.8, loss=0.3)
    assert compared(ifca=[ifca], local=[local]).best("wards") == "ifca"
    for metric in ("auc", "loss"):
        found = compared(metric, ifca=[ifca], local=[local])
        assert found.best("wards") == "local"
        assert f"ecided by {metric}" in found.caption("wards")
    by_loss = compared("loss", ifca=[ifca], local=[local]).table("wards")
    assert by_loss[1][0][-1] == "+0.600"
    named = [result(metric="auc", accuracy=0.9, auc=0.7)], [result(accuracy=0.8, auc=0.8)]
    assert compared(ifca=named[0], local=named[1]).best("wards") == "local"


def test_a_regression_is_decided_by_r2_and_without_it_by_the_loss():
    one, two = result(metric="", r2=0.5, loss=1.0), result(metric="", r2=0.6, loss=2.0)
    assert compared(one=[one], two=[two]).best("wards") == "two"
    one, two = result(metric="", loss=1.0), result(metric="", loss=2.0)
    assert compared(one=[one], two=[two]).best("wards") == "one"


def test_without_a_test_part_the_table_says_that_it_is_training():
    head, _ = compared(ifca=[result(train_accuracy=0.9, train_loss=0.3)]).table("wards")
    assert head == ["algorithm", "train_accuracy", "train_loss", "against ifca"]


def test_a_constant_prediction_stands_below():
    constant = {"accuracy": 0.5, "loss": 0.69}
    runs = [result(seed=i, accuracy=0.9, loss=0.2, baseline=constant) for i in range(2)]
    _, rows = compared(ifca=runs).table("wards")
    assert rows[-1] == ["constant", "50.00 ± 0.00", "0.690 ± 0.000", ""]


def test_a_method_that_diverged_is_never_best():
    found = compared(wild=[result(accuracy=None, loss=None)], fine=[result(accuracy=0.1, loss=9.0)])
    assert found.best("wards") == "fine"
    assert found.table("wards")[1][0][1:3] == ["diverged", "diverged"]


def test_runs_of_the_same_seeds_are_not_mixed_up():
    found = compared(ifca=[result(accuracy=0.5), result(accuracy=0.7)])
    assert [*found.metrics["wards"]["ifca"]] == [Repeat(0, 0, 0), Repeat(0, 0, 1)]


def test_runs_of_before_have_no_sizes_and_no_corrected_test():
    old = {"seed": 0, "metrics": {"accuracy": 0.5}}
    found = compared(ifca=[old, old | {"seed": 1}])
    assert found.overlaps == {}
    assert "2 starts on the same data" in found.caption("wards")


def test_a_spreadsheet_gets_every_seed():
    table = compared(ifca=[result(accuracy=0.9), result(seed=3, split=1, accuracy=0.8)]).csv()
    assert table.splitlines() == [
        "federation,algorithm,seed,split_seed,accuracy",
        "wards,ifca,0,0,0.9",
        "wards,ifca,3,1,0.8",
    ]


def test_metrics_of_the_algorithms_own_are_in_the_table():
    runs = {"mine": {0: {"accuracy": 0.5, "f1": 0.1, "entropy": 0.25}}, "avg": {0: {"accuracy": 1}}}
    headings, rows = ComparisonResults({"digits": runs}).table("digits")
    assert headings == ["algorithm", "accuracy", "entropy", "against avg"]
    assert [row[2] for row in rows] == ["0.250", ""]
