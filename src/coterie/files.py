"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

SUFFIX = ".tmp"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file that appears under `path` only when it is complete and on disk."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{SUFFIX}")
    try:
        write(unfinished)
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_bytes(path: Path, contents: bytes) -> None:
    """Write a file atomically."""
    write_atomically(path, lambda unfinished: unfinished.write_bytes(contents))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left of files it was writing."""
    for unfinished in folder.glob(f".*{SUFFIX}"):
        unfinished.unlink(missing_ok=True)
