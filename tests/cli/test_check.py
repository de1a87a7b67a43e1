"""`coterie check`: what it says of an algorithm of one's own."""

import warnings

from coterie.cli.check import each_warning_once
from coterie.core.errors import CoterieWarning


def test_each_warning_is_shown_once_and_as_before_afterwards(monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda text, *_, **__: shown.append(str(text)))
    with warnings.catch_warnings():
        warnings.simplefilter("always", CoterieWarning)
        with each_warning_once():
            for text in ("one", "two", "one", "one"):
                warnings.warn(text, CoterieWarning, stacklevel=1)
        warnings.warn("one", CoterieWarning, stacklevel=1)
    assert shown == ["one", "two", "one"]
