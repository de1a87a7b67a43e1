"""A source: data that have a name, a folder in the cache, and mirrors to get them from.

The cache is the folder named by COTERIE_DATA, then the platform's own cache folder; each source has
a folder of its own name in it. A file with a published SHA-256 is checked against it every time it
is read.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import DataError, SettingError

# Where packages of an operating system put a source, searched after the cache.
SYSTEM_FOLDERS: dict[str, tuple[Path, ...]] = {
    "fashion-mnist": (Path("/usr/share/datasets/fashion-mnist"),),  # Debian, dataset-fashion-mnist
}
PARTS = ("train", "test")


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
        return next(filter(self.is_in, source_folders(self.name)), None)

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
        folder = source_folders(self.name)[0]
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
        return f"{self.name} is not in {folders_in_words(self.name)}; {way}"


def folders() -> list[Path]:
    """Where data are looked for, first COTERIE_DATA if it is set; new data go into the first."""
    import pooch  # brings all that a download needs

    chosen, platform = os.environ.get("COTERIE_DATA"), Path(pooch.os_cache("coterie"))
    return [Path(chosen), platform] if chosen else [platform]


def source_folders(source: str) -> list[Path]:
    """The folders that may hold a source, in the order they are searched."""
    return [*(folder / source for folder in folders()), *SYSTEM_FOLDERS.get(source, ())]


def folders_in_words(source: str) -> str:
    """The folders that are searched, as a part of a sentence."""
    return " and ".join(map(str, source_folders(source)))


def find_file(folder: Path, name: str) -> Path | None:
    """A file in a folder, as it is or compressed as .gz; None if it is not there."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def read_cached(source: str, name: str, digests: Mapping[str, str]) -> bytes:
    """The verified contents of a file in the cache, compressed there or not."""
    for folder in source_folders(source):
        path = find_file(folder, name)
        if path is not None:
            with advise_get(source):
                contents = read_contents(path)
                check_contents(str(path), contents, digests[name])
                return contents
    raise DataError(
        f"{name} is not in {folders_in_words(source)}; `coterie data get {source}` gets it, "
        "or point COTERIE_DATA at the folder that holds it"
    )


@contextmanager
def advise_get(source: str) -> Iterator[None]:
    """Add to what is wrong with a file how to put it right."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; `coterie data get {source}` gets it again") from error


def read_contents(path: Path) -> bytes:
    """A file's contents, decompressed if its name ends in .gz."""
    try:
        contents = path.read_bytes()
        return gzip.decompress(contents) if path.suffix == ".gz" else contents
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def check_contents(name: str, contents: bytes, digest: str) -> None:
    """Refuse contents that are not what was published under this name."""
    check_digest(name, hashlib.sha256(contents).hexdigest(), digest)


def check_digest(name: str, found: str, digest: str) -> None:
    """Refuse what has another SHA-256 than was published."""
    if found != digest:
        raise DataError(f"{name} is not the published file: its SHA-256 differs")


def sha256_of(path: Path, *, compressed: bool = False) -> str:
    """The SHA-256 of a file, or of what is compressed in it; empty if that is broken."""
    try:
        with gzip.open(path) if compressed else open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return ""


def check_part(part: str) -> str:
    """`part`, if it is train or test."""
    if part not in PARTS:
        raise SettingError(f"`part` of a source must be one of {', '.join(PARTS)}, got {part}")
    return part
