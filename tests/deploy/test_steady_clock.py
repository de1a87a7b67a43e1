"""The clock of Flower's processes, when that of the machine steps."""

import time

import pytest

from coterie.deploy.steady_clock import STAYS_SECONDS, SteadyClock


class Machine:
    """A machine whose clock can be set."""

    def __init__(self, monkeypatch):
        self.count, self.day = 500.0, 1_000_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.count)
        monkeypatch.setattr(time, "time", lambda: self.day)

    def wait(self, seconds):
        self.count += seconds
        self.day += seconds


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.mark.parametrize("step", [3600.0, -3600.0, 30.0])
def test_a_step_that_is_taken_back_is_not_seen(machine, step):
    clock, seen = SteadyClock(), []
    machine.day += step
    for _ in range(30):
        machine.wait(1)
        seen.append(clock.time())
    machine.day -= step
    machine.wait(1)
    seen.append(clock.time())
    assert seen == pytest.approx([1_000_001.0 + i for i in range(31)])


def test_a_step_that_stays_is_taken_over_after_a_while(machine):
    clock = SteadyClock()
    machine.day += 3600
    clock.time()
    machine.wait(STAYS_SECONDS - 1)
    assert clock.time() == pytest.approx(machine.day - 3600)
    machine.wait(1)
    assert clock.time() == pytest.approx(machine.day)


def test_small_corrections_are_followed_at_once_and_do_not_add_up(machine):
    clock = SteadyClock()
    for _ in range(100):
        machine.wait(10)
        machine.day += 0.5
        assert clock.time() == pytest.approx(machine.day)


def test_a_clock_that_jumps_about_is_not_followed(machine):
    clock, begin = SteadyClock(), machine.count
    for number in range(40):
        machine.day = 1_000_000 + 5000.0 * (number % 3)
        machine.wait(STAYS_SECONDS / 5)
        assert clock.time() == pytest.approx(1_000_000 + machine.count - begin)
        machine.day -= machine.count - begin


def test_a_process_that_starts_later_has_the_same_time(machine, tmp_path):
    first = SteadyClock(tmp_path / "clock")
    machine.day += 3600
    second = SteadyClock(tmp_path / "clock")
    assert second.time() == pytest.approx(first.time())
    first.time()
    machine.wait(STAYS_SECONDS)
    assert first.time() == pytest.approx(machine.day)
    assert SteadyClock(tmp_path / "clock").time() == pytest.approx(machine.day)


def test_flower_reads_the_steady_clock(tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from flwr.supercore import date

    from coterie.deploy.flwr_internals import keep_steady_time

    monkeypatch.setattr(date, "datetime", date.datetime)
    monkeypatch.delenv("FLWR_HOME", raising=False)
    keep_steady_time()
    before, real = date.now(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    after = date.now()
    assert after.utcoffset().total_seconds() == 0
    assert 0 <= (after - before).total_seconds() < 60
    assert date.isoformat8601_utc(after).endswith("Z")
