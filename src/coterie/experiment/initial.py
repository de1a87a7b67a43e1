"""The models that a run begins with, where the user has them: vectors, a network or a file."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from coterie.core.errors import SettingError
from coterie.core.task import Task

READING_ERRORS = (
    OSError,
    RuntimeError,
    ValueError,
    EOFError,
    SafetensorError,
    pickle.UnpicklingError,
)

Initial = Tensor | nn.Module | str | Path


def given_models(initial: Initial, task: Task) -> Tensor:
    """The models [j, d] to begin with: one for all (j = 1) or one for each of j clusters.

    initial  a vector [d], vectors [j, d], a network like that of the task, or the path of a file
             with its state dict, as safetensors or as `torch.save` writes it
    """
    if isinstance(initial, str | Path):
        models = flatten_state(read_state(Path(initial)), task, f"the file {initial}")
    elif isinstance(initial, nn.Module):
        models = flatten_state(initial.state_dict(), task, f"the module {type(initial).__name__}")
    elif isinstance(initial, Tensor):
        models = initial.detach().cpu()
    else:
        raise SettingError(
            "`initial` must be a tensor, a torch.nn.Module or the path of a state dict, "
            f"got {type(initial).__name__}"
        )
    size = task.layout.size
    if models.dim() not in (1, 2) or models.shape[-1] != size or not models.numel():
        raise SettingError(
            f"`initial` must be a model [{size}] or several [j, {size}] for the task's network, "
            f"got the shape {list(models.shape)}"
        )
    models = models.to(task.layout.dtype).view(-1, size)
    if not bool(torch.isfinite(models).all()):
        raise SettingError("`initial` must be finite, got numbers that are not")
    return models


def flatten_state(state: Mapping[str, Tensor], task: Task, name: str) -> Tensor:
    """A state dict as one vector [d]; refused if it is that of another network."""
    layout, own = task.layout, dict(task.module.named_parameters())
    for key, shape in zip(layout.names, layout.shapes, strict=True):
        found = tuple(state[key].shape) if key in state else None
        if found != shape:
            raise SettingError(
                f"`initial` must fit the task's network, whose {key} has the shape {list(shape)}: "
                f"{name} has {'none' if found is None else list(found)}"
            )
    for key in layout.frozen:
        if key in state and not torch.equal(state[key].cpu(), own[key].detach().cpu()):
            raise SettingError(
                f"{key} is frozen, and {name} has other weights there than the task's network: "
                "give the task a network with these"
            )
    tensors = (state[key].detach().cpu() for key in layout.names)
    return torch.cat([tensor.reshape(-1).to(layout.dtype) for tensor in tensors])


def read_state(path: Path) -> dict[str, Tensor]:
    """The state dict in a file."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except READING_ERRORS as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SettingError(f"`initial` cannot be read from {path}: {reason}") from error
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise SettingError(f"`initial` must be a state dict, which {path} is not")
    return dict(found)
