import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import coterie
from coterie import IFCA, FedAvg
from coterie.cli.main import main
from coterie.core.errors import CheckpointError, CoterieError, CoterieWarning, SettingError
from coterie.experiment.checkpoint import Checkpoint
from coterie.experiment.folder import RunFolder
from coterie.experiment.plan import make_plan
from coterie.experiment.settings import RunSettings
from coterie.report.run_files import read_run
from coterie.report.run_page import render_run
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
    (tmp_path / "r" / ".tmp8t33BU").write_bytes(b"half")  # of the library, in the middle of it
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


def test_a_folder_has_one_run_at_a_time(digits, tmp_path):
    settings = {"folder": tmp_path / "r", "rounds": 3, "checkpoint": 1}
    seen = []

    def resume_meanwhile(record, run):
        with pytest.raises(CoterieError, match="is in use by another run") as refused:
            coterie.simulate(IFCA(k=2), *digits, resume=True, **settings)
        seen.append(str(refused.value))
        render_run(tmp_path / "r")  # looking at it needs no lock

    run = coterie.simulate(IFCA(k=2), *digits, on_round=resume_meanwhile, **settings)
    assert len(seen) == 3
    assert f"process {os.getpid()}" in seen[0]
    lines = (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
    again = coterie.simulate(IFCA(k=2), *digits, resume=True, **settings)
    assert again.metrics == run.metrics


def test_a_grid_locks_its_folder_too(digits, tmp_path):
    settings = {"folder": tmp_path / "r", "rounds": 2, "starts": 2}

    def resume_meanwhile(record, run):
        with pytest.raises(CoterieError, match="is in use by another run"):
            coterie.simulate(FedAvg(), *digits, resume=True, **settings)

    coterie.simulate(FedAvg(), *digits, on_round=resume_meanwhile, **settings)
    coterie.simulate(FedAvg(), *digits, resume=True, **settings)


def test_a_refused_resume_leaves_the_folder_free(digits, tmp_path):
    settings = {"folder": tmp_path / "r", "rounds": 1}
    coterie.simulate(FedAvg(), *digits, **settings)
    for wrong in (FedAvg(lr=0.3), FedAvg(lr=0.4)):
        with pytest.raises(CheckpointError, match="belongs to another run") as kept:
            coterie.simulate(wrong, *digits, resume=True, **settings)
        assert kept.traceback  # whose frames still hold the run
    coterie.simulate(FedAvg(), *digits, resume=True, **settings)


RESUME = ["-m", "coterie", "run", "--resume"]


def test_of_two_resumes_at_once_one_is_refused(tmp_path):
    words = ["run", "local", "rotated-digits", "clients=8", "rounds=60", "checkpoint=1"]
    folder = tmp_path / "r"
    plan = make_plan(words[1:])
    run = plan.run(plan.config())
    run.use(folder)
    run.complete(lambda record, run: run.stop())
    both = [
        subprocess.Popen([sys.executable, *RESUME, str(folder)], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[1].decode() for process in both]
    codes = [process.returncode for process in both]
    if sorted(codes) == [0, 2]:
        assert "is in use by another run" in said[codes.index(2)]
        assert "Traceback" not in said[codes.index(2)]
    else:  # the one was done before the other came
        assert codes == [0, 0]
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 61))


@pytest.mark.parametrize("words", [[], ["starts=2"]])
def test_a_run_on_a_table_keeps_its_schema(tmp_path, words):
    rows = [f"{client},{x},{x % 2}" for client in "abc" for x in range(6)]
    (tmp_path / "rows.csv").write_text("\n".join(["client,x,label", *rows]) + "\n")
    plan = make_plan(["fedavg", str(tmp_path / "rows.csv"), "rounds=1", *words])
    run = plan.run(plan.config())
    run.use(tmp_path / "run")
    run.complete()
    assert coterie.read_schema(tmp_path / "run" / "schema.json") == plan.build().schema


def test_a_run_on_no_table_has_no_schema(tmp_path, digits):
    coterie.simulate(FedAvg(), *digits, rounds=1, folder=tmp_path / "run")
    assert not (tmp_path / "run" / "schema.json").exists()


@pytest.mark.parametrize("left", ["rounds.jsonl", "result.json", "map.npz"])
def test_a_run_whose_checkpoint_is_gone_does_not_begin_anew(digits, tmp_path, left):
    settings = {"folder": tmp_path / "r", "rounds": 4}
    coterie.simulate(IFCA(k=2), *digits, **settings)
    for path in (tmp_path / "r").iterdir():
        if path.name not in ("config.json", left):
            path.unlink()
    before = (tmp_path / "r" / left).read_bytes()
    with pytest.raises(CheckpointError, match=r"but no checkpoint.safetensors to go on from"):
        coterie.simulate(IFCA(k=2), *digits, resume=True, **settings)
    assert (tmp_path / "r" / left).read_bytes() == before


def test_a_run_killed_before_its_first_round_begins_anew(digits, tmp_path):
    settings = {"folder": tmp_path / "r", "rounds": 2}
    coterie.simulate(FedAvg(), *digits, **settings)
    for path in (tmp_path / "r").iterdir():
        if path.name != "config.json":
            path.unlink()
    assert coterie.simulate(FedAvg(), *digits, resume=True, **settings).rounds == 2


