"""Memory that was freed: kept for the next chunk, and given back to the system now and then.

A chunk of clients needs some large blocks for a moment. The allocator of Linux gives those back at
once, and the next chunk waits for the system to clear as many pages, a few percent of its time; so
it is told to keep them.

A chunk also leaves a few small numbers that stay. Those that come to lie behind large blocks keep
the allocator from using that place again for blocks of the same size: a round over 100,000 clients
then takes memory as if every client's model had been kept. Freed pages are therefore handed back
every few chunks, and at the end of a round of many: what its last chunks leave would add to what
the first of the next one need.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

Item = TypeVar("Item")

CHUNKS = 8  # chunks of clients after which freed memory is given back
KEPT_BYTES = 256 * 2**20  # freed memory that is kept until then
BLOCK_BYTES = 32 * 2**20  # larger blocks always come from the system; glibc allows no more
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # what <malloc.h> calls M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


def tidily(chunks: Iterable[Item]) -> Iterator[Item]:
    """The same chunks, memory being given back after every few of them and after many."""
    count = 0
    for count, chunk in enumerate(chunks, 1):
        yield chunk
        if count % CHUNKS == 0:
            give_back()
    if count > CHUNKS and count % CHUNKS:
        give_back()


@cache
def keep_freed() -> None:
    """Keep freed blocks for the next ones; once and for the whole process."""
    option = c_function("mallopt")
    if option is not None:
        option(MMAP_THRESHOLD, BLOCK_BYTES)
        option(TRIM_THRESHOLD, KEPT_BYTES)


def give_back() -> None:
    """Hand freed pages to the system."""
    trim = c_function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def c_function(name: str) -> Any:
    """A function of the C library of Linux; None where the library has none of that name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
