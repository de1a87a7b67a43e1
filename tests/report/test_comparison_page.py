"""The page of several runs."""

from collections.abc import Callable
from pathlib import Path

import plotly.graph_objects as go
import pytest

from coterie.report.comparison_page import group_runs
from coterie.report.figures import mean_curves
from coterie.report.pages import render_page, write_page
from coterie.report.run_files import read_run
from coterie.report.template import LIBRARY, share_library
from tests.report.test_run_page import HOSTILE, Elements, edit

MakeRun = Callable[..., Path]


@pytest.fixture
def runs(make_run: MakeRun) -> list[Path]:
    """Two algorithms with two seeds each; fedavg is two points behind on both."""
    folders = []
    for algorithm, accuracies in (("ifca", (0.9, 0.8)), ("fedavg", (0.88, 0.78))):
        for seed, accuracy in enumerate(accuracies):
            folder = make_run(f"{algorithm}-{seed}", algorithm=algorithm, seed=seed)
            edit(folder, "result.json", metrics={"accuracy": accuracy, "ari": 1.0, "clusters": 4})
            folders.append(folder)
    return folders


def test_runs_are_grouped_by_what_tells_them_apart_but_the_seed(make_run: MakeRun) -> None:
    folders = [
        make_run("a", k=2, seed=0),
        make_run("b", k=2, seed=1),
        make_run("c", k=4, seed=0),
        make_run("d", algorithm="fedavg", seed=0),
    ]
    groups = group_runs([read_run(folder) for folder in folders])
    assert {
        label: [run.seed for run in runs] for label, runs in groups["rotated-digits"].items()
    } == {"ifca k=2": [0, 1], "ifca k=4": [0], "fedavg": [0]}


def test_page_has_the_table_of_the_comparison_and_every_run(runs: list[Path]) -> None:
    shown = Elements(render_page(runs))
    assert "ifca, fedavg on rotated-digits" in shown.text
    assert "ifca 85.00 ± 7.07" in shown.text
    assert "fedavg 83.00 ± 7.07" in shown.text
    assert "-2.00" in shown.text  # the difference on the same seeds
    assert "fedavg 1 78.0%" in shown.text
    assert "coterie run fedavg rotated-digits k=4 seed=1" in shown.text
    for figure in shown.data["figures"].values():
        go.Figure(figure)


def test_curves_are_means_in_a_band_of_one_standard_deviation() -> None:
    def rounds(*values: float) -> list[dict[str, object]]:
        return [{"round": i, "metrics": {"loss": v}} for i, v in enumerate(values, 1)]

    # Round 1: 1 and 3, mean 2, standard deviation sqrt(2). Only one run has a third round.
    figure = mean_curves({"ifca": [rounds(1, 2), rounds(3, 2, 9)]}, "loss")
    assert figure is not None
    band, mean = figure["data"]
    assert (mean["x"], mean["y"]) == ([1, 2], [2, 2])
    assert band["x"] == [1, 2, 2, 1]
    assert band["y"] == [3.4142, 2, 2, 0.58579]


def test_a_seed_that_was_run_twice_is_not_lost(make_run: MakeRun) -> None:
    folders = [make_run("a"), make_run("b"), make_run("c", algorithm="fedavg")]
    edit(folders[0], "result.json", metrics={"accuracy": 0.7})
    edit(folders[1], "result.json", metrics={"accuracy": 0.9})
    text = Elements(render_page(folders)).text
    assert "ifca 80.00 ± 14.14" in text


def test_written_page_is_linked_to_the_pages_of_its_runs(runs: list[Path], tmp_path: Path) -> None:
    (runs[0] / "report.html").write_text("")
    written = write_page(runs, tmp_path / "all.html")
    links = [a["href"] for tag, a in Elements(written.read_text()).tags if tag == "a"]
    assert links == ["ifca-0/report.html"]


def test_the_page_beside_the_shared_library_is_small_and_elsewhere_whole(
    runs: list[Path], tmp_path: Path
) -> None:
    share_library(runs[0].parent)
    beside = write_page(runs, runs[0].parent / "report.html").read_text()
    assert f'<script src="{LIBRARY}">' in beside
    assert len(beside) < 10**6
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    whole = write_page(runs, elsewhere / "report.html").read_text()
    assert "<script src" not in whole
    assert len(whole) > 10**6


def test_runs_that_go_on_are_compared_by_what_they_have(runs: list[Path]) -> None:
    for folder in runs[2:]:
        (folder / "result.json").unlink()
        lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        (folder / "rounds.jsonl").write_text("".join(lines[:7]))
    text = Elements(render_page(runs)).text
    assert "7 so far" in text


def test_hostile_text_stays_text_in_a_comparison(runs: list[Path]) -> None:
    edit(runs[0], "config.json", algorithm=HOSTILE, federation=HOSTILE, command=HOSTILE)
    shown = Elements(render_page(runs))
    assert HOSTILE in shown.text
    assert shown.count("img") == 0
    assert shown.count("script") == 3
