"""The devices of this machine by name.

Client steps may run on another device than the CPU. That part (`device=`, the kernel `vmapped`, and
what `tensors/devices.py` says of other devices) is experimental: it is tested on a simulated device
and has never run on a GPU.
"""

from __future__ import annotations

import torch

from coterie.core.errors import SettingError
from coterie.tensors.devices import CPU


def available_devices() -> list[str]:
    """The names of the devices of this machine."""
    if not torch.cuda.is_available():
        return ["cpu"]
    return ["cpu", "cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def check_device(name: str | torch.device) -> None:
    """Refuse a device that this machine does not have."""
    if str(name) == "cpu" or str(name) in (known := available_devices()):
        return
    rule = f"one of {', '.join(known)}"
    if known == ["cpu"]:
        rule = "cpu, for PyTorch finds no CUDA device on this machine"
    raise SettingError(f"`device` must be {rule}, got {name}")


def find_device(name: str | torch.device) -> torch.device:
    """The device of that name.

    >>> find_device("cpu")
    device(type='cpu')
    """
    check_device(name)
    return CPU if str(name) == "cpu" else torch.empty(0, device=name).device  # of several, which
