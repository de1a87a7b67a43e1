"""Devices: where the work on clients is done.

The server's side of an algorithm is always on the CPU, and so are the ids of clients, what they
keep between rounds and all random draws. Client steps, with the samples and models they work on,
may be on another device.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from coterie.tensors.threads import most_threads

CPU = torch.device("cpu")
# What may be worked on at a time elsewhere, in place of what suits a CPU's cache. A round number
# for cards of 8 GB and more.
ACCELERATOR_BYTES = 256 * 2**20


def default_device(device: torch.device) -> AbstractContextManager[Any]:
    """New tensors are made on `device` inside; nothing happens, at no cost, on the CPU."""
    return nullcontext() if device == CPU else device


def working_bytes(device: torch.device, cache: int) -> int:
    """The bytes that may be worked on at a time: what suits a CPU's cache, elsewhere more."""
    return cache if device == CPU else ACCELERATOR_BYTES


def cache_bytes(device: torch.device, each: int) -> int:
    """The bytes that may be worked on at a time where every thread of a CPU has its own part."""
    return working_bytes(device, each * most_threads())


def free_bytes(device: torch.device) -> int:
    """The memory of a device that nobody uses; of the CPU it is not known."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else sys.maxsize
