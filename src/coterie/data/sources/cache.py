"""The cache: folders that are searched for data, and the check that a file is the published one.

The cache is the folder named by COTERIE_DATA, then the platform's own cache folder; each source has
a folder of its own name in it. A file with a published SHA-256 is checked against it every time it
is read.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import DataError, SettingError

# Where packages of an operating system put a source, searched after the cache.
ELSEWHERE: dict[str, tuple[Path, ...]] = {
    "fashion-mnist": (Path("/usr/share/datasets/fashion-mnist"),),  # Debian, dataset-fashion-mnist
}
PARTS = ("train", "test")


def folders() -> list[Path]:
    """Where data are looked for, first COTERIE_DATA if it is set; new data go into the first."""
    chosen = os.environ.get("COTERIE_DATA")
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    platform = base / "coterie"
    return [Path(chosen), platform] if chosen else [platform]


def places(source: str) -> list[Path]:
    """The folders that may hold a source, in the order they are searched."""
    return [*(folder / source for folder in folders()), *ELSEWHERE.get(source, ())]


def looked_in(source: str) -> str:
    """The folders that were searched, as a part of a sentence."""
    return " and ".join(map(str, places(source)))


def found(folder: Path, name: str) -> Path | None:
    """A file in a folder, as it is or compressed as .gz; None if it is not there."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def cached(source: str, name: str, digests: Mapping[str, str]) -> bytes:
    """The verified contents of a file in the cache, compressed there or not."""
    for folder in places(source):
        path = found(folder, name)
        if path is not None:
            with again(source):
                return verified(str(path), opened(path), digests[name])
    raise DataError(
        f"{name} is not in {looked_in(source)}; `coterie data get {source}` gets it, "
        "or point COTERIE_DATA at the folder that holds it"
    )


@contextmanager
def again(source: str) -> Iterator[None]:
    """Add to what is wrong with a file how to put it right."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; `coterie data get {source}` gets it again") from error


def opened(path: Path) -> bytes:
    """A file's contents, decompressed if its name ends in .gz."""
    try:
        contents = path.read_bytes()
        return gzip.decompress(contents) if path.suffix == ".gz" else contents
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def verified(name: str, contents: bytes, digest: str) -> bytes:
    """The contents, if they are what was published under this name."""
    if hashlib.sha256(contents).hexdigest() != digest:
        raise DataError(f"{name} is not the published file: its SHA-256 differs")
    return contents


def fingerprint(path: Path, *, compressed: bool = False) -> str:
    """The SHA-256 of a file, or of what is compressed in it; empty if that is broken."""
    try:
        with gzip.open(path) if compressed else open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return ""


def checked_part(part: str) -> str:
    """`part`, if it is train or test."""
    if part not in PARTS:
        raise SettingError(f"`part` of a source must be one of {', '.join(PARTS)}, got {part}")
    return part
