"""A source: data that have a name, a folder in the cache, and mirrors to get them from."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import DataError
from coterie.data.sources import cache


@dataclass(frozen=True)
class Mirror:
    """One place to get a source from."""

    name: str  # as the user knows it: an address, or a command
    # Brings what a folder lacks of the source, verified; raises DataError if it cannot.
    fetch: Callable[[Path, Callable[[str], None]], None]


@dataclass(frozen=True)
class Source:
    """A data set by the name that it has on the command line."""

    name: str  # also that of its folder in the cache
    description: str  # one line
    is_in: Callable[[Path], object]  # whether a folder has the files, without reading them
    check: Callable[[Path], None]  # raises DataError unless the files are right
    mirrors: tuple[Mirror, ...] = ()  # tried in this order
    by_hand: str = ""  # which files to place where, if there is no mirror

    def where(self) -> Path | None:
        """The first folder that has it; None if none has."""
        return next(filter(self.is_in, cache.source_folders(self.name)), None)

    def get(self, say: Callable[[str], None]) -> Path:
        """Bring it into the cache unless it is there, verify it, and return its folder."""
        here = self.where()
        if here is not None:
            try:
                self.check(here)
            except DataError as error:
                if not self.mirrors:
                    raise
                say(f"{self.name}: {error}")
            else:
                say(f"{self.name}: it was already there")
                return here
        if not self.mirrors:
            raise DataError(self.missing())
        return self.fetch(say)

    def fetch(self, say: Callable[[str], None]) -> Path:
        """Get it from the first mirror that has it."""
        folder = cache.source_folders(self.name)[0]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"cannot make the data folder {folder}: {error.strerror}") from error
        failures = []
        for mirror in self.mirrors:
            say(f"{self.name}: trying {mirror.name}")
            try:
                mirror.fetch(folder, say)
                self.check(folder)
            except (OSError, DataError, subprocess.SubprocessError) as error:
                failures.append(f"{mirror.name} ({error})")
            else:
                return folder
        raise DataError(f"{self.name} could not be had from any of: {'; '.join(failures)}")

    def missing(self) -> str:
        """The sentence for a source that is not here."""
        way = self.by_hand or f"`coterie data get {self.name}` gets it"
        return f"{self.name} is not in {cache.folders_in_words(self.name)}; {way}"
