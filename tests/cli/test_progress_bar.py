"""What a run shows while it goes on."""

import pytest

import coterie
from coterie.cli import progress_bar as progress
from coterie.cli.progress_bar import RunProgressBar, outcome_text


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def record(round):
    return {"round": round, "metrics": {"accuracy": 0.5}, "sizes": [3, 5]}


def test_a_long_start_is_told_every_ten_seconds(clock, capsys):
    shown = RunProgressBar("ifca on femnist", rounds=20, done=0)
    for second in range(25):
        clock[0] = float(second)
        shown.on_reply(0, 3 * second)
    assert capsys.readouterr().err.splitlines() == [
        "ifca on femnist: start  30 replies",
        "ifca on femnist: start  60 replies",
    ]
    clock[0] = 31.0
    shown.on_reply(1, 4)
    assert capsys.readouterr().err == "ifca on femnist: round 1/20  4 replies\n"


def test_the_time_left_is_that_of_rounds_without_the_start(clock, capsys):
    shown = RunProgressBar("ifca on femnist", rounds=20, done=0)
    clock[0] = 300.0
    shown.on_reply(1, 1)
    clock[0] = 330.0
    shown.on_round(record(1))
    # 30 s for a round, 19 to go.
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("round 1/20  accuracy 50.0%  clusters 2: 3 5  9:30 left")
    )


def test_replies_are_not_told_once_rounds_are(clock, capsys):
    shown = RunProgressBar("ifca on femnist", rounds=20, done=0)
    shown.on_round(record(1))
    clock[0] = 60.0
    shown.on_reply(2, 5)
    assert capsys.readouterr().err == ""


def test_the_outcome_tells_how_many_clients_are_in_each_cluster_also_where_who_is_withheld():
    data = coterie.load("rotated-digits", clients=8)
    for withhold in ("nothing", "clusters"):
        run = coterie.simulate(coterie.IFCA(k=4), *data, rounds=2, withhold=withhold)
        assert "  clusters  4: 2 2 2 2" in outcome_text(run)


def test_the_outcome_tells_who_attacks_and_who_was_left_out():
    data = coterie.load("rotated-digits", clients=8)
    settings = {"attack": "boosted", "factor": 100, "attackers": 0.25, "screen": "norm"}
    run = coterie.simulate(coterie.FedAvg(), *data, rounds=2, **settings)
    text = outcome_text(run)
    share = run.metrics["attackers_accuracy"]
    assert f"  attackers 2 of 8 clients; {share:.2%} of their samples" in text
    line = "  excluded  25.0% of the clients of the last round; precision 1.00, recall 1.00"
    assert line in text
    screened = coterie.simulate(coterie.FedAvg(), *data, rounds=2, screen="norm")
    assert "  excluded  0.0% of the clients of the last round\n" in outcome_text(screened)
    assert "attackers" not in outcome_text(screened)
    assert "excluded" not in outcome_text(coterie.simulate(coterie.FedAvg(), *data, rounds=1))


def test_where_samples_are_clustered_the_line_says_so(clock, capsys):
    shown = RunProgressBar("uifca on digits", rounds=1, done=0)
    shown.on_round(record(1) | {"counted": "samples"})
    assert "clusters 2: 3 5 samples  " in capsys.readouterr().err


def test_where_clusters_are_not_known_in_a_round_the_line_says_nothing_of_them(clock, capsys):
    shown = RunProgressBar("cluster-gan on digits", rounds=1, done=0)
    shown.on_round(record(1) | {"sizes": [0, 0]})
    line = capsys.readouterr().err
    assert "round 1/1" in line
    assert "clusters" not in line
