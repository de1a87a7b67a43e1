"""The short part of the fault suite; `make faults` is the whole of it."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import commands, files, folders, relay, tables
from tests.faults.clock import SettableClock
from tests.faults.command import Ended, Hang, at_most


@pytest.fixture(scope="module")
def whole():
    yield folders.whole_folder("ifca", 0, False)
    for folder in folders.homes:
        shutil.rmtree(folder, ignore_errors=True)
    folders.whole_folder.cache_clear()


@pytest.mark.parametrize("seed", [*range(20)])
def test_a_damaged_folder_is_a_sentence(seed, tmp_path, whole):
    assert folders.try_folder(seed, tmp_path, ("ifca", "table")) == ""


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_a_malformed_command_is_a_sentence(first, tmp_path, monkeypatch, whole):
    monkeypatch.chdir(tmp_path)
    for seed in range(first, first + 20):
        assert commands.try_command(seed, tmp_path) == ""


def test_files_of_a_users_own_are_a_sentence(tmp_path):
    for seed in range(20):
        assert files.try_file(seed, tmp_path) == ""


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_a_malformed_table_is_a_sentence(first, tmp_path):
    for seed in range(first, first + 20):
        assert tables.try_table(seed, tmp_path) == ""


@pytest.mark.parametrize("seed", range(12))
def test_a_hostile_node_ends_no_run(seed, tmp_path):
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from tests.faults import replies

    assert replies.try_replies(seed, tmp_path) == ""


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_a_hostile_server_learns_nothing_that_is_not_offered(first, tmp_path):
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from tests.faults import servers

    for seed in range(first, first + 10):
        assert servers.try_server(seed, tmp_path) == ""


@pytest.mark.filterwarnings("ignore::coterie.core.errors.CoterieWarning")
def test_a_node_that_protects_nothing_is_found_out(tmp_path):
    """What the two tests of hostile servers look for, they find where there is something."""
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from tests.faults import servers

    faults = [servers.try_server(seed, tmp_path, protected=False) for seed in range(30)]
    assert any("values of diagnosis" in fault for fault in faults)
    site = servers.make_site(tmp_path / "small", True)
    bare = replace(site.file, smallest_client=1, map_samples=0)
    assert servers.recovered_rows(bare, site, "local", 20, 0) == 1


@pytest.mark.filterwarnings("ignore::coterie.core.errors.CoterieWarning")
@pytest.mark.parametrize("seed", [0, 1])
def test_no_row_is_recovered_from_the_map(seed, tmp_path):
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from tests.faults import servers

    assert servers.try_map(seed, tmp_path) == ""


@pytest.mark.parametrize(
    ("mode", "amount", "least", "most"),
    [("pass", 0.0, 0.0, 0.5), ("delay", 0.1, 0.2, 3.0), ("loss", 0.4, 0.19, 60.0)],
)
def test_a_relay_is_shown_to_delay_and_to_lose(mode, amount, least, most):
    found = relay.measure(mode, amount, 12, seed=1, most=60)
    assert len(found) == 12
    assert least <= sorted(found)[6] <= most  # loss: a retransmission, two times of three
    if mode == "loss":
        assert min(found) < relay.RETRANSMIT  # and some are not lost


@pytest.mark.parametrize("mode", ["cut", "reset"])
def test_a_relay_is_shown_to_cut_and_to_reset(mode):
    assert relay.measure(mode, 0.0, 3) == [float("inf")]


def test_a_clock_is_shown_to_be_set(tmp_path):
    clock = SettableClock(tmp_path)
    if not clock.works:
        pytest.skip("there is no C compiler: steps of a clock are not tried")
    clock.set(3600)
    code = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp())"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **clock.environment},
        capture_output=True,
        text=True,
    )
    for seconds in said.stdout.split():
        assert 3590 < float(seconds) - time.time() < 3700


@pytest.mark.slow
def test_a_deployment_outlives_the_nemesis(monkeypatch):
    """A killed worker, then a killed ServerApp: with all the time that a busy machine may need."""
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from tests.faults import processes

    monkeypatch.setattr(processes, "RECOVER_SECONDS", processes.PATIENCE)
    monkeypatch.setattr(processes, "BEGIN_SECONDS", processes.PATIENCE)
    nemesis = processes.Nemesis(0)
    try:
        assert processes.try_node(nemesis, processes.FAULTS.index("kill worker")) == ""
        assert processes.try_end(nemesis, 1) == ""
    finally:
        nemesis.close()
    assert not nemesis.deployment.processes()


@pytest.mark.parametrize(
    ("name", "missed", "after", "fault"),
    [
        ("cut", [{"0, 1": "away"}], 20.0, ""),
        ("cut", [{"0, 1": "away"}], 40.0, "a round was missed 40 s after the fault was over"),
        ("cut", [{"0, 1": "away", "4, 5": "late"}], 5.0, "clients 4, 5 of another node missed"),
        ("delay", [{"0, 1": "late"}], 5.0, "1 rounds were missed, though it could answer"),
        ("delay", [], 0.0, ""),
    ],
)
def test_the_checker_knows_who_may_miss_a_round_and_for_how_long(name, missed, after, fault):
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from tests.faults.processes import judge

    found = judge(3, name, 1, [{"missing": who} for who in missed], after)
    assert (fault in found and "seed 3" in found) if fault else not found


def test_killed_runs_go_on_and_folders_are_shared():
    """In a process of its own, since it forks: by `make faults` itself, from its front door."""
    words = [sys.executable, "-m", "tests.faults", "kills=4", "disks=2", "shared=1", "seed=1"]
    root = Path(__file__).parents[2]
    found = subprocess.run(words, capture_output=True, text=True, cwd=root)
    assert found.returncode == 0, found.stderr
    lines = [line for line in found.stdout.splitlines() if line.startswith("|")][2:]
    assert [line.split("|")[3].strip() for line in lines] == ["0", "0", "0"]


def test_a_fork_that_waits_is_told_from_one_that_is_given_no_time(monkeypatch):
    monkeypatch.setattr(Ended, "forked", True)
    monkeypatch.setattr("tests.faults.command.main", lambda words: time.sleep(60))
    assert Ended([], 0.5).fault.startswith("HANG no end after 0.5 s")
    monkeypatch.setattr("tests.faults.command.main", lambda words: os.kill(os.getpid(), 9))
    assert Ended([]).fault.startswith("KILLED by signal 9")
    monkeypatch.setattr("tests.faults.command.main", lambda words: 1 // 0)
    assert "ZeroDivisionError" in Ended([]).fault


def test_what_hangs_and_what_is_no_sentence_is_told():
    with pytest.raises(Hang), at_most(0.1):
        os.read(os.pipe()[0], 1)
    assert Ended(["run", "nothing"]).fault == ""
    assert Ended(["run", "nothing"]).code == 2
