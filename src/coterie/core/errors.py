"""Mistakes of the user, each told in one sentence that states the rule and the value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from coterie.core.aliases import meant_names


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


LONGEST = 300  # characters of a sentence about a mistake
WORD = 60  # characters of a word that is shortened before the sentence is cut


def one_sentence(text: str, end: str = "") -> str:
    """A text and its end in one printable line of at most 300 characters.

    The longest words are cut first, never the end.

    >>> one_sentence("`k` must be a whole number,\\n got " + 1000 * "9")[:60]
    '`k` must be a whole number, got 9999999999999999999999999999'
    >>> len(one_sentence(200 * "many words "))
    300
    """
    words = " ".join(text.split()).encode("utf-8", "replace").decode()
    words = "".join(c if c.isprintable() else "?" for c in words)
    longest = LONGEST - len(end)
    while len(words) > longest:
        word = max(words.split(" "), key=len)
        if len(word) <= WORD:
            return words[: longest - 3] + "..." + end
        keep = max(WORD, len(word) - (len(words) - longest)) - 3
        words = words.replace(
            word, f"{word[: keep // 2]}...{word[len(word) - (keep - keep // 2) :]}"
        )
    return words + end


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The near ones among `known`, as the end of a sentence; empty when nothing is near.

    What the field calls one of them is as near as can be.

    >>> did_you_mean("fedavgg", ["ifca", "fedavg"])
    '; did you mean `fedavg`?'
    >>> did_you_mean("learning_rate", ["lr", "rate_limit"])
    '; did you mean `lr`?'
    """
    names = list(known)
    near = [meant for meant in meant_names(name) if meant in names]
    near = near or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(f'`{other}`' for other in near)}?" if near else ""
