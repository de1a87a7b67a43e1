"""The note that a ServerApp leaves of its run, by how the run ends."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import CoterieError
from coterie.flower.app import read_app, write_app_files
from coterie.flower.unfinished import FOLDER, Note, note_folder, noted, read_note
from tests.flower.fake import IFCA, make_app


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Do a run that is noted, and that ends with an error if one is given; the note's folder."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "notes"))
    monkeypatch.setenv("FLWR_HOME", "link")
    app, out = make_app(*IFCA, out=str(tmp_path / "run"), nodes=3), tmp_path / "run"
    home = note_folder(tmp_path / "notes", out)

    def do(error=None, number=7):
        with noted(out, number, lambda folder: write_app_files(app, folder)):
            note = read_note(home)
            assert (note.run, note.link, note.pid) == (number, "link", os.getpid())
            assert note.alive
            assert read_app(home / "app").config() == app.config()
            if error:
                raise error
        return home

    do.home = home
    return do


def test_a_run_that_has_finished_leaves_no_note(run):
    assert not run().exists()


def test_a_run_that_fails_leaves_none_for_it_would_fail_again(run):
    with pytest.raises(CoterieError):
        run(CoterieError("no such column"))
    assert not run.home.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_run_that_is_ended_from_outside_leaves_its_note(run, error):
    with pytest.raises(error):
        run(error())
    assert read_note(run.home).run == 7
    run(number=8)
    assert not run.home.exists()


def test_without_a_folder_nothing_is_noted(run, monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER)
    with noted(tmp_path / "run", 7, lambda folder: pytest.fail("an app was written")):
        assert not run.home.exists()


def test_a_process_that_was_killed_and_not_asked_for_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note = Note("run", 7, "link", child.pid, psutil.Process(child.pid).create_time())
    assert note.alive
    assert not replace(note, born=note.born + 1).alive  # another process with its number
    child.kill()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not note.alive
    child.wait()
    assert not note.alive
