"""How long nodes take, who is late, and who is asked less often.

A round closes when there is a quorum and all others have had a fair time: a few times what they
themselves took for the same step before. A node that has not answered by then is late. If that
happens again it is left out of the next exchanges, each time of twice as many, and asked again
after them, unless its answer comes before: then it is as good as any other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

FAIR_SECONDS = 20.0  # that everybody has at least
FAIR_TIMES = 4.0  # as long as the median of its last answers a node may take
LONGEST_TIMES = 1.5  # as long as the longest of them, if that is more
AGAIN_SECONDS, AGAIN_TIMES = 5.0, 1.5  # the same of the median for a node that was late before
FIRST_SECONDS, FIRST_TIMES = 30.0, 10.0  # the same of others, for a node without a past
LAST = 8  # answers that are remembered, of each node and step
MOST_RESTS = 16  # exchanges for which a node is left out


class Answer(NamedTuple):
    """How long a node took to answer, and for how many samples."""

    seconds: float
    samples: int


class Punctuality:
    """What is known of the nodes' answers, by node and by what they were asked for."""

    def __init__(self) -> None:
        self.past: dict[tuple[int, str], deque[float]] = {}
        self.lapses: dict[int, int] = {}  # how many times in a row a node was late
        self.rests: dict[int, int] = {}  # exchanges for which it is left out

    def answered(self, node: int, label: str, seconds: float) -> None:
        """A node has answered, maybe late: it is asked like any other."""
        self.past.setdefault((node, label), deque(maxlen=LAST)).append(seconds)
        self.lapses.pop(node, None)
        self.rests.pop(node, None)

    def lapse(self, node: int) -> int:
        """A node is late; for how many exchanges it is left out."""
        self.lapses[node] = self.lapses.get(node, 0) + 1
        if self.lapses[node] == 1:
            return 0
        self.rests[node] = min(2 ** (self.lapses[node] - 1), MOST_RESTS)
        return self.rests[node]

    def forget(self, node: int) -> None:
        """A node is gone; if it comes back it begins as if it had never been late."""
        self.lapses.pop(node, None)
        self.rests.pop(node, None)

    def rested(self, node: int) -> None:
        """A node was left out of an exchange."""
        self.rests[node] -= 1
        if not self.rests[node]:
            del self.rests[node]

    def fair_seconds(self, node: int, label: str, samples: int, others: Iterable[Answer]) -> float:
        """How long a node may take once there is a quorum.

        Without a past it is judged by the others of the exchange, in proportion to the samples. One
        that was late the last time has had its chance, and holds up the others no more.
        """
        own = self.past.get((node, label))
        if own and node in self.lapses:
            return max(AGAIN_SECONDS, AGAIN_TIMES * median(own))
        if own:
            return max(FAIR_SECONDS, FAIR_TIMES * median(own), LONGEST_TIMES * max(own))
        usual = [each.seconds * max(1.0, samples / max(each.samples, 1)) for each in others]
        return max([FIRST_SECONDS, *(FIRST_TIMES * seconds for seconds in usual)])


def now() -> float:
    """The time by which answers are measured; steps of the clock do not change it."""
    return time.monotonic()
