"""A run goes on after its server has died."""

from functools import wraps
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.clients import is_client_step
from coterie.core.errors import CheckpointError, CoterieError
from coterie.flower.wire import decode_packet
from tests.flower.fake import (
    DIGITS,
    IFCA,
    FakeGrid,
    alike,
    deployed,
    make_app,
    metrics_alike,
    simulated,
    thirds,
)


class Died(Exception):
    """The end of a server."""


@pytest.mark.parametrize("checkpoint", [1, 2])
@pytest.mark.parametrize(
    "words",
    [IFCA, ["fpfc", *DIGITS, "lam=0.5", "fraction=0.5"], ["local", *DIGITS]],
    ids=lambda words: words[0],
)
def test_a_run_goes_on_where_its_server_died(tmp_path, words, checkpoint):
    words = [*[word for word in words if "rounds=" not in word], "rounds=5"]
    words.append(f"checkpoint={checkpoint}")
    app = make_app(*words)
    grid = FakeGrid(app, thirds(tmp_path))
    push = grid.push_messages

    def die_in_the_fourth_round(messages):
        names = push(messages)  # the nodes do their work, but nobody is there to hear of it
        if any(decode_packet(m.content).header.get("round") == 3 for m in messages):
            raise Died
        return names

    grid.push_messages = die_in_the_fourth_round
    with pytest.raises(Died):
        deployed(tmp_path, words, grid=grid)
    grid.push_messages = push
    run = deployed(tmp_path, words, grid=grid, attempt="2", resume=True)
    assert run.rounds == 5
    alike(run, simulated(words))
    with pytest.raises(CoterieError, match="already holds a run; resume=true"):
        deployed(tmp_path, words, grid=grid, attempt="3")
    again = deployed(tmp_path, words, grid=grid, attempt="4", resume=True)
    alike(again, run)


def test_an_upgrade_in_the_middle_goes_on_with_the_memory_of_nodes_and_says_so(
    tmp_path, monkeypatch
):
    words = ["ditto", *DIGITS, "rounds=4", "checkpoint=1"]
    grid = FakeGrid(make_app(*words), thirds(tmp_path))
    push = grid.push_messages

    def die_in_the_third_round(messages):
        if any(decode_packet(m.content).header.get("round") == 2 for m in messages):
            raise Died
        return push(messages)

    grid.push_messages = die_in_the_third_round
    with pytest.raises(Died):
        deployed(tmp_path, words, grid=grid)
    monkeypatch.setattr("coterie.experiment.folder.__version__", "99.0")
    grid = FakeGrid(make_app(*words), thirds(tmp_path))  # nodes and server were started again
    run = deployed(tmp_path, words, grid=grid, attempt="2", resume=True)
    assert any("those to come of 99.0" in text for text in run.warnings)
    alike(run, simulated(words))


def test_a_run_with_other_settings_is_not_resumed(tmp_path):
    deployed(tmp_path, IFCA)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        deployed(tmp_path, [*IFCA, "lr=0.2"], resume=True)


