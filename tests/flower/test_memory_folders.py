"""Only folders that coterie made and marked are ever changed or removed."""

import json

import pytest

from coterie.core.errors import CoterieError
from coterie.flower.memory_folders import (
    MARKER,
    RunFacts,
    find_kept,
    kept_runs,
    mark,
    open_run,
    remove_run,
    take_over,
)


def facts(run):
    return RunFacts(run, "ditto", 3)


def snapshot(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def finished(memory, name):
    path = open_run(memory, name, facts(name))
    (path / "00000001-00000001-a.safetensors").write_bytes(b"kept")
    mark(path, facts(name), finished=True)
    return path


def test_runs_that_have_finished_go_when_another_begins(tmp_path):
    one, two = finished(tmp_path, "one"), open_run(tmp_path, "two", facts("two"))
    assert not one.exists()
    three = open_run(tmp_path, "three", facts("three"))
    assert two.exists(), "it has not finished"
    assert {run.path for run in kept_runs(tmp_path)} == {two, three}
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_is_resumed_has_not_finished(tmp_path):
    finished(tmp_path, "one")
    open_run(tmp_path, "one", facts("one"))
    open_run(tmp_path, "two", facts("two"))
    assert [run.run for run in kept_runs(tmp_path)] == ["one", "two"]


@pytest.mark.parametrize("name", ["patients", "a1b2c3", ".hidden"])
def test_the_folders_of_others_stay(tmp_path, name):
    other = tmp_path / name
    (other / "deep").mkdir(parents=True)
    (other / "deep" / "table.safetensors").write_bytes(b"precious")
    (other / ".half.tmp").write_bytes(b"precious")
    (tmp_path / "file.csv").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(finished(tmp_path / "elsewhere", "run"))
    before = snapshot(tmp_path)
    for run in "abc":
        finished(tmp_path, run)
    after = snapshot(tmp_path)
    assert {path: after.get(path) for path in before} == before


def test_a_folder_that_has_the_name_of_a_run_but_no_marker_is_refused_and_left(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("precious")
    with pytest.raises(CoterieError, match="must be a folder that coterie made"):
        open_run(tmp_path, "run", facts("run"))
    assert snapshot(tmp_path).keys() == {(tmp_path / "run" / "mine.txt").relative_to(tmp_path)}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"folder": "other", "run": "r", "finished": true}']
)
def test_a_marker_that_is_not_of_this_folder_marks_nothing(tmp_path, text):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / MARKER).write_text(text)
    assert kept_runs(tmp_path) == []
    open_run(tmp_path, "run", facts("run"))
    assert (tmp_path / "copy" / MARKER).read_text() == text


def test_what_somebody_put_into_a_run_stays(tmp_path):
    path = finished(tmp_path, "run")
    (path / "notes.txt").write_text("precious")
    (path / "mine.safetensors").write_text("precious")
    (run,) = kept_runs(tmp_path)
    remove_run(run)
    assert {each.name for each in path.iterdir()} == {"notes.txt", "mine.safetensors"}
    assert kept_runs(tmp_path) == []


def test_a_memory_that_cannot_be_a_folder_is_one_sentence(tmp_path):
    (tmp_path / "memory").write_text("a file")
    with pytest.raises(CoterieError, match="the memory of the node"):
        open_run(tmp_path / "memory", "run", facts("run"))


def test_the_marker_says_whose_folder_it_is(tmp_path):
    path = finished(tmp_path, "run")
    content = json.loads((path / MARKER).read_text())
    of = {"run": "run", "algorithm": "ditto", "clients": 3}
    assert content == {"folder": "run", **of, "finished": True}


def test_a_node_that_was_replaced_is_given_what_its_predecessor_kept(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    one, two = finished(old, "one"), finished(old, "two")
    assert not one.exists()
    mark(two, facts("two"), finished=False)
    open_run(new, "two", facts("two"))  # a step was asked for, and nothing could be kept
    assert [kept.run for kept in take_over(new, old)] == ["two"]
    assert snapshot(new) == snapshot(old)
    three = finished(tmp_path / "other", "three")
    take_over(new, three)  # the folder of one run
    assert [kept.run for kept in kept_runs(new)] == ["three", "two"]
    assert not list(new.glob(".*"))


def test_what_is_kept_already_is_not_replaced_and_nothing_is_half_copied(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    finished(old, "a"), finished(new, "b")
    finished(tmp_path / "third", "b")
    (tmp_path / "third" / "b").rename(old / "b")
    before = snapshot(new)
    with pytest.raises(CoterieError, match="has something of the run b already"):
        take_over(new, old)
    with pytest.raises(CoterieError, match="must be the memory of a node"):
        take_over(new, tmp_path / "nothing")
    assert snapshot(new) == before
    with pytest.raises(CoterieError, match=r"nothing of a run c is kept .*\(runs there: b\)"):
        find_kept(new, "c")
