import pytest

from coterie.core.errors import SettingError
from coterie.experiment import comparison as compare
from coterie.experiment.comparison import Comparison, Outcome


def test_every_run_gets_the_settings_that_it_understands():
    comparison = Comparison.of(
        ["ifca,local", "rotated-digits", "seeds=2", "seed=5", "lr=0.2", "k=3", "ifca.lr=0.3"]
    )
    jobs = comparison.jobs(compare.Path("here"))
    assert [job.words for job in jobs] == [
        ("ifca", "rotated-digits", "lr=0.3", "k=3", "seed=5"),
        ("ifca", "rotated-digits", "lr=0.3", "k=3", "seed=6"),
        ("local", "rotated-digits", "lr=0.2", "seed=5"),
        ("local", "rotated-digits", "lr=0.2", "seed=6"),
    ]
    assert len({job.folder for job in jobs}) == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ifca"], "needs algorithms and federations"),
        (["ifca,fedavgg", "rotated-digits"], "no algorithm is named fedavgg"),
        (["ifca", "rotated-digit"], "no federation is named rotated-digit"),
        (["ifca", "rotated-digits", "kk=2"], "no setting is named kk"),
        (["ifca", "rotated-digits", "local.lr=2"], "local is not in the comparison"),
        (["local", "rotated-digits", "k=2"], "no setting is named k"),
        (["ifca", "rotated-digits", "seeds=0"], "`seeds` must be a whole number"),
        (["ifca", "rotated-digits", "seeds=many"], "`seeds` must be a whole number"),
    ],
)
def test_wrong_words_are_refused(words, sentence):
    with pytest.raises(SettingError, match=sentence):
        Comparison.of(words)


def outcome(**accuracy):
    """The outcome of algorithms with these accuracies, one for each seed."""
    seeds = tuple(range(len(next(iter(accuracy.values())))))
    comparison = Comparison(tuple(accuracy), ("rotated-digits",), seeds, ())
    results = [{"metrics": {"accuracy": a}} for values in accuracy.values() for a in values]
    return Outcome.of(comparison, results)


def test_differences_are_paired_by_seed():
    # Differences of -2, -4 and -3 points: mean -3, standard error 1/sqrt(3), t = -3 sqrt(3) with
    # two degrees of freedom, for which p = 1 - |t| / sqrt(2 + t^2) = 1 - 5.196 / 5.385.
    head, rows = outcome(ifca=[0.9, 0.8, 0.7], local=[0.88, 0.76, 0.67]).table("rotated-digits")
    assert head == ["algorithm", "accuracy", "against ifca"]
    assert rows[0] == ["ifca", "80.00 ± 10.00", ""]
    assert rows[1] == ["local", "77.00 ± 10.54", "-3.00 (p = 0.035)"]


def test_one_seed_has_no_deviation_and_no_p_value():
    _, rows = outcome(ifca=[0.9], local=[0.88]).table("rotated-digits")
    assert rows == [["ifca", "90.00", ""], ["local", "88.00", "-2.00"]]


def test_equal_differences_have_no_p_value():
    _, rows = outcome(ifca=[0.75, 0.5], local=[0.5, 0.25]).table("rotated-digits")
    assert rows[1][-1] == "-25.00"


def test_formats():
    head, rows = ["algorithm", "accuracy_macro"], [["ifca", "80.00 ± 1.00"]]
    assert compare.markdown(head, rows).splitlines() == [
        "| algorithm | accuracy_macro |",
        "| --------- | -------------- |",
        "| ifca      | 80.00 ± 1.00   |",
    ]
    assert r"ifca & 80.00 $\pm$ 1.00 \\" in compare.latex(head, rows)


def test_a_spreadsheet_gets_every_seed():
    table = outcome(ifca=[0.9, 0.8]).csv()
    assert table.splitlines() == [
        "federation,algorithm,seed,accuracy",
        "rotated-digits,ifca,0,0.9",
        "rotated-digits,ifca,1,0.8",
    ]
