"""Downloads: pooch fetches a file, and it is placed only if it is the published one.

By hand is only what pooch does not know: the SHA-256 of what is compressed in a file, because
mirrors compress differently, and a sentence in place of an exception.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.core.errors import DataError
from coterie.data.sources.cache import check_digest, sha256_of

Say = Callable[[str], None]  # takes a line for the user

TIMEOUT = 30.0  # seconds without a byte after which a server is given up
RETRIES = 2  # times that a transfer is begun again
CHUNK = 2**18  # bytes that are written at a time


def download(
    address: str, target: Path, digest: str, say: Say, *, compressed: bool = False
) -> None:
    """Bring the file at a web address to `target`, if its SHA-256 is `digest`.

    With `compressed` it is the SHA-256 of what is compressed in the file. A terminal gets a bar.
    """
    console, name = Console(stderr=True), target.name
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn()
    with (
        tempfile.TemporaryDirectory(dir=target.parent) as scratch,
        Progress(
            *columns,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as progress,
    ):

        def fetch(url: str, file: str, store: pooch.Pooch) -> None:
            bar = DownloadBar(progress, name)
            # Servers must not unpack a compressed file on the way.
            plain = {"Accept-Encoding": "identity"}
            pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=TIMEOUT, headers=plain)(
                url, file, store
            )
            check_digest(name, sha256_of(Path(file), compressed=compressed), digest)

        pooch.get_logger().setLevel("WARNING")
        store = pooch.create(
            scratch,
            base_url="",
            registry={name: None},
            urls={name: address},
            retry_if_failed=RETRIES,
        )
        try:
            os.replace(store.fetch(name, downloader=fetch), target)
        except (requests.RequestException, ValueError) as error:
            raise DataError(reason(error)) from error
    say(f"{name}: {target.stat().st_size / 2**20:.1f} MiB")


class DownloadBar:
    """The progress bar that pooch asks for, as a row of rich's."""

    total = 0  # bytes, which pooch sets

    def __init__(self, progress: Progress, name: str) -> None:
        self.progress, self.row = progress, progress.add_task(name, total=None)

    def update(self, count: int) -> None:
        self.progress.update(self.row, advance=count, total=self.total or None)

    def reset(self) -> None:
        self.progress.reset(self.row)

    def close(self) -> None:
        self.progress.remove_task(self.row)


def reason(error: Exception) -> str:
    """Why a transfer failed, in a few words."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout) or "timed out" in str(error):
        return f"no answer within {TIMEOUT:g} s"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "it broke off"
    # The last of nested causes says what happened.
    return str(error).rsplit(": ", 1)[-1].rstrip("'\")")
