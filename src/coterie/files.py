"""Files that are complete or not there, and folders that one process at a time writes to.

A file of lines that grows, as rounds.jsonl, has a checksum for each of its lines in a file beside
it, rounds.crc. Where that is missing, as in earlier versions, lines are taken as they are. A folder
that is finished has a checksum for each of its other files, in outcome.crc.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import stat
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not a POSIX system: folders are not locked
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".tmp"
SAFETENSORS_UNFINISHED = ".tmp??????"  # what that library writes to before it renames
OUTCOME_CHECKSUMS = "outcome.crc"
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
    try:
        return json.dumps(content, allow_nan=False, indent=indent)
    except ValueError:  # some number is not finite; to look for it takes longer than to write
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


def parse_json(text: str) -> Any:
    """The content of a text of JSON; whatever is wrong with it is a ValueError of a few words."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, missing: Any = None) -> Any:
    """The content of a JSON file, or `missing` where it is not there.

    What is neither is an OSError or a ValueError.
    """
    return parse_json(read_plain_file(path).decode("utf-8")) if os.path.lexists(path) else missing


def read_plain_file(path: Path) -> bytes:
    """The content of a plain file; anything else is an OSError, where a pipe would be waited for.

    >>> read_plain_file(Path("/dev/null"))
    Traceback (most recent call last):
    ...
    OSError: [Errno 22] it is not a plain file: '/dev/null'
    """
    # What is opened is what is looked at, and a pipe is opened without waiting for its other end.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        return file.read()


def checksums_file(path: Path) -> Path:
    """Where the checksums of the lines of a file are."""
    return path.with_suffix(".crc")


def line_checksum(line: str) -> str:
    """The checksum of a line.

    >>> line_checksum('{"round": 1}'), line_checksum('{"round": 3}')
    ('d9f40321', 'ebc261a3')
    """
    return f"{zlib.crc32(line.encode()):08x}"


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, then its checksum to the file beside it."""
    for place, text in ((path, line), (checksums_file(path), line_checksum(line))):
        with place.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Replace the lines of a file and their checksums; never are there checksums of others."""
    checksums_file(path).unlink(missing_ok=True)
    write_text(path, "".join(line + "\n" for line in lines))
    write_text(checksums_file(path), "".join(line_checksum(line) + "\n" for line in lines))


def read_checked_lines(path: Path) -> tuple[list[str], list[int]]:
    """The lines of a file and the numbers, from 1, of those that do not match their checksum.

    A last line that was not written to its end is left out unless it has a checksum. Numbers beyond
    the last line are of lines that are no longer there.
    """
    while True:
        known = split_lines(checksums_file(path))  # first: whoever adds a line adds this after it
        lines = split_lines(path, needed=True)
        pairs = enumerate(itertools.zip_longest(lines, known), 1)
        wrong = [
            i for i, (line, sum) in pairs if sum and (line is None or line_checksum(line) != sum)
        ]
        if not wrong or split_lines(checksums_file(path)) == known:
            return lines, wrong  # else a run that is resumed has just cut the lines


def split_lines(path: Path, *, needed: bool = False) -> list[str]:
    """The whole lines of a file; none where it is not there, unless it is needed."""
    try:
        text = read_plain_file(path).decode("utf-8", errors="replace")
    except FileNotFoundError:
        if needed or os.path.islink(path):
            raise
        return []
    return text.split("\n")[:-1]  # without what follows the last end of a line


def write_checksums(folder: Path, names: Sequence[str]) -> None:
    """Write the checksums of those of some files that a folder has, and one of them all."""
    lines = [
        f"{zlib.crc32((folder / name).read_bytes()):08x}  {name}"
        for name in names
        if (folder / name).is_file()
    ]
    whole = "\n".join(lines)
    write_text(folder / OUTCOME_CHECKSUMS, f"{whole}\n{line_checksum(whole)}\n")


def remove_checksums(folder: Path) -> None:
    """Remove the checksums of the files of a folder, before one of these changes."""
    (folder / OUTCOME_CHECKSUMS).unlink(missing_ok=True)


def changed_files(folder: Path, names: Sequence[str] = ()) -> list[str]:
    """Which files of a folder are not those that there are checksums of, also if they are gone.

    All are looked at, or those of `names`. If the checksums are damaged themselves, these are named
    and nothing else is known.
    """
    path = folder / OUTCOME_CHECKSUMS
    if not os.path.lexists(path):
        return []
    try:
        *lines, total, end = read_plain_file(path).decode("ascii").split("\n")
        if end or line_checksum("\n".join(lines)) != total:
            raise ValueError("the checksums have changed")
        known = {name: sum for sum, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError):
        return [OUTCOME_CHECKSUMS]
    return [n for n in known if (not names or n in names) and file_checksum(folder / n) != known[n]]


def file_checksum(path: Path) -> str:
    """The checksum of a plain file; empty if there is none that can be read."""
    try:
        return f"{zlib.crc32(read_plain_file(path)):08x}"
    except OSError:
        return ""


def remove_unfinished(folder: Path, name: str = "") -> None:
    """Remove what a killed process left of files it was writing, or of one with this name."""
    ours = folder.glob(f".{name}*{SUFFIX}")
    for unfinished in (*ours, *(() if name else folder.glob(SAFETENSORS_UNFINISHED))):
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
