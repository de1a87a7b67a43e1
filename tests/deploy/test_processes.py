"""Whatever way a block of processes is left, none of them lives on."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

pytest.importorskip("psutil", reason="the extra `flower` is not installed")

from coterie.core.errors import CoterieError
from coterie.deploy.processes import (
    LOOK_SECONDS,
    MARK,
    Processes,
    Pulse,
    find_marked,
    free_ports,
    is_listening,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")

SLEEP = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf');" + (
    "time.sleep(600)"
)
# Starts a child in a session of its own, as the SuperLink does, and says so.
PARENT = (
    "import subprocess, sys, time;"
    f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True);"
    "print('started', flush=True); time.sleep(600)"
)


def python(code):
    return [sys.executable, "-c", code]


def said(child, text):
    return lambda: text in child.log.read_text()


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def with_grandchild(processes):
    child = processes.start("parent", python(PARENT))
    child.wait_for(said(child, "started"), "start its child", 10)
    until(lambda: len(processes.alive()) == 2)
    return child


def test_grandchildren_in_other_sessions_end_too(tmp_path):
    with Processes(tmp_path) as processes:
        with_grandchild(processes)
    assert not find_marked(processes.mark)


def test_orphans_of_a_killed_child_end_too(tmp_path):
    with Processes(tmp_path) as processes:
        child = with_grandchild(processes)
        child.process.kill()
        child.process.wait()
        assert len(processes.alive()) == 1
    assert not find_marked(processes.mark)


def test_one_that_does_not_listen_is_killed(tmp_path):
    with Processes(tmp_path, stop_seconds=0.3) as processes:
        child = processes.start("deaf", python(DEAF))
        child.wait_for(said(child, "deaf"), "start", 10)
        begin = time.monotonic()
    assert 0.3 <= time.monotonic() - begin < 2
    assert child.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("alone", [False, True])
def test_one_that_is_stopped_ends_as_soon_as_others(tmp_path, alone):
    begin = time.monotonic()
    with Processes(tmp_path) as processes:
        child = processes.start("sleep", python(SLEEP))
        child.process.send_signal(signal.SIGSTOP)
        if alone:
            processes.end(child)
            assert not child.alive
    assert time.monotonic() - begin < processes.stop_seconds / 2
    assert not child.alive


def test_a_pulse_counts_looks_and_neither_the_clock_nor_a_pause_of_everything(
    tmp_path, monkeypatch
):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file = tmp_path / "ready"
    file.touch()
    pulse = Pulse(file)
    for _ in range(5):
        now[0] += 1
        pulse.look()
    assert pulse.silence == 5
    now[0] += 3600  # the machine was asleep
    assert pulse.look() == 5 + LOOK_SECONDS
    os.utime(file, (1, 1))  # the clock went back
    assert pulse.look() == 0
    file.unlink()
    pulse.look()
    now[0] += 1
    assert pulse.look() == 1


def test_an_exception_ends_everything_and_goes_on(tmp_path):
    processes = Processes(tmp_path)

    def fail():
        with processes:
            with_grandchild(processes)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not find_marked(processes.mark)


def test_processes_of_others_are_left_alone(tmp_path):
    with Processes(tmp_path / "a") as ours, Processes(tmp_path / "b") as others:
        theirs = others.start("sleep", python(SLEEP))
        ours.start("sleep", python(SLEEP))
        ours.stop()
        assert theirs.alive
        assert not ours.alive()


def test_what_is_started_inside_belongs_to_all_around_it(tmp_path, monkeypatch):
    with Processes(tmp_path) as outer:
        monkeypatch.setenv(MARK, outer.environment[MARK])
        inner = Processes(tmp_path)  # as in a process that `outer` has started
        child = inner.start("sleep", python(SLEEP))
        until(lambda: child.process.pid in outer.alive())
    assert not child.alive


# A program that starts a parent with a child and then waits inside the block.
PROGRAM = f"""
import signal, sys, time
from pathlib import Path
from coterie.deploy.processes import Processes
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with Processes(Path(sys.argv[1])) as processes:
        child = processes.start("parent", [sys.executable, "-c", {PARENT!r}])
        child.wait_for(lambda: "started" in child.log.read_text(), "start", 10)
        print(processes.mark, child.process.pid, flush=True)
        time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", set(processes.alive()), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(tmp_path, number):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # we may be under nohup ourselves
    )
    mark, _ = program.stdout.readline().split()
    until(lambda: len(find_marked(mark)) == 2)
    program.send_signal(number)
    assert program.stdout.read() == "interrupted set()\n"
    assert program.wait(10) == 0
    program.stdout.close()
    assert not find_marked(mark)


def test_nohup_is_respected(tmp_path):
    program = subprocess.Popen(
        ["nohup", sys.executable, "-c", PROGRAM, tmp_path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with program:
        mark, _ = program.stdout.readline().split()
        program.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert len(find_marked(mark)) == 2
        program.terminate()
        assert program.stdout.read() == "interrupted set()\n"


def test_if_we_are_killed_our_children_are_killed(tmp_path):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path], stdout=subprocess.PIPE, text=True
    )
    mark, child = program.stdout.readline().split()
    program.kill()
    program.wait()
    program.stdout.close()
    try:
        until(lambda: int(child) not in find_marked(mark))
    finally:
        for pid in find_marked(mark):  # the grandchild of this test does not watch its parent
            os.kill(pid, signal.SIGKILL)


def test_one_that_ends_before_it_answers_is_quoted(tmp_path):
    with Processes(tmp_path) as processes:
        child = processes.start("server", python("print('no such file: x.toml'); exit(3)"))
        with pytest.raises(CoterieError, match=r"server ended with code 3.*\nno such file: x"):
            child.wait_for_port(free_ports(1)[0])


def test_one_that_never_answers_is_not_waited_for_for_ever(tmp_path):
    with Processes(tmp_path) as processes:
        child = processes.start("server", python("print('busy', flush=True);" + SLEEP))
        child.wait_for(said(child, "busy"), "begin", 10)
        with pytest.raises(CoterieError, match=r"did not answer on port .* within 0\.2 s.*\nbusy"):
            child.wait_for_port(free_ports(1)[0], seconds=0.2)


def test_a_server_that_answers_is_found(tmp_path):
    code = """
    import socket, sys, time
    time.sleep(0.3)
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
        time.sleep(600)
    """
    (port,) = free_ports(1)
    with Processes(tmp_path) as processes:
        child = processes.start("server", [*python(textwrap.dedent(code)), str(port)])
        child.wait_for_port(port, seconds=10)
        assert is_listening("127.0.0.1", port)
    assert not is_listening("127.0.0.1", port)


def test_a_command_that_does_not_exist_is_named(tmp_path):
    with Processes(tmp_path) as processes:
        child = processes.start("x", ["no-such-command"])
        with pytest.raises(CoterieError, match="cannot start no-such-command: No such file"):
            child.wait_for(lambda: False, "start", 10)


def test_free_ports_differ_and_can_be_used():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with socket.create_server(("127.0.0.1", ports[0])):
        assert is_listening("127.0.0.1", ports[0])
