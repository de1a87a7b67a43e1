"""Files that are complete or not there, and folders that one process at a time writes to."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not a POSIX system: folders are not locked
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".tmp"
LOCK = ".lock"  # in a locked folder; holds the number of the process


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file that appears under `path` only when it is complete and on disk."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{SUFFIX}")
    try:
        write(unfinished)
        flush(unfinished)
        os.replace(unfinished, path)
        flush_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Make sure that what was written to a file outlives a power cut."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make sure that a new name in a folder outlives a power cut, where the system can do that."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_bytes(path: Path, contents: bytes) -> None:
    """Write a file atomically."""
    write_atomically(path, lambda unfinished: unfinished.write_bytes(contents))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def to_json(content: Any, indent: int | None = None) -> str:
    """Content as JSON; numbers that are not finite, which JSON cannot express, become null.

    >>> to_json({"loss": float("nan"), "k": [1, float("inf")]})
    '{"loss": null, "k": [1, null]}'
    """
    return json.dumps(without_infinities(content), allow_nan=False, indent=indent)


def without_infinities(content: Any, digits: int | None = None) -> Any:
    """The same content with None for numbers that are not finite, others with so many digits."""
    if isinstance(content, float):
        if not math.isfinite(content):
            return None
        return content if digits is None else float(f"{content:.{digits}g}")
    if isinstance(content, dict):
        return {key: without_infinities(value, digits) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_infinities(value, digits) for value in content]
    return content


def read_json(path: Path, missing: Any = None) -> Any:
    """The content of a JSON file, or `missing` where it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else missing


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left of files it was writing."""
    for unfinished in folder.glob(f".*{SUFFIX}"):
        unfinished.unlink(missing_ok=True)


class FolderLock:
    """Keeps a folder to this process; the system ends the lock with its owner, however that ends.

    Refused with BlockingIOError if the folder is locked already. Where a file system knows no
    locks, there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                take_lock(descriptor)
            except BlockingIOError:
                os.close(descriptor)
                raise
            # The owner before removes the file: what we have locked may have no name any more.
            if is_named(descriptor, self.path):
                break
            os.close(descriptor)
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor
        lock_descriptors.add(descriptor)

    def release(self) -> None:
        """Let others have the folder."""
        if self._descriptor in lock_descriptors:
            lock_descriptors.remove(self._descriptor)
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1  # the number may be given to another file


def take_lock(descriptor: int) -> None:
    """Lock a file, if the file system can do that; BlockingIOError if another has locked it."""
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass


def is_named(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that is found under a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def lock_owner(folder: Path) -> str:
    """The number of the process that has locked a folder, as far as the folder says it."""
    try:
        return (folder / LOCK).read_text()
    except OSError:
        return ""


lock_descriptors: set[int] = set()  # of the locks that this process holds


def close_lock_descriptors() -> None:
    """Leave the locks to the parent: in a forked child they would outlive it."""
    while lock_descriptors:
        os.close(lock_descriptors.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=close_lock_descriptors)
