"""Threads follow the work and the load of the machine, and never the user's own setting."""

import os
import subprocess
import sys

import pytest
import torch

from coterie import FedAvg, simulate
from coterie.checks import small_federation, small_task
from coterie.tensors import threads
from coterie.tensors.threads import SMALL_WORK, ThreadControl, adapt_threads, adaptive_threads

LARGE, SMALL = SMALL_WORK, SMALL_WORK - 1


class Machine:
    """Four cores, a clock that stands still, and other processes that use some of the cores."""

    def __init__(self, monkeypatch, *, visible=True):
        self.now = self.own = self.busy = 0.0
        self.set = [4]  # every number of threads that was set
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(threads.time, "process_time", lambda: self.own)
        monkeypatch.setattr(threads, "busy_seconds", lambda: self.busy if visible else None)
        monkeypatch.setattr(threads, "available_cores", lambda: 4)
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.set[-1])
        monkeypatch.setattr(torch, "set_num_threads", self.set.append)

    def pass_time(self, own, others, seconds=1.0):
        """So many cores are used by this process and by others."""
        self.now += seconds
        self.own += own * seconds
        self.busy += (own + others) * seconds


def test_small_work_has_one_thread_and_large_work_all(monkeypatch):
    machine = Machine(monkeypatch)
    control = ThreadControl(4)
    for work in (LARGE, SMALL, SMALL, LARGE):
        control.adapt(work)
    assert machine.set == [4, 1, 4]


@pytest.mark.parametrize(("others", "expected"), [(0.0, 4), (0.3, 4), (1.0, 3), (2.7, 1), (9, 1)])
def test_large_work_takes_the_cores_that_others_leave(monkeypatch, others, expected):
    machine = Machine(monkeypatch)
    control = ThreadControl(4)
    machine.pass_time(own=4 - min(others, 3), others=others)
    control.adapt(LARGE)
    assert machine.set[-1] == expected
    machine.pass_time(own=expected, others=0)  # they have gone
    control.adapt(LARGE)
    assert machine.set[-1] == 4


def test_the_load_is_looked_at_now_and_then_only(monkeypatch):
    machine = Machine(monkeypatch)
    control = ThreadControl(4)
    machine.pass_time(own=2, others=2, seconds=threads.LOOK_SECONDS / 2)
    control.adapt(LARGE)
    assert machine.set == [4]


def test_where_the_load_cannot_be_seen_its_own_time_tells(monkeypatch):
    machine = Machine(monkeypatch, visible=False)
    control = ThreadControl(4)
    machine.pass_time(own=1.9, others=2)  # four threads had less than two cores
    control.adapt(LARGE)
    assert machine.set[-1] == 2
    machine.pass_time(own=1.0, others=3)
    control.adapt(LARGE)
    assert machine.set[-1] == 1
    machine.pass_time(own=1.0, others=0, seconds=threads.RETRY_SECONDS + 1)
    control.adapt(LARGE)
    assert machine.set[-1] == 4, "several threads are not tried again"


def test_a_run_leaves_the_process_as_it_was(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def fail():
        with adaptive_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_num_threads() == before
    assert threads.active is None
    simulate(FedAvg(), small_federation(), small_task(), rounds=1)
    assert torch.get_num_threads() == before


def test_the_users_own_setting_wins(monkeypatch):
    machine = Machine(monkeypatch)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with adaptive_threads():
        machine.pass_time(own=1, others=3)
        adapt_threads(SMALL)
    monkeypatch.delenv("OMP_NUM_THREADS")
    with adaptive_threads(3):
        machine.pass_time(own=1, others=3)
        adapt_threads(SMALL)
        assert machine.set[-1] == 3
    assert machine.set == [4, 3, 4]


def test_blocks_do_not_depend_on_how_many_threads_happen_to_work(monkeypatch):
    Machine(monkeypatch)
    for name in threads.USER_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    with adaptive_threads():
        adapt_threads(SMALL)
        assert torch.get_num_threads() == 1
        assert threads.most_threads() == 4


def test_an_import_changes_nothing():
    code = """
import torch
before = torch.get_num_threads()
import coterie, coterie.experiment.run, coterie.engine.simulator
assert torch.get_num_threads() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


def test_busy_seconds_of_a_real_machine_grow():
    before = threads.busy_seconds()
    if before is None:
        pytest.skip("the system does not tell")
    began, own = threads.time.perf_counter(), threads.time.process_time()
    while threads.time.perf_counter() - began < 0.3:
        pass
    own = threads.time.process_time() - own
    assert threads.busy_seconds() - before >= own - 0.1