def snapshot(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("words", [["fedavg", *DIGITS, "rounds=2"], ["ditto", *DIGITS, "rounds=2"]])
def test_runs_take_nothing_from_the_owner_of_a_node(tmp_path, words):
    """As it was, one run of FedAvg removed three of four folders and said nothing."""
    files = thirds(tmp_path)
    for file in files:  # `memory` is a folder that holds others
        for name in ("photos", "letters", "0a1b2c3d4e5f6071", "work"):
            (Path(file.memory) / name / "old").mkdir(parents=True)
            (Path(file.memory) / name / "old" / "kept.safetensors").write_bytes(b"precious")
    before = snapshot(tmp_path)
    grid = FakeGrid(make_app(*words), files)
    for number in range(3):
        deployed(tmp_path / f"out{number}", words, grid=grid, attempt=str(number))
    after = snapshot(tmp_path)
    assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize(
    "words",
    [["local", *DIGITS], ["ditto", *DIGITS], ["fpfc", *DIGITS, "lam=0.5"]],
    ids=lambda words: words[0],
)
def test_a_paused_run_goes_on_after_others_on_the_same_nodes(tmp_path, words):
    """As it was, local and FPFC could not go on, and Ditto began anew without a word."""
    words = [*words, "rounds=4", "checkpoint=1"]
    grid = FakeGrid(make_app(*words), thirds(tmp_path))
    push = grid.push_messages

    def pause_in_the_third_round(messages):
        names = push(messages)
        if any(decode_packet(m.content).header.get("round") == 2 for m in messages):
            raise Died
        return names

    grid.push_messages = pause_in_the_third_round
    with pytest.raises(Died):
        deployed(tmp_path, words, grid=grid)
    grid.push_messages = push
    for number, others in enumerate((words, ["fedavg", *DIGITS, "rounds=2"]), 2):
        deployed(tmp_path / f"other{number}", others, grid=grid, attempt=str(number))
    run = deployed(tmp_path, words, grid=grid, attempt="4", resume=True)
    other = simulated(words)
    alike(run, other)
    assert metrics_alike(run.metrics, other.metrics, 1e-6)


@pytest.mark.parametrize("words", [IFCA, ["fpfc", *DIGITS, "lam=0.5", "rounds=2"]])
def test_client_steps_run_on_nodes_and_nowhere_else(tmp_path, words, monkeypatch):
    """As it was, the server ran each of them itself, to learn the shapes of replies."""
    app, places = make_app(*words), []

    class Marked(FakeGrid):
        answering = 0

        def answer(self, node, message):
            self.answering = node
            reply = super().answer(node, message)
            self.answering = 0
            return reply

    grid = Marked(app, thirds(tmp_path))

    def marked(step):
        @wraps(step)
        def run(*arguments, **message):
            places.append(grid.answering)
            return step(*arguments, **message)

        return run

    kind = type(app.plan.algorithm)
    for name in dir(kind):
        if is_client_step(getattr(kind, name)):
            monkeypatch.setattr(kind, name, marked(getattr(kind, name)))
    deployed(tmp_path, words, grid=grid)
    assert set(places) == {1, 2, 3}


OVERFITTING = {
    "local": ["local", *DIGITS, "lr=4"],
    "ditto": ["ditto", *DIGITS, "lr=4"],
    "ifca": ["ifca", *DIGITS, "k=2", "lr=4"],
}


@pytest.mark.parametrize("name", OVERFITTING)
def test_the_best_round_is_kept_on_nodes_too_and_gone_back_to(tmp_path, name):
    words = [*OVERFITTING[name], "validation=0.4", "early_stopping=2", "checkpoint=2"]
    other = simulated([*words, "rounds=40"])
    assert other.ending == "early"
    grid = FakeGrid(make_app(*words), thirds(tmp_path))
    push = grid.push_messages

    def die_after_the_best(messages):
        names = push(messages)
        if any(decode_packet(m.content).header.get("round") == other.best_round for m in messages):
            raise Died
        return names

    grid.push_messages = die_after_the_best
    with pytest.raises(Died):
        deployed(tmp_path, [*words, "rounds=40"], grid=grid)
    grid.push_messages = push
    for attempt in ("2", "3"):  # the second time nothing is left to do
        run = deployed(tmp_path, [*words, "rounds=40"], grid=grid, attempt=attempt, resume=True)
        assert (run.best_round, run.rounds) == (other.best_round, other.rounds)
        assert metrics_alike(run.metrics, other.metrics, 1e-6)
        alike(run, other)
    longer = deployed(tmp_path, [*words, "rounds=50"], grid=grid, attempt="4", resume=True)
    assert longer.rounds > run.rounds  # it was trained on from its last round
    losses = [r["metrics"]["validation_loss"] for r in longer.records]
    assert longer.metrics["validation_loss"] == pytest.approx(min(losses), rel=1e-6)


def test_lost_scores_do_not_make_a_round_the_best(tmp_path):
    """Without the client that is served worst a mean is lower, and says nothing."""
    words = ["ifca", *DIGITS, "k=2", "lr=0.01", "validation=0.4"]
    other = simulated([*words, "rounds=6"])
    ids = other.evaluation.validation.serving.ids
    each = other.evaluation.validation.summary.clients["loss"]
    worst = int(ids[each.argmax()])
    grid = FakeGrid(make_app(*words), thirds(tmp_path))

    deliver = grid.deliver

    def lose_scores(node, name, reply):
        header = decode_packet(grid.sent[-1][1].content).header
        lost = header["do"] == "score" and header.get("part") == "validation"
        if lost and header["rounds"] == 3 and node == worst // 2 + 1:
            return
        deliver(node, name, reply)

    grid.deliver = lose_scores
    run = deployed(
        tmp_path, [*words, "rounds=6"], grid=grid, timeout=0.05, patience=0.2, quorum=0.5
    )
    found = [r["metrics"]["validation_loss"] for r in run.records]
    assert min(found) == found[2]
    assert run.best_round == other.best_round != 3
