"""A device that is not there: tensors that say they are elsewhere, with their numbers on the CPU.

Inside `Elsewhere()` the device `meta`, which PyTorch has for shapes without numbers, plays a GPU:
what is made there or moved there is a `Far` tensor, and an operation that takes tensors of both
devices is refused wherever CUDA refuses it. What CUDA allows is allowed: numbers (tensors without
axes) on the CPU in elementwise operations, indices on the CPU into tensors elsewhere, and copies.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from coterie.tensors.lazy import Lazy, dense

FAR = torch.device("meta")
aten = torch.ops.aten
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
COPIES = {aten.copy_, aten.copy, aten._to_copy}


class Mixed(RuntimeError):
    """An operation on tensors of both devices."""


class Far(Tensor):
    """A tensor elsewhere; `near` has its numbers."""

    near: Tensor

    @staticmethod
    def __new__(cls, near):
        assert near.device.type == "cpu"
        far = Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=FAR,
        )
        far.near = near
        return far

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        return done(function, arguments, options or {})

    def numpy(self, *, force=False):
        raise TypeError("can't convert a tensor elsewhere to numpy")

    def tolist(self):
        return self.near.tolist()

    def data_ptr(self):
        return self.near.data_ptr()

    def __repr__(self):
        return f"Far({self.near!r})"


@contextmanager
def elsewhere():
    """Inside, `meta` is a device with numbers."""
    with MadeThere(), Catching():
        yield FAR


class Catching(TorchDispatchMode):
    """Sees every operation, also those that make tensors."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        if any(isinstance(value, Lazy) for value in tree_leaves((arguments, options))):
            with self:  # forming a lazy tensor is work, too
                return function(*tree_map(dense, arguments), **tree_map(dense, options))
        return done(function, arguments, options)


class MadeThere(TorchFunctionMode):
    """What makes numbers for any device but `meta`: here they are made and moved."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        if function in (torch.tensor, torch.as_tensor) and is_far(options.get("device")):
            del options["device"]
            return function(*arguments, **options).to(FAR)
        if function is Tensor.__getitem__ and isinstance(arguments[1], list):
            arguments = (arguments[0], torch.tensor(arguments[1]))
        return function(*arguments, **options)


def done(function, arguments, options):
    """An operation on the numbers; its results are where CUDA would have them."""
    tensors = [v for v in tree_leaves((arguments, options)) if isinstance(v, Tensor)]
    far = any(isinstance(tensor, Far) for tensor in tensors)
    if far:
        check(function, arguments, tensors)
    if any(tensor.device.type == FAR.type and not isinstance(tensor, Far) for tensor in tensors):
        raise Mixed(f"{function}: a tensor was made elsewhere where nobody saw it")
    if options.get("device") is not None:
        far = is_far(options["device"])
        options = {**options, "device": torch.device("cpu")}
    if far and options.get("generator") is not None:
        raise Mixed(f"{function}: a generator of the CPU cannot draw elsewhere")
    near = function(*tree_map(numbers, arguments), **tree_map(numbers, options))
    if not far:
        return near
    wrapped = tree_map(lambda value: Far(value) if isinstance(value, Tensor) else value, near)
    return return_and_correct_aliasing(function, arguments, options, wrapped)


def check(function, arguments, tensors):
    """Refuse what CUDA refuses."""
    packet = function.overloadpacket
    if packet in COPIES:
        return
    if packet in INDEXING:
        if not isinstance(arguments[0], Far):
            raise Mixed(f"{function}: indices elsewhere into a tensor on the CPU")
        tensors = [v for v in arguments[2:3] if isinstance(v, Tensor)]  # what is put there
    if packet.__name__.endswith("_") and not isinstance(arguments[0], Far):
        raise Mixed(f"{function}: a tensor on the CPU is changed by one elsewhere")
    for tensor in tensors:
        alone = tensor.dim() == 0 and (
            torch.Tag.pointwise in function.tags or packet in INDEXING | {aten.masked_fill}
        )
        if not isinstance(tensor, Far) and not alone:
            raise Mixed(f"{function}: a tensor of shape {list(tensor.shape)} is on the CPU")


def numbers(value):
    return value.near if isinstance(value, Far) else value


def is_far(device):
    return device is not None and torch.device(device).type == FAR.type
