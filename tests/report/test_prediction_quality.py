"""What the page of a run says of its predictions."""

import numpy as np
import pytest
import torch

import coterie
from coterie import IFCA as Ifca
from coterie import Classification, Federation, Regression
from coterie.report.prediction_quality import (
    calibration_figure,
    confusion_table,
    group_measures,
    quality_notes,
    quality_section,
    quality_table,
)
from coterie.report.run_files import read_run
from coterie.report.run_page import render_run


def data(classes, tested=True):
    rng = np.random.default_rng(0)
    parts = []
    for i in range(4):
        x = rng.normal(size=(20, 2)).astype(np.float32)
        scores = np.stack([(-1) ** i * x[:, 0], x[:, 1], x.sum(1)][: max(classes, 1)], 1)
        y = scores.argmax(1) if classes > 1 else scores[:, 0]
        parts.append((x, y * (i < 3)))  # the last client has one class
    train = [(x[:12], y[:12]) for x, y in parts]
    return Federation.from_clients(
        train, test=[(x[12:], y[12:]) for x, y in parts] if tested else None
    )


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    def run(classes, tested=True, **settings):
        task = (Classification if classes > 1 else Regression)(
            lambda: torch.nn.Linear(2, max(classes, 1))
        )
        place = tmp_path_factory.mktemp("runs") / "run"
        method = Ifca(k=2, start="random")
        coterie.simulate(method, data(classes, tested), task, rounds=2, folder=place, **settings)
        return read_run(place)

    return run


@pytest.fixture(scope="module")
def two_classes(run_of):
    return run_of(2, validation=0.2, finetune=1)


def test_measures_stand_beside_a_constant_and_what_they_are_of(two_classes):
    table = quality_table(two_classes)
    assert table["titles"] == [
        "all test rows",
        "mean over clients",
        "constant prediction",
        "all validation rows",
        "before fine-tuning",
    ]
    rows = {row["label"]: row for row in table["rows"]}
    assert rows["AUC"]["cells"][0] == f"{two_classes.metrics['auc']:.3f}"
    assert rows["AUC"]["cells"][2] == "0.500"
    assert rows["accuracy"]["cells"][3] == f"{two_classes.metrics['validation_accuracy']:.1%}"
    assert [row["label"] for row in table["rows"] if row["judges"]] == ["accuracy"]


def test_of_training_rows_it_says_so(run_of):
    run = run_of(2, tested=False)
    assert quality_table(run)["titles"][0] == "all training rows"
    page = render_run(run.folder)
    assert "for there is no test part" in page
    assert "Mean training accuracy of the clients in each cluster" in page


def test_confusion_has_every_row_once(run_of):
    run = run_of(3)
    table = confusion_table(run)
    assert sum(row["total"] for row in table["rows"]) == len(data(3).test.y)
    right = sum(row["cells"][i][0] for i, row in enumerate(table["rows"]))
    assert right / len(data(3).test.y) == pytest.approx(run.metrics["accuracy"])
    assert all(row["cells"][i][2] for i, row in enumerate(table["rows"]))


def test_calibration_shows_every_row(two_classes):
    line = calibration_figure(two_classes)["data"][1]
    assert sum(line["customdata"]) == len(data(2).test.y)
    assert all(0 <= value <= 1 for value in line["x"] + line["y"])


def test_clients_of_one_class_are_told(two_classes):
    notes = " ".join(quality_notes(two_classes))
    assert "1 of 4 clients have one class only" in notes
    assert "of the class “1”" in notes


def test_what_is_binned_is_told(two_classes):
    details = two_classes.quality["test"]["details"]
    details |= {"binned": True, "auc_error": 0.001, "average_precision_error": 0.02}
    assert "off by at most 0.001 and 0.02" in " ".join(quality_notes(two_classes))
    details["binned"] = False


def test_groups_have_measures_of_their_own(two_classes):
    groups = group_measures(two_classes)
    assert sum(row["clients"] for row in groups["rows"]) == 4
    assert "accuracy" in groups["titles"]


def test_of_real_numbers_errors_are_in_units_of_the_label(run_of):
    run = run_of(1)
    labels = [row["label"] for row in quality_table(run)["rows"]]
    assert labels == ["R2", "RMSE", "MAE", "loss"]
    assert confusion_table(run) is None
    assert calibration_figure(run) is None
    page = render_run(run.folder)
    assert "judged by this" in page
    assert "Confusion" not in page


def test_a_run_of_earlier_versions_has_no_such_part(two_classes):
    assert quality_section(read_run(two_classes.folder)) is not None
    old = read_run(two_classes.folder)
    old.quality.clear()
    old.result["metrics"] = {"loss": 0.5, "clusters": 2}
    assert quality_section(old) is None


def test_very_many_classes_are_not_drawn(two_classes):
    run = read_run(two_classes.folder)
    run.quality["test"]["details"]["confusion"] = np.eye(40).tolist()
    assert confusion_table(run) is None


def test_the_page_has_all_of_it(two_classes):
    page = render_run(two_classes.folder)
    for words in ("How good the predictions are", "Each group of clients alone", "Calibration:"):
        assert words in page
