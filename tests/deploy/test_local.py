"""Deployments on this machine: real processes, real TLS, and nothing left of them afterwards."""

import json
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy.local import RoundRecords, first_to_end, run_local
from coterie.deploy.processes import Processes, find_marked

from .echo import worker, write_echo
from .helpers import IDLE, kill, linux, python, until


@linux
def test_the_process_that_was_killed_is_the_cause(tmp_path):
    """A worker whose SuperNode is killed gives up by itself; both are seen at the same time."""
    with Processes(tmp_path) as processes:
        gave_up = processes.start("worker", python("raise SystemExit(1)"))
        killed = processes.start("supernode", python("import time; time.sleep(600)"))
        os.kill(killed.process.pid, signal.SIGKILL)
        assert gave_up.ends_within(10)
        assert killed.ends_within(10)
        assert first_to_end([gave_up, killed]) is killed
        assert first_to_end([gave_up]) is gave_up


@linux
@pytest.mark.slow
def test_a_run_goes_on_without_a_node_that_was_killed_until_it_is_back(place):
    write_echo(place.app, rounds=0)  # until there is a file "enough"
    one, two = (str(node) for node in place.nodes)
    both = sorted([one, two])
    victims = [("node-1.secret", "coterie.deploy.supernode"), ("node-2.ready",)]
    seen = []  # who took part, where that changed

    def on_round(record):
        if seen[-1:] == [record["nodes"]]:
            return
        seen.append(record["nodes"])
        if record["nodes"] == both:
            if victims:
                kill(place.mark, *victims.pop(0))
            else:
                (place.out / "enough").touch()

    code = run_local(
        place.app,
        place.nodes,
        out=place.out,
        show=place.said.append,
        on_round=on_round,
        logs=place.logs,
        worker=python(worker()),
    )
    assert code == 0
    assert seen == [both, [two], both, [one], both]
    assert place.said[1:] == [
        "node-1 is started again: node-1 was killed by signal 9",
        "node-2 is started again: node-2-worker was killed by signal 9",
        "the run is complete",
    ]
    # It was let in at once, and not only when its heartbeats had been missed.
    said = (place.logs / "node-1.log").read_text()
    assert said.count("SuperNode ID:") == 2
    assert "Failed to activate" not in said
    assert place.nothing_is_left()


@linux
@pytest.mark.slow
def test_a_run_that_fails_says_why_and_leaves_nothing(place):
    # A round succeeds, in the next one the client step fails, and the server cannot do without it.
    records = []
    code = run_local(
        place.app,
        place.nodes[:1],
        out=place.out,
        show=place.said.append,
        on_round=records.append,
        worker=python(worker(fails_at=1)),
    )
    assert code == 1
    assert [record["round"] for record in records] == [0]
    assert place.said[-1] == "the run failed: ValueError: 1 is too much"
    assert place.nothing_is_left()


# Deploys as a program of its own: app, out, node.
PROGRAM = f"""
import signal, sys
from pathlib import Path
from coterie.core.errors import CoterieError
from coterie.deploy.local import run_local
signal.signal(signal.SIGINT, signal.default_int_handler)
app, out, node = map(Path, sys.argv[1:])
show = lambda line: print(line, flush=True)
try:
    run_local(app, [node], out=out, show=show, worker=[sys.executable, "-c", {IDLE!r}])
except KeyboardInterrupt:
    show("interrupted")
except CoterieError as error:
    show(str(error))
"""


@linux
@pytest.mark.slow
@pytest.mark.parametrize("event", ["SIGTERM", "SIGKILL", "death of the SuperLink"])
def test_an_interrupted_deployment_leaves_nothing(place, event):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, place.app, place.out, place.nodes[1]],
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        place.said.append(program.stdout.readline())
        assert "TLS and node keys" in place.said[0]
        until(lambda: len(find_marked(place.mark)) >= 5)  # we, SuperLink, SuperExec, node, worker
        if event.startswith("SIG"):
            program.send_signal(getattr(signal, event))
        else:
            kill(place.mark, "coterie.deploy.superlink")
        last = program.stdout.read()
    if event == "SIGKILL":  # we cannot clean up, but no process lives on
        until(lambda: not find_marked(place.mark), seconds=15)
        return
    assert program.returncode == 0
    assert (
        "interrupted" if event.startswith("SIG") else "superlink was killed by signal 9"
    ) in last
    assert place.nothing_is_left()


@linux
def test_a_worker_that_cannot_begin_is_quoted_and_nothing_is_left(place):
    with pytest.raises(CoterieError, match=r"(?s)node-1-worker ended with code 2.*no column"):
        run_local(
            place.app,
            place.nodes,
            out=place.out,
            show=place.said.append,
            worker=python("import sys; print('no column `age`'); sys.exit(2)"),
        )
    assert place.nothing_is_left()


def test_rounds_are_told_once_and_only_when_complete(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n')
    records = RoundRecords(path)
    assert records.read_new() == []  # they were there before
    with open(path, "a") as file:
        file.write('{"round": 3}\n{"rou')
    assert records.read_new() == [{"round": 3}]
    with open(path, "a") as file:
        file.write('nd": 4}\n')
    assert records.read_new() == [{"round": 4}]
    path.write_text('{"round": 1}\n')  # a resumed run goes back to its checkpoint
    assert records.read_new() == []
    with open(path, "a") as file:
        file.write(json.dumps({"round": 2}) + "\n")
    assert records.read_new() == [{"round": 2}]


def test_a_run_folder_that_is_not_there_yet_has_no_rounds(tmp_path):
    assert RoundRecords(tmp_path / "rounds.jsonl").read_new() == []


def test_a_node_file_that_is_not_there_is_named_before_anything_starts(place):
    with pytest.raises(SettingError, match=r"there is no node file .*three\.toml"):
        run_local(place.app, [place.app / "three.toml"], out=place.out)
    with pytest.raises(SettingError, match="at least one node"):
        run_local(place.app, [], out=place.out)
