"""Values of settings are chosen by what clients hold out, and k by itself where nobody says it."""

import json
import warnings

import numpy as np
import pytest
import torch

import coterie
from coterie import IFCA, CoterieWarning, FeSEM, KFed
from coterie.cli.main import MISTAKE, main
from coterie.core.errors import SettingError
from coterie.experiment.plan import make_plan, plan_again
from coterie.experiment.selection import Candidate, choose_value, difference_error
from coterie.experiment.settings import AutomaticValues

SIZES = torch.tensor([4, 4, 4, 4])


def candidates(*rows):
    each = torch.tensor(rows, dtype=torch.float64)
    return [Candidate(k, float(row.nanmean()), row) for k, row in enumerate(each, 1)]


def test_the_error_is_of_the_difference_worked_out_by_hand():
    one, other = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.0, 0.0, 3.0])
    # Differences 1, 2 and 3 of shares 1/4, 1/4 and 1/2: mean 2.25, so -1.25/4, -.25/4 and .75/2,
    # whose squares sum to (1.5625 + 0.0625 + 2.25) / 16; times 3 clients over 2.
    expected = ((1.5625 + 0.0625 + 2.25) / 16 * 1.5) ** 0.5
    assert difference_error(one, other, torch.tensor([1, 1, 2])) == pytest.approx(expected)
    # A client that holds out nothing does not count.
    missing = torch.tensor([1.0, 2.0, 6.0, torch.nan])
    more = torch.cat([other, torch.tensor([torch.nan])])
    assert difference_error(missing, more, torch.tensor([1, 1, 2, 0])) == pytest.approx(expected)


def test_a_client_that_is_hard_under_all_values_hides_no_difference():
    hard = candidates([1.0, 9.0, 2.0, 30.0], [0.8, 8.8, 1.8, 29.8], [0.81, 8.79, 1.8, 29.8])
    chosen = choose_value(hard, SIZES)
    assert chosen.candidate.value == 2
    assert choose_value(hard, SIZES, smallest=False).candidate is chosen.lowest


def test_a_difference_by_chance_leaves_the_smallest():
    by_chance = candidates([1.0, 1.0, 1.0, 1.0], [0.2, 1.7, 1.4, 0.6])
    chosen = choose_value(by_chance, SIZES)
    assert (chosen.lowest.value, chosen.candidate.value) == (2, 1)
    assert chosen.reason("k") == (
        "k=1 is taken: its validation loss, 1, is within two standard errors of the lowest, "
        "0.975 of k=2"
    )


