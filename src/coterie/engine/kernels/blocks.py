"""Blocks: how many clients of a chunk are worked on at a time, so that the cache holds them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from coterie.core.rows import Rows
from coterie.tensors.devices import cache_bytes
from coterie.tensors.threads import most_threads

# What the weights of clients that a thread works on at a time may occupy: more than this falls out
# of the cache and slows down.
WEIGHT_BYTES = 4 * 2**20
# The same of networks that are done layer by layer with a call for each: more calls cost more.
LAYERED_BYTES = 32 * 2**20
# What the first layer's outputs of a block of clients under k shared models may occupy; from an
# eighth to four times as much is as fast.
SHARED_OUTPUT_BYTES = 8 * 2**20


def block_size(count: int, most: int) -> int:
    """The size of blocks of about `most` of so many clients: of like size, and no thread idle."""
    blocks = -(-count // max(1, most))
    threads = most_threads()
    return -(-count // (blocks * threads)) * threads


def blocks_by_weights(
    rows: Rows, weights: int, like: Tensor, occupy: int = WEIGHT_BYTES
) -> Iterator[tuple[slice, Rows]]:
    """Clients with so many weights each, that `occupy` so much: which they are, and their rows.

    Weights are of the type and on the device of `like`.
    """
    most = cache_bytes(like.device, occupy) // (weights * like.element_size())
    return rows.client_blocks(block_size(len(rows.y), most))
