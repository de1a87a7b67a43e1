"""Atomic writing of files: a file is complete, or it is not there."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUFFIX = ".tmp"


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