def test_data_that_changed_under_a_run_are_noticed_also_in_a_single_row(tmp_path):
    federation, task = coterie.load("rotated-digits", clients=4)
    settings = {"folder": tmp_path / "r", "rounds": 1}
    coterie.simulate(FedAvg(), federation, task, **settings)
    assert len(federation.train.y) > 1000  # more rows than the fingerprint looks at
    federation.train.x[1, 0, 0] += 1
    with pytest.raises(CheckpointError, match="the data have changed since the run"):
        coterie.simulate(FedAvg(), federation, task, resume=True, **settings | {"rounds": 2})


def test_another_version_of_coterie_goes_on_and_says_so(digits, tmp_path, monkeypatch):
    settings = {"folder": tmp_path / "r"}
    monkeypatch.setattr("coterie.experiment.folder.__version__", "0.0.1")
    coterie.simulate(FedAvg(), *digits, rounds=1, **settings)
    monkeypatch.undo()
    with pytest.warns(CoterieWarning, match=r"the rounds so far are of coterie 0.0.1"):
        coterie.simulate(FedAvg(), *digits, rounds=2, resume=True, **settings)


@pytest.mark.parametrize("config", ["[]", "{}", '{"settings": 3}', "[" * 100_000, "\ufffd", ""])
def test_a_config_that_describes_no_run_is_one_sentence(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"config.json (cannot be read|does not describe)"):
        RunFolder.existing(tmp_path).config  # noqa: B018


def test_a_run_killed_as_it_began_leaves_no_folder_that_cannot_be_used(digits, tmp_path):
    (tmp_path / ".config.json.1.tmp").write_text('{"coterie"')
    coterie.simulate(IFCA(k=2), *digits, folder=tmp_path, rounds=1)
    assert (tmp_path / "result.json").exists()


@pytest.mark.parametrize("name", ["result.json", "clients.json", "quality.json", "config.json"])
def test_any_flipped_bit_of_a_finished_run_is_named_by_the_report(digits, tmp_path, name, capsys):
    coterie.simulate(IFCA(k=2), *digits, folder=tmp_path / "r", rounds=1)
    path = tmp_path / "r" / name
    whole = path.read_bytes()
    for place in range(0, len(whole), len(whole) // 40):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(bytes(changed))
        damaged = read_run(tmp_path / "r").damaged
        assert damaged == (name,), (place, damaged)
    path.write_bytes(whole)
    assert read_run(tmp_path / "r").damaged == ()
    assert main(["report", str(tmp_path / "r")]) == 0
    path.write_bytes(whole.replace(b"1", b"2"))
    assert main(["report", str(tmp_path / "r")]) == 2
    assert f"without {name} of" in capsys.readouterr().err


def test_files_of_a_finished_run_that_are_gone_and_damaged_checksums_are_named(digits, tmp_path):
    folder = tmp_path / "r"
    coterie.simulate(IFCA(k=2), *digits, folder=folder, rounds=1)
    (folder / "quality.json").unlink()
    assert read_run(folder).damaged == ("quality.json (missing)",)
    (folder / "rounds.crc").write_text("nothing that ends")  # as if lines had no checksums
    assert read_run(folder).damaged == ("rounds.crc", "quality.json (missing)")
    text = (folder / "outcome.crc").read_text()
    (folder / "outcome.crc").write_text(text.replace("config", "confog"))
    assert read_run(folder).damaged == ("outcome.crc",)
    assert read_run(folder).result  # what is whole as far as anybody knows is shown
    (folder / "outcome.crc").unlink()  # as folders of before had none
    assert read_run(folder).damaged == ()


def test_a_run_that_goes_on_has_no_checksums_of_before(digits, tmp_path):
    settings = {"folder": tmp_path / "r", "checkpoint": 1}
    coterie.simulate(IFCA(k=2), *digits, rounds=1, **settings)
    with pytest.raises(Stop):
        coterie.simulate(
            IFCA(k=2), *digits, rounds=3, resume=True, on_round=stop_after(2), **settings
        )
    assert read_run(tmp_path / "r").damaged == ()
    coterie.simulate(IFCA(k=2), *digits, rounds=3, resume=True, **settings)
    assert (tmp_path / "r" / "outcome.crc").exists()
    assert read_run(tmp_path / "r").damaged == ()


def test_where_there_is_a_result_there_is_the_whole_outcome(digits, tmp_path, monkeypatch):
    folder, real = tmp_path / "r", RunFolder.write
    seen = []

    def write(self, name, content):
        real(self, name, content)
        seen.append({path.name for path in folder.iterdir()})

    monkeypatch.setattr(RunFolder, "write", write)
    coterie.simulate(IFCA(k=2), *digits, folder=folder, rounds=1)
    with_result = [names for names in seen if "result.json" in names]
    assert len(with_result) == 1
    assert {"clients.json", "quality.json", "models.safetensors"} <= with_result[0]
