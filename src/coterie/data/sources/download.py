"""Downloads that go on where they broke off, and are placed only when they are the published file.

What has arrived lies in a `.part` file beside the target. The next try asks the server for the rest
of it; a server that sends everything again is taken at its word. The `.part` file becomes the
target by renaming, after it has been accepted.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.core.errors import DataError
from coterie.data.sources.cache import fingerprint

Say = Callable[[str], None]  # takes a line for the user
Watch = Callable[[int, int | None], None]  # takes the bytes that are here and those there will be
Accept = Callable[[Path], None]  # raises DataError unless the file is the one that was published

TIMEOUT = 30.0  # seconds without a byte after which a server is given up
ATTEMPTS = 5  # times a transfer that breaks off is taken up again
LARGEST = 2**30  # bytes; no source has a larger file, so whoever sends more sends something else
CHUNK = 2**18


def download(
    address: str, target: Path, accept: Accept, say: Say, watch: Watch | None = None
) -> None:
    """Bring the file at a web address to `target`, unless `accept` refuses it.

    Shows a bar on stderr if that is a terminal, or tells `watch` about every piece instead.
    """
    part = target.with_name(f"{target.name}.part")
    resumed = size(part) > 0
    receive(address, part, watch)
    try:
        accept(part)
    except DataError:
        part.unlink()
        if not resumed:
            raise
        # The piece that lay here may be of another mirror's file: once more from nothing.
        receive(address, part, watch)
        try:
            accept(part)
        except DataError:
            part.unlink()
            raise
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, target)
    say(f"{target.name}: {size(target) / 2**20:.1f} MiB")


def accept_digest(name: str, digest: str, *, compressed: bool = False) -> Accept:
    """Accept a file by its SHA-256, or by that of what is compressed in it."""

    def accept(path: Path) -> None:
        if fingerprint(path, compressed=compressed) != digest:
            raise DataError(f"{name} is not the published file: its SHA-256 differs")

    return accept


def receive(address: str, part: Path, watch: Watch | None) -> None:
    """Fill the part file up to the end, taking up the transfer again as long as it advances."""
    with shown(part.stem) if watch is None else as_it_is(watch) as report:
        for attempt in range(1, ATTEMPTS + 1):
            before = size(part)
            try:
                return transfer(address, part, report)
            except (OSError, http.client.HTTPException) as error:
                if attempt == ATTEMPTS or size(part) <= before:
                    raise DataError(reason(error)) from error


def transfer(address: str, part: Path, report: Watch) -> None:
    """One request, for what the part file lacks."""
    held = size(part)
    headers = {"User-Agent": "coterie", "Accept-Encoding": "identity"}
    if held:
        headers["Range"] = f"bytes={held}-"
    try:
        reply = urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not held:
            raise
        if error.headers.get("Content-Range") == f"bytes */{held}":
            return  # it was complete, and the process died before it was placed
        part.unlink()
        return transfer(address, part, report)
    with reply:
        done = held if reply.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        if done and not reply.headers.get("Content-Range", "").startswith(f"bytes {held}-"):
            part.unlink()
            raise OSError("another range of bytes came than was asked for")
        length = reply.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        report(done, total)
        with open(part, "ab" if done else "wb") as file:
            while piece := reply.read1(CHUNK):
                file.write(piece)
                done += len(piece)
                report(done, total)
                if done > LARGEST:
                    file.truncate(0)
                    raise OSError(f"it is larger than {LARGEST} bytes")
        if total is not None and done < total:
            raise OSError(f"it broke off after {done} of {total} bytes")


def reason(error: Exception) -> str:
    """Why a transfer failed, in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        return reason(error.reason)
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    return str(error) or type(error).__name__


def size(path: Path) -> int:
    """Bytes in a file; 0 if it is not there."""
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def shown(name: str) -> Iterator[Watch]:
    """A bar on stderr where that is a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        row = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total)


@contextmanager
def as_it_is(watch: Watch) -> Iterator[Watch]:
    """A watch of the caller's own."""
    yield watch
