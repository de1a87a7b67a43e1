"""The time of day for Flower's processes, which a step of the machine's clock does not move.

Flower measures by the time of day for how long a message may still be fetched, a node counts as
alive and a ServerApp as running, and nodes sign their requests with it. If the clock of a server
goes one hour ahead for a moment, all of these have ended: the run, too. So the processes of a
deployment go on counting seconds from where they began, and take a step over only when it has
stayed: a clock that was wrong at first and is put right is followed, a moment's error is not.

The processes of one SuperLink, of which some start later, have the same time: a file in Flower's
folder says how far the time of day is from the seconds that the machine counts.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

SMALL_SECONDS = 1.0  # up to which a difference is followed at once: clocks are corrected all day
STAYS_SECONDS = 300.0  # for which a step must stay to be taken over


class SteadyClock:
    """The time of day, in seconds, by the machine's count of seconds since it began.

    file  where to read and write how far they are apart, for processes that start later
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.base = time.time() - time.monotonic()
        if file is not None and file.exists():
            self.base = float(file.read_text())
        self.step = 0.0  # how far the clock has gone from ours
        self.stepped_at = time.monotonic()
        self._tell()

    def time(self) -> float:
        """Our time of day."""
        now = time.monotonic()
        ahead = time.time() - (self.base + now)
        if abs(ahead - self.step) > SMALL_SECONDS:
            self.step, self.stepped_at = ahead, now
        if abs(ahead) <= SMALL_SECONDS or now - self.stepped_at >= STAYS_SECONDS:
            stays = abs(ahead) > SMALL_SECONDS
            self.base, self.step = self.base + ahead, 0.0
            if stays:
                self._tell()
        return self.base + now

    def _tell(self) -> None:
        if self.file is not None and self.file.parent.is_dir():
            unfinished = self.file.with_suffix(f".{os.getpid()}")
            unfinished.write_text(repr(self.base))
            unfinished.replace(self.file)
