"""The same rounds over a network as in a simulation. The grid is in-process."""

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.sample_kinds import sample_kinds
from coterie.flower.clients import placeholder_federation
from coterie.flower.replies import read_enrolment
from coterie.flower.server import run_server
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


@pytest.mark.parametrize(
    "words",
    [
        IFCA,
        ["ifca", *DIGITS, "k=2", "start=random", "rounds=2", "stable=1", "lost=0.3"],
        ["fesem", *DIGITS, "k=2", "rounds=2", "warm_rounds=1", "fraction=0.5"],
        ["fpfc", *DIGITS, "lam=0.5", "rounds=3", "fraction=0.5"],
        ["fpfc", *DIGITS, "path_rounds=1", "lambdas=2", "rounds=1"],
        ["k-fed", "gaussian-clusters"],
        ["cfl", *DIGITS, "rounds=3", "wait=1", "batch=4"],
        ["local", *DIGITS, "rounds=2", "fraction=0.5"],
        ["ditto", *DIGITS, "rounds=2"],
        ["oracle", *DIGITS, "rounds=2"],
        ["ifca", *DIGITS, "k=2", "share=frozen", "trunk_rounds=1", "start=random", "rounds=1"],
    ],
    ids=lambda words: " ".join(words[:1] + words[6:9]),
)
def test_a_run_over_a_network_is_the_simulated_one(tmp_path, words):
    one, other = deployed(tmp_path, words), simulated(words)
    alike(one, other)
    assert metrics_alike(one.metrics, other.metrics, 1e-5)
    assert one.bytes.total("down") == other.bytes.total("down")
    assert one.bytes.total("up") <= other.bytes.total("up"), "a node folds where that is less"
    assert (tmp_path / "run" / "report.html").exists()
    record = one.records[-1]
    assert (record["refused"], record["silent"]) == (0, 0)


def test_one_message_to_each_node_in_a_round(tmp_path):
    words = [*IFCA[:-1], "rounds=4", "evaluate=4"]
    app = make_app(*words, out=str(tmp_path / "run"), nodes=3)
    grid = FakeGrid(app, thirds(tmp_path))
    run_server(grid, app.config(), "1")
    sent = [decode_packet(message.content).header for _, message in grid.sent]
    rounds = [header["round"] for header in sent if header["do"] == "step" and header["trains"]]
    assert sorted(rounds) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_a_placeholder_looks_like_the_samples_of_the_node(enrolment):
    app, reply = enrolment
    node = read_enrolment(app, reply)
    assert (node.names, node.sizes.tolist()) == (["0", "1"], [16, 16])
    made = placeholder_federation(app, node)
    assert sample_kinds(made.train.x) == node.inputs
