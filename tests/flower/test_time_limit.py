import threading
import time

import pytest

from coterie.flower.time_limit import TookTooLong, time_limit


def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0)
        except Exception:
            continue


def test_what_takes_longer_is_ended_in_any_thread():
    ended = []

    def limited():
        with pytest.raises(TookTooLong, match=r"more than 0\.05 s"), time_limit(0.05):
            work(60)
        ended.append(True)

    limited()
    thread = threading.Thread(target=limited)
    thread.start()
    thread.join(30)
    assert ended == [True, True]


def test_what_ends_in_time_is_left_alone_then_and_later():
    with time_limit(0.2):
        work(0.01)
    work(0.3)
    with pytest.raises(ValueError, match="its own"), time_limit(0.2):
        raise ValueError("its own")
    work(0.3)


def test_the_start_of_the_timer_itself_is_not_ended_half_way(monkeypatch):
    start, entered = threading.Timer.start, []

    def slow_start(timer):
        start(timer)
        work(0.05)

    monkeypatch.setattr(threading.Timer, "start", slow_start)

    def enter():
        entered.append(True)
        work(60)

    with pytest.raises(TookTooLong), time_limit(0.001):
        enter()
    assert entered
