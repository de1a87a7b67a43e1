"""Schedules: the step size of a round, as a share of that of the first.

A schedule is a function of the round, counted from 0, and of the settings of the training. One of
your own is added by its name, and is then a value of the setting `schedule`:

    add_schedule("warmup", lambda round, training: min(1.0, (round + 1) / 5))
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Protocol


class ScheduleSettings(Protocol):
    """What a schedule may go by; every training with gradients has these settings."""

    @property
    def lr(self) -> float: ...
    @property
    def decay(self) -> float: ...
    @property
    def schedule_rounds(self) -> int: ...


Schedule = Callable[[int, ScheduleSettings], float]


def constant_rate(round: int, training: ScheduleSettings) -> float:
    """The same in every round."""
    return 1.0


def exponential_rate(round: int, training: ScheduleSettings) -> float:
    """`decay` times as large after every round."""
    return training.decay**round


def step_rate(round: int, training: ScheduleSettings) -> float:
    """`decay` times as large after every `schedule_rounds` rounds."""
    return training.decay ** (round // training.schedule_rounds)


def cosine_rate(round: int, training: ScheduleSettings) -> float:
    """Half a cosine from 1 in the first round to 0 after `schedule_rounds` rounds."""
    return (1 + cos(pi * min(round / training.schedule_rounds, 1.0))) / 2


SCHEDULES: dict[str, Schedule] = {
    "constant": constant_rate,
    "exponential": exponential_rate,
    "step": step_rate,
    "cosine": cosine_rate,
}
NEED_ROUNDS = ("step", "cosine")  # those that go by `schedule_rounds`


def add_schedule(name: str, schedule: Schedule) -> None:
    """Let `schedule` be a value of the setting of that name, in this process.

    >>> add_schedule("halves", lambda round, training: 0.5**round)
    >>> SCHEDULES["halves"](2, None)
    0.25
    """
    SCHEDULES[name] = schedule
