import json
from types import SimpleNamespace

import pytest

import coterie
from coterie import IFCA, FedAvg
from coterie.core.errors import CheckpointError, CoterieError, SettingError
from coterie.experiment.checkpoint import Checkpoint
from coterie.experiment.folder import RunFolder
from coterie.experiment.settings import RunSettings
from tests.experiment.test_run import Stop, stop_after


@pytest.fixture(scope="module")
def digits():
    return coterie.load("rotated-digits", clients=8)


@pytest.mark.parametrize(
    ("checkpoint", "seconds", "expected"),
    [
        (0, 0.29, [1, 2, 3, 4, 5, 6]),  # less than a twentieth of a round
        (0, 0.31, [2, 4, 6]),
        (0, 0.89, [3, 6]),
        (0, 60.0, [6]),
        (1, 60.0, [1, 2, 3, 4, 5, 6]),
        (4, 0.01, [4, 6]),
    ],
)
def test_saving_takes_a_small_share_of_a_run_unless_it_is_told_when(
    tmp_path, monkeypatch, checkpoint, seconds, expected
):
    clock = [100.0]
    now = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("coterie.experiment.folder.time", now)

    def made():
        clock[0] += seconds
        return Checkpoint(0, "", {}, {})

    folder = RunFolder.create(tmp_path / "r", {})
    settings = RunSettings(rounds=6, checkpoint=checkpoint)
    folder.save(made)
    saved = []
    for rounds in range(1, 7):
        clock[0] += 6.0  # a round
        if folder.due(rounds, settings):
            folder.save(made)
            saved.append(rounds)
    assert saved == expected


def test_lines_that_do_not_reach_the_checkpoint_are_refused(digits, tmp_path):
    settings = {"folder": tmp_path / "r", "rounds": 3, "checkpoint": 1}
    with pytest.raises(Stop):
        coterie.simulate(IFCA(k=2), *digits, on_round=stop_after(2), **settings)
    (tmp_path / "r" / "rounds.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="does not hold the 2 rounds before the checkpoint"):
        coterie.simulate(IFCA(k=2), *digits, resume=True, **settings)


def test_a_half_written_line_is_cut_off(digits, tmp_path):
    settings = {"folder": tmp_path / "r", "rounds": 3, "checkpoint": 1}
    with pytest.raises(Stop):
        coterie.simulate(IFCA(k=2), *digits, on_round=stop_after(2), **settings)
    with open(tmp_path / "r" / "rounds.jsonl", "a") as file:
        file.write('{"round": 3, "sec')
    (tmp_path / "r" / ".checkpoint.safetensors.1.tmp").write_bytes(b"half")
    coterie.simulate(IFCA(k=2), *digits, resume=True, **settings)
    lines = (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
    assert not list((tmp_path / "r").glob(".*"))


def test_a_folder_in_use_is_not_overwritten(digits, tmp_path):
    coterie.simulate(FedAvg(), *digits, folder=tmp_path / "r", rounds=1)
    with pytest.raises(CoterieError, match="already holds a run"):
        coterie.simulate(FedAvg(), *digits, folder=tmp_path / "r", rounds=1)


def test_a_run_that_cannot_begin_leaves_no_folder(digits, tmp_path):
    with pytest.raises(SettingError, match="at most the number of clients"):
        coterie.simulate(IFCA(k=9), *digits, folder=tmp_path / "r", rounds=1)
    assert not (tmp_path / "r").exists()
