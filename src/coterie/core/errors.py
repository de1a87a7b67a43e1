"""Mistakes of the user, each told in one sentence that states the rule and the value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoterieError(Exception):
    """Something the user can put right; its text is one sentence without a traceback."""


class CoterieWarning(UserWarning):
    """Something the user should know of while the run goes on."""


class SettingError(CoterieError):
    """A setting that is unknown, of the wrong type or out of range."""


class DataError(CoterieError):
    """Data that are missing, broken, or do not fit the task."""


class CheckpointError(CoterieError):
    """A checkpoint that is corrupt, or that belongs to another run."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The near ones among `known`, as the end of a sentence; empty when nothing is near.

    >>> did_you_mean("fedavgg", ["ifca", "fedavg"])
    '; did you mean `fedavg`?'
    """
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(f'`{other}`' for other in near)}?" if near else ""