def write_table(path, groups, seed, clients=12, rows=40, features=4, kind="flip", noise=0.05):
    """A table of clients in so many groups, whose labels mean different things."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(features, 4 if kind == "permuted" else 2))
    lines = [",".join([*(f"f{j}" for j in range(features)), "label", "client"])]
    for client in range(clients):
        group = client % groups
        x = rng.normal(size=(rows, features))
        y = (x @ weights).argmax(1)
        y = (y + group) % 4 if kind == "permuted" else np.where(group == 1, 1 - y, y)
        y = np.where(rng.random(rows) < noise, rng.integers(0, y.max() + 1, rows), y)
        lines += [
            ",".join([*(f"{v:.5f}" for v in row), f"class {label}", f"site {client}"])
            for row, label in zip(x, y, strict=True)
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


FAST = ["rounds=25", "hidden=8"]


@pytest.mark.filterwarnings("ignore::coterie.CoterieWarning")
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_k_is_found_where_nobody_says_it(tmp_path, groups):
    data = write_table(tmp_path / "data.csv", groups, seed=3 * groups, kind="permuted")
    plan = make_plan(["ifca", str(data), *FAST])
    run = plan.run(plan.config()).complete()
    assert run.chosen["chosen"]["k"] == run.chosen["selection"]["taken"] == groups


@pytest.mark.filterwarnings("ignore::coterie.CoterieWarning")
def test_which_k_was_taken_is_told_everywhere(tmp_path, capsys):
    groups, data = 2, write_table(tmp_path / "data.csv", 2, seed=6, kind="permuted")
    assert main(["run", "ifca", str(data), *FAST, "--out", str(tmp_path / "run"), "--json"]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert result["chosen"]["k"] == groups
    selection = result["selection"]
    assert selection["values"] == [1, 2, 3, 4, 5, 6]
    assert selection["taken"] == groups
    assert "coterie: `k` is not given, so 1 to 6 are tried (k=auto)" in said.err
    assert f"coterie: {selection['reason']}" in said.err
    assert selection["reason"].startswith(f"k={groups} is taken: its validation loss")
    losses = dict(zip(selection["values"], selection["validation_loss"], strict=True))
    errors = dict(zip(selection["values"], selection["standard_error"], strict=True))
    assert losses[groups] <= losses[1] + errors[1]
    assert result["metrics"]["validation_loss"] == losses[groups]
    page = (tmp_path / "run" / "report.html").read_text()
    assert selection["reason"] in page
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"]["k"] == "auto"
    assert plan_again(config, []).grid == {"k": AutomaticValues()}
    assert main(["run", "--resume", str(tmp_path / "run"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["chosen"] == result["chosen"]


@pytest.fixture(scope="module")
def digits():
    return coterie.load("rotated-digits", clients=8, hidden=10)


def test_k_is_found_in_python(digits):
    federation, task = digits
    settings = {"rounds": 2, "validation": 0.2}
    run = coterie.simulate(FeSEM(), federation, task, grid={"k": "auto"}, **settings)
    assert run.chosen["selection"]["values"] == [1, 2, 3, 4]  # no more than half the clients
    assert run.chosen["chosen"]["k"] == run.chosen["selection"]["taken"]
    plain = coterie.simulate(FeSEM(), federation, task, grid={"k": [1, 2, 3, 4]}, **settings)
    found = plain.chosen["selection"]
    automatic = run.chosen["selection"]["validation_loss"]
    assert found["validation_loss"][:2] == automatic[:2]
    assert automatic[2] <= found["validation_loss"][2]  # of two starts
    assert found["taken"] == found["lowest"]  # these are asked for: the best is taken
    rates = coterie.simulate(IFCA(k=2), federation, task, grid={"lr": [0.01, 0.5]}, **settings)
    chosen, copies = rates.chosen["chosen"], rates.chosen["copies"]
    best = min(copies, key=lambda each: each["validation_loss"])
    assert chosen["lr"] == best["lr"] == rates.chosen["selection"]["taken"]


@pytest.mark.parametrize(
    ("algorithm", "settings", "sentence"),
    [
        (IFCA(), {}, "`k` must be a number where clients hold out no samples"),
        (KFed(), {"validation": 0.2}, "`k` must be a number where samples are clustered"),
        (IFCA(), {"validation": 0.2, "withhold": "clusters"}, "where clusters are withheld"),
        (IFCA(), {"validation": 0.2, "shards": 2}, "several starts or values run in one process"),
        (coterie.FedAvg(), {"validation": 0.2}, "`k` of a grid must be a list of values"),
    ],
)
def test_k_that_cannot_be_found_is_refused_in_a_sentence(digits, algorithm, settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        coterie.simulate(algorithm, *digits, grid={"k": "auto"}, rounds=1, **settings)


def test_where_k_cannot_be_found_the_default_is_taken_and_said(tmp_path, capsys):
    data = write_table(tmp_path / "data.csv", 2, seed=1, clients=6, rows=12)
    for words, reason in (
        (["ifca", "validation=0"], "it must be given where clients hold out no samples"),
        (["k-fed"], "it must be given where samples are clustered"),
        (["ifca", "attack=boosted", "labels=keep"], "it must be given where clients attack"),
    ):
        name, *rest = words
        plan = make_plan([name, str(data), *rest])
        assert plan.grid == {}
        assert f"`k` is not given, so k={plan.algorithm.k} is taken: {reason}" in plan.says
    assert make_plan(["ifca", str(data), "k=3"]).says == ""
    assert make_plan(["fedavg", str(data)]).says == ""
    assert make_plan(["ifca", "rotated-digits"]).says == ""
    assert (
        main(["run", "ifca", "rotated-digits", "k=auto", "--out", str(tmp_path / "r")]) == MISTAKE
    )
    assert "`k` must be a number where clients hold out no samples" in capsys.readouterr().err
    assert main(["deploy", "init", str(tmp_path / "app"), "ifca", str(data), "k=auto"]) == MISTAKE
    assert "one value of each setting, so that k=auto" in capsys.readouterr().err
    assert main(["deploy", "init", str(tmp_path / "app"), "ifca", str(data)]) == 0
    assert "coterie: `k` is not given, so k=" in capsys.readouterr().err


def test_a_comparison_finds_k_for_each_run(tmp_path):
    data = write_table(tmp_path / "data.csv", 2, seed=5, rows=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        found = coterie.compare(["ifca", "fedavg"], str(data), seeds=1, rounds=15, hidden=4)
    assert not found.failures
    assert {"ifca", "fedavg"} <= set(found.table.index)
    assert found.table.loc["ifca"].iloc[0] != found.table.loc["fedavg"].iloc[0]
