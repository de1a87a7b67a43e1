"""Memory that was freed, given back to the system.

A chunk of clients needs some large blocks for a moment, and leaves a few small numbers that stay.
With the allocator of Linux, small ones that come to lie behind large ones keep it from using that
place again for blocks of the same size: a round over 100,000 clients then takes memory as if every
client's model had been kept. Freed pages are therefore handed back every few chunks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

Item = TypeVar("Item")

CHUNKS = 8  # chunks of clients after which freed memory is given back


def tidily(chunks: Iterable[Item]) -> Iterator[Item]:
    """The same chunks, memory being given back after every few of them."""
    for count, chunk in enumerate(chunks, 1):
        yield chunk
        if count % CHUNKS == 0:
            give_back()


def give_back() -> None:
    """Hand freed pages to the system; nothing happens where the C library cannot do that."""
    trim = trimmer()
    if trim is not None:
        trim(0)


@cache
def trimmer() -> Any:
    """`malloc_trim` of the C library of Linux, or None."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
