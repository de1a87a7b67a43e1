from pathlib import Path

import pytest

from coterie.core.errors import SettingError
from coterie.evaluation.significance import Repeat
from coterie.experiment.comparison import Comparison, part_names, results_of_jobs


def test_every_run_gets_the_settings_that_it_understands():
    comparison = Comparison.parse(
        ["ifca,local", "rotated-digits", "seeds=2", "seed=5", "lr=0.2", "k=3", "ifca.lr=0.3"]
    )
    jobs = comparison.jobs(Path("here"))
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
        Comparison.parse(words)


def test_results_belong_to_the_jobs_in_their_order(tmp_path):
    comparison = Comparison.parse(["ifca,local", "rotated-digits", "seeds=2"])
    results = [
        {"metrics": {"accuracy": number}} for number in range(len(comparison.jobs(tmp_path)))
    ]
    assert results_of_jobs(comparison, results).metrics["rotated-digits"] == {
        "ifca": {Repeat(None, 0): {"accuracy": 0}, Repeat(None, 1): {"accuracy": 1}},
        "local": {Repeat(None, 0): {"accuracy": 2}, Repeat(None, 1): {"accuracy": 3}},
    }


def test_splits_have_runs_and_folders_of_their_own():
    words = ["ifca", "rotated-digits", "split_seeds=2", "split_seed=3"]
    jobs = Comparison.parse(words).jobs(Path("here"))
    assert [job.words[2:] for job in jobs] == [
        ("split_seed=3", "seed=0"),
        ("split_seed=4", "seed=0"),
    ]
    crossed = Comparison.parse([*words, "seeds=3"]).jobs(Path("here"))
    assert len({job.folder for job in crossed}) == 6
    with pytest.raises(SettingError, match="`split_seeds` must be a whole number from 1 to 9999"):
        Comparison.parse(["ifca", "rotated-digits", "split_seeds=none"])


def test_the_metric_that_is_named_decides_and_goes_to_the_runs():
    comparison = Comparison.parse(["ifca,local", "rotated-digits", "metric=loss", "seeds=1"])
    assert all("metric=loss" in job.words for job in comparison.jobs(Path("here")))
    runs = [{"metrics": {"accuracy": 1, "loss": 2}}, {"metrics": {"accuracy": 0, "loss": 1}}]
    assert results_of_jobs(comparison, runs).best("rotated-digits") == "local"


def test_files_of_one_name_have_folders_of_their_own(tmp_path):
    places = []
    for name in ("a/data.csv", "b/data.csv", "b/data.tsv", "other.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
        places.append(str(tmp_path / name))
    names = part_names([*places, "rotated-digits"])
    assert len(set(names.values())) == 5
    assert names[places[3]] == "other"
    assert names["rotated-digits"] == "rotated-digits"
    assert part_names(places[1::-1])[places[0]] == names[places[0]]  # whatever their order


def test_what_is_named_twice_is_refused():
    for words in (["ifca,ifca", "rotated-digits"], ["ifca", "digits,digits"]):
        with pytest.raises(SettingError, match="is in the comparison twice"):
            Comparison.parse(words)


def test_a_run_that_failed_is_left_out(tmp_path):
    comparison = Comparison.parse(["ifca,local", "rotated-digits", "seeds=2"])
    done = {"metrics": {"accuracy": 0.5, "loss": None}}
    results = results_of_jobs(comparison, [None, done, None, None])
    head, rows = results.table("rotated-digits")
    assert [row[:3] for row in rows] == [["ifca", "50.00", "diverged"], ["local", "", ""]]
    assert head[-1] == "against ifca"
    assert results.csv().count("\n") == 1
