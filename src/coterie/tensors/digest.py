"""A digest of named tensors, by which damage is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def content_digest(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """A SHA-256 over every fact and every byte of every tensor."""
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if tensor.numel():
            total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
