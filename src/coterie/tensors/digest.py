"""Files of named tensors, and a digest by which damage to them is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor


def content_digest(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """A SHA-256 over every fact and every byte of every tensor."""
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if tensor.numel():
            total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and facts of a safetensors file; an OSError or ValueError if it is none."""
    if not path.is_file():  # the reader would wait for a pipe, and no signal could end that
        raise OSError("it is not a plain file")
    try:
        with safe_open(path, framework="pt") as file:
            # Cloned, to lie where a tensor lies that was computed: the last bit of a sum may depend
            # on how its address is aligned.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except SafetensorError as error:
        raise OSError(str(error)) from error
