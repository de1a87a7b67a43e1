"""The short part of the fault suite; `make faults` is the whole of it."""

import os
import shutil

import pytest

from tests.faults import commands, files, folders, tables
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


def test_what_hangs_and_what_is_no_sentence_is_told():
    with pytest.raises(Hang), at_most(0.1):
        os.read(os.pipe()[0], 1)
    assert Ended(["run", "nothing"]).fault == ""
    assert Ended(["run", "nothing"]).code == 2
