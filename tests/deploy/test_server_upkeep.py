"""Keys that cannot be registered at first, and runs that a server goes on with."""

import os
from dataclasses import replace

import psutil
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import CoterieError
from coterie.deploy import server_upkeep
from coterie.deploy.flwr_internals import RunStatus
from coterie.deploy.server_upkeep import ATTEMPTS, Keyring, UnfinishedRuns
from coterie.flower.unfinished import Note, note_folder, read_note, write_note


class Control:
    """A SuperLink that refuses for a while, and runs with a status."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked, self.started, self.stopped = [], [], []
        self.status = RunStatus(False, False, "running", False, "")

    def register_node(self, path):
        self.asked.append(path.stem)
        answer = self.answers.pop(0) if self.answers else None
        if answer:
            raise CoterieError(answer)

    def run_status(self, run):
        return self.status

    def stop_run(self, run):
        self.stopped.append(run)

    def start_run(self, bundle, settings):
        self.started.append(settings)
        return 100 + len(self.started)


def test_a_key_whose_registration_fails_once_is_tried_again(tmp_path):
    (tmp_path / "one.pub").write_text("key")
    control, said = Control("it does not answer", "it does not answer"), []
    keyring = Keyring(tmp_path, said.append)
    for _ in range(5):
        keyring.register(control)
    assert control.asked == ["one"] * 3
    assert said == ["node one may not join: it does not answer", "node one may join"]


def test_a_registration_whose_answer_was_lost_is_no_failure(tmp_path):
    (tmp_path / "one.pub").write_text("key")
    control, said = Control("no answer", "refused: Public key already in use."), []
    keyring = Keyring(tmp_path, said.append)
    for _ in range(3):
        keyring.register(control)
    assert said[-1] == "node one may join"
    assert len(control.asked) == 2
    stranger = Keyring(tmp_path, said.append)  # of two files with one key the second is refused
    stranger.register(Control("refused: Public key already in use."))
    assert "may not join" in said[-1]


DEAD = {"pid": 2**22, "born": 1.0}
ALIVE = {"pid": os.getpid(), "born": psutil.Process().create_time()}


@pytest.fixture
def unfinished(tmp_path, monkeypatch):
    """The runs of a server, of which one is noted by its SuperLink `here`."""
    monkeypatch.setattr(server_upkeep, "build_bundle", lambda app: b"bundle")
    said = []
    runs = UnfinishedRuns(tmp_path / "notes", "here", said.append)
    runs.said, runs.out = said, tmp_path / "run"
    runs.out.mkdir()
    runs.home = note_folder(runs.folder, runs.out)
    runs.home.mkdir(parents=True)
    runs.note = Note(str(runs.out), 7, "here")
    return runs


def test_after_a_reboot_a_run_goes_on_by_itself(unfinished):
    write_note(unfinished.home, replace(unfinished.note, link="before", **DEAD))
    control = Control()
    for _ in range(3):
        unfinished.go_on(control)
    assert control.started == [{"out": str(unfinished.out), "resume": True}]
    assert control.stopped == []  # this SuperLink does not know the run of the other
    assert "goes on after round 0" in unfinished.said[0]
    assert read_note(unfinished.home) == replace(unfinished.note, run=101, attempts=1)


def test_a_run_whose_server_app_was_killed_is_stopped_for_the_nodes_and_goes_on(unfinished):
    write_note(unfinished.home, replace(unfinished.note, **DEAD))
    control = Control()
    unfinished.go_on(control)
    assert control.stopped == [7]
    assert len(control.started) == 1


@pytest.mark.parametrize("link", ["here", "before"])
def test_a_run_that_runs_is_left_alone(unfinished, link):
    write_note(unfinished.home, replace(unfinished.note, link=link, **ALIVE))
    control = Control()
    unfinished.go_on(control)
    assert (control.started, control.stopped) == ([], [])


def test_a_run_that_was_stopped_by_its_user_is_not_gone_on_with(unfinished):
    write_note(unfinished.home, replace(unfinished.note, **DEAD))
    control = Control()
    control.status = RunStatus(True, False, "stopped", True, "")
    unfinished.go_on(control)
    assert control.started == []
    assert read_note(unfinished.home) is None


def test_a_run_that_dies_again_and_again_in_one_round_is_given_up(unfinished):
    write_note(unfinished.home, replace(unfinished.note, **DEAD))
    control = Control()
    control.status = RunStatus(True, False, "failed", False, "")
    for _ in range(ATTEMPTS + 2):
        unfinished.go_on(control)
    assert len(control.started) == ATTEMPTS
    assert f"is given up: it ended {ATTEMPTS} times in one round" in unfinished.said[-1]


def test_a_run_that_gets_on_is_never_given_up(unfinished):
    write_note(unfinished.home, replace(unfinished.note, **DEAD))
    control = Control()
    control.status = RunStatus(True, False, "failed", False, "")
    for number in range(1, 3 * ATTEMPTS):
        (unfinished.out / "rounds.jsonl").write_text("{}\n" * number)
        unfinished.go_on(control)
    assert len(control.started) == 3 * ATTEMPTS - 1


def test_what_cannot_be_read_or_started_is_said_and_others_go_on(unfinished):
    (unfinished.folder / "a").mkdir()
    (unfinished.folder / "a" / "note.json").write_text("{")
    write_note(unfinished.home, replace(unfinished.note, **DEAD))

    class Refuses(Control):
        def start_run(self, bundle, settings):
            raise CoterieError("the SuperLink does not answer")

    for _ in range(3):
        unfinished.go_on(Refuses())
    assert unfinished.said == [
        f"the run in {unfinished.out} cannot go on: the SuperLink does not answer"
    ]
    unfinished.go_on(control := Control())
    assert len(control.started) == 1
