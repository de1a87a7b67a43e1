"""Randomness without global state: every draw has an address.

A generator is made anew from (seed, round, client, purpose), so that no result depends on the order
of execution, a resumed run needs no stored generator, and a client draws the same numbers alone or
in a cohort.
"""

from __future__ import annotations

import hashlib

import torch


def derive(*address: int | str) -> int:
    """A 63-bit seed for `address`, which begins with the run's seed; neighbours are unrelated.

    >>> derive(0, "batches", 3) == derive(0, "batches", 3)
    True
    >>> derive(0, "batches", 3) == derive(0, "batches", 4)
    False
    """
    # A NumPy integer is the same address as the plain one.
    plain = tuple([part if isinstance(part, str) else int(part) for part in address])
    text = repr(plain).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(*address: int | str) -> torch.Generator:
    """A fresh generator for `address`."""
    return torch.Generator().manual_seed(derive(*address))
