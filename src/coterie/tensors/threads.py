"""Threads: how many of PyTorch's threads work on clients.

PyTorch's threads spin while they wait for each other. Where another process has one of their cores,
all of them wait for the one that is not running: any work takes 3 to 36 times as long. And small
work gains nothing from a second thread. So a run that adapts its threads takes one where the work
is small, as many as there are free cores where it is large, and looks again several times a second.

Nothing is adapted unless somebody asks (`adapt_threads`), and never where the user has said how
many threads there are to be: by `threads=`, or by OMP_NUM_THREADS or MKL_NUM_THREADS.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# Rows times parameters of a chunk of clients below which one thread is as fast as several.
SMALL_WORK = 2**19
LOOK_SECONDS = 0.2  # between two looks at the load of the machine
BUSY_SHARE = 0.35  # of a core that other processes may use without its being theirs
RETRY_SECONDS = 5.0  # after which several threads are tried again where the load cannot be seen
STATISTICS = Path("/proc/stat")
USER_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class ThreadControl:
    """Chooses the threads of the Python thread that made it, between one and `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.current = most
        self.free = most  # cores that other processes leave
        self.owner = threading.get_ident()
        self._busy = busy_seconds()  # of the cores that this process may use, by all processes
        self._own = time.process_time()
        self._looked = self._reduced = time.perf_counter()

    def adapt(self, work: int) -> None:
        """Take as many threads as help with so much work: rows times parameters of a chunk."""
        if threading.get_ident() != self.owner:  # each Python thread has threads of its own
            return
        now = time.perf_counter()
        if now - self._looked >= LOOK_SECONDS:
            self._look(now)
        wanted = 1 if work < SMALL_WORK else self.free
        if wanted != self.current:
            torch.set_num_threads(wanted)
            self.current = wanted

    def _look(self, now: float) -> None:
        """Find out how many cores other processes left since the last look."""
        seconds, own = now - self._looked, time.process_time() - self._own
        busy = busy_seconds()
        if busy is not None and self._busy is not None:
            others = (busy - self._busy - own) / seconds
            self.free = free_threads(self.most, available_cores() - others)
        elif self.current > 1:
            # What these threads wanted and did not get, others had.
            self.free = free_threads(self.most, own / seconds)
            self._reduced = now
        elif now - self._reduced > RETRY_SECONDS:
            self.free = self.most
        self._busy, self._own, self._looked = busy, self._own + own, now


active: ThreadControl | None = None  # that of the run that is going on


@contextmanager
def adaptive_threads(threads: int = 0) -> Iterator[None]:
    """Let work inside take as many threads as help; with `threads`, exactly so many.

    Afterwards the process has as many as before.
    """
    global active
    before, outer, most = torch.get_num_threads(), active, most_threads()
    if threads:
        torch.set_num_threads(threads)
    adapts = not threads and not user_sets_threads() and most > 1
    active = ThreadControl(most) if adapts else None
    try:
        yield
    finally:
        active = outer
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def adapt_threads(work: int) -> None:
    """Say how much work comes next; see `ThreadControl.adapt`."""
    if active is not None:
        active.adapt(work)


def user_sets_threads() -> bool:
    """Whether the environment says how many threads there are to be."""
    return any(os.environ.get(name) for name in USER_SETTINGS)


def most_threads() -> int:
    """The threads that work may have; how it is cut into blocks depends on this alone."""
    return torch.get_num_threads() if active is None else active.most


def available_cores() -> int:
    """The cores that this process may use."""
    return len(usable_cores()) or os.cpu_count() or 1


def usable_cores() -> set[int]:
    """The numbers of these cores; none where the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def free_threads(most: int, cores: float) -> int:
    """How many threads find a core where so many cores are free.

    >>> [free_threads(4, cores) for cores in (0.2, 1.3, 1.7, 9.0)]
    [1, 1, 2, 4]
    """
    return max(1, min(most, int(cores + BUSY_SHARE)))


def busy_seconds() -> float | None:
    """How long the cores that this process may use were busy, added up; None: not known."""
    names = {f"cpu{number}" for number in usable_cores()}
    try:
        lines = [line.split() for line in STATISTICS.read_text().splitlines()]
    except OSError:
        return None
    cores = [line for line in lines if line and line[0] in names]
    # user, nice, system, idle, iowait, irq, softirq, steal: all but the time in which nothing ran
    ticks = sum(int(line[i]) for line in cores for i in (1, 2, 3, 6, 7, 8))
    return ticks / os.sysconf("SC_CLK_TCK") if cores else None
