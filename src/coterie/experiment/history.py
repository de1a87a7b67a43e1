"""The lines that a run leaves, one for each round, and what of them it goes on from.

Every line has a checksum beside its file (files.py), for whoever reads it. The checkpoint has one
of all lines of the rounds before it, so that a run never goes on from lines of another.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import CheckpointError
from coterie.files import (
    append_line,
    checksums_file,
    parse_json,
    read_checked_lines,
    read_plain_file,
    remove_checksums,
    to_json,
    write_atomically,
    write_lines,
)

ROUNDS = "rounds.jsonl"


class History:
    """The files of lines in a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept = ROUNDS  # the file that the run goes on from
        self._sums: dict[str, int] = {}  # of all lines so far, by file

    @property
    def facts(self) -> dict[str, Any]:
        """What a checkpoint has to say of the lines before it."""
        return {self.kept: self._sums.get(self.kept, 0)}

    def append(self, record: Any, name: str = ROUNDS) -> None:
        """Add the line of a round."""
        line = to_json(record)
        append_line(self.folder / name, line)
        self._sums[name] = add_to_sum(self._sums.get(name, 0), line)

    def replace(self, records: Sequence[Any]) -> None:
        """Let rounds.jsonl hold other records than those that were appended."""
        remove_checksums(self.folder)
        write_lines(self.folder / ROUNDS, [to_json(record) for record in records])

    def pack(self, name: str) -> None:
        """Compress a file of lines that nobody adds to any more."""
        path = self.folder / name
        if path.exists():
            whole = gzip.compress(path.read_bytes(), mtime=0)
            write_atomically(packed_file(path), lambda file: file.write_bytes(whole))
            checksums_file(path).unlink(missing_ok=True)
            path.unlink()

    def unpack(self, name: str) -> None:
        """Let a file that was compressed be as it was before; one that is there stays."""
        path = self.folder / name
        packed = packed_file(path)
        if not packed.exists():
            return
        if not path.exists():
            try:
                lines = gzip.decompress(read_plain_file(packed)).decode("utf-8").splitlines()
            except (OSError, EOFError, ValueError, zlib.error) as error:
                raise CheckpointError(f"{packed} is damaged: {error}") from error
            write_lines(path, lines)
        packed.unlink()

    def cut(
        self,
        name: str,
        rounds: int,
        which: str,
        is_whole: Callable[[int, Any], bool],
        facts: dict[str, Any],
    ) -> list[Any]:
        """The records of the first `rounds` rounds in a file; lines after them are cut off.

        Refused, as a file without the rounds `which`, if `is_whole` is wrong of a record, or if
        the lines are not those that the `facts` of a checkpoint are of.
        """
        path = self.folder / name
        try:
            lines, wrong = read_checked_lines(path) if rounds else ([], [])
            lines = lines[:rounds]
            records = [parse_json(line) for line in lines]
            whole = len(lines) == rounds and all(map(is_whole, itertools.count(1), records))
        except (OSError, ValueError, KeyError, TypeError):
            whole, lines, wrong = False, [], []
        if not whole:
            raise CheckpointError(f"{path} does not hold the {rounds} rounds {which}")
        total = 0
        for line in lines:
            total = add_to_sum(total, line)
        if name in facts and total != facts[name]:
            which = f"line {wrong[0]} has changed" if wrong else "a line has changed"
            raise CheckpointError(f"{path} is damaged or of another run: {which} since")
        write_lines(path, lines)
        self._sums[name] = total
        return records


def packed_file(path: Path) -> Path:
    """Where a file of lines is when it is compressed.

    >>> packed_file(Path("copies.jsonl")).name
    'copies.jsonl.gz'
    """
    return path.with_name(f"{path.name}.gz")


def add_to_sum(total: int, line: str) -> int:
    """The checksum of some lines and one more."""
    return zlib.crc32(f"{line}\n".encode(), total)
