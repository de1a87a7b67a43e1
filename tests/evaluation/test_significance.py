"""Means, paired differences and tests of significance, worked out by hand."""

from coterie.evaluation.significance import ComparisonResults


def results(**accuracy):
    """The results of algorithms with these accuracies, one for each seed."""
    runs = {
        name: {seed: {"accuracy": value} for seed, value in enumerate(values)}
        for name, values in accuracy.items()
    }
    return ComparisonResults({"rotated-digits": runs})


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


def test_a_spreadsheet_gets_every_seed():
    table = results(ifca=[0.9, 0.8]).csv()
    assert table.splitlines() == [
        "federation,algorithm,seed,accuracy",
        "rotated-digits,ifca,0,0.9",
        "rotated-digits,ifca,1,0.8",
    ]


def test_metrics_of_the_algorithms_own_are_in_the_table():
    runs = {"mine": {0: {"accuracy": 0.5, "f1": 0.1, "entropy": 0.25}}, "avg": {0: {"accuracy": 1}}}
    headings, rows = ComparisonResults({"digits": runs}).table("digits")
    assert headings == ["algorithm", "accuracy", "entropy", "against avg"]
    assert [row[2] for row in rows] == ["0.250", ""]
