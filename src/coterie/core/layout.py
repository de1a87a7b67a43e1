"""One flat vector per model: where the parameters and buffers of a network lie in it.

Parameters that ask for a gradient come first, in the module's own order; after them the buffers of
the state dict (the running statistics of batch normalisation, for example), which travel and are
averaged with the model but receive no gradient. Integer and boolean buffers are carried as floats
and rounded when put back. Frozen parameters stay in the module: they are the same in every model,
and nothing of them travels.
"""

from __future__ import annotations

import hashlib
from math import prod

import torch
from torch import Tensor, nn

from coterie.core.errors import SettingError, did_you_mean


class Layout:
    """The order of a module's tensors in its flat vector.

    >>> layout = Layout(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> layout.size, layout.names
    (26, ['0.weight', '0.bias', '2.weight', '2.bias'])
    >>> int(layout.part("head").sum())
    10
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = dict(module.named_parameters())
        kept = module.state_dict(keep_vars=True)
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        carried = {name: kept[name] for name, _ in module.named_buffers() if name in kept}
        if not trained:
            raise SettingError(f"the module {type(module).__name__} has no parameters to train")
        tensors = {**trained, **carried}
        self.names = list(tensors)
        self.shapes = [tuple(tensor.shape) for tensor in tensors.values()]
        self.dtypes = [tensor.dtype for tensor in tensors.values()]
        self.sizes = [prod(shape) for shape in self.shapes]
        self.size = sum(self.sizes)  # d
        self.dtype = next(iter(trained.values())).dtype
        self.trained = list(trained)  # names of the leading tensors
        self.trained_size = sum(p.numel() for p in trained.values())  # leading coordinates
        self.frozen = [name for name in parameters if name not in trained]  # not in the vector
        self.spared = {name for name in self.trained if is_intercept(name)}  # by weight decay
        self.head = self.trained[-1].rpartition(".")[0]  # the layer with the last trained parameter

    def flatten(self, module: nn.Module) -> Tensor:
        """The trained parameters and the buffers of `module` as one vector, [d]."""
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([state[n].detach().reshape(-1).to(self.dtype) for n in self.names])

    def unflatten(self, vectors: Tensor) -> dict[str, Tensor]:
        """The named tensors of vectors [..., d], each [..., *shape]; views where types allow."""
        pieces = vectors.split(self.sizes, dim=-1)
        lead = vectors.shape[:-1]
        return {
            name: cast_to(piece.reshape((*lead, *shape)), dtype)
            for name, piece, shape, dtype in zip(
                self.names, pieces, self.shapes, self.dtypes, strict=True
            )
        }

    def step(self, models: Tensor, gradient: Tensor, lr: float) -> Tensor:
        """Models [..., d] after a gradient step of size `lr`.

        Buffers, as the running statistics of batch normalisation, take over their change whole:
        see `Cohort.gradient`.
        """
        if self.trained_size == self.size:
            return models - lr * gradient
        sizes = [self.trained_size, self.size - self.trained_size]
        (trained, carried), (slope, change) = (v.split(sizes, -1) for v in (models, gradient))
        return torch.cat([trained - lr * slope, carried - change], -1)

    def decaying(self, like: Tensor) -> Tensor:
        """1 for each trained coordinate that weight decay pulls, 0 for intercepts; as `like` is.

        >>> Layout(nn.Linear(2, 1)).decaying(torch.zeros(1)).tolist()
        [1.0, 1.0, 0.0]
        """
        factors = [name not in self.spared for name in self.trained]
        sizes = torch.tensor(self.sizes[: len(self.trained)])
        return torch.tensor(factors).repeat_interleave(sizes).to(like)

    def part(self, name: str) -> Tensor:
        """The coordinates of a named part, a boolean mask [d].

        `all` is everything, `head` the last layer that is trained, `body` the rest; any other name
        selects the tensors of that submodule or parameter, as in `0` or `fc2.weight`.
        """
        if name == "all":
            return torch.ones(self.size, dtype=torch.bool)
        if name in ("head", "body"):
            inside = [n.rpartition(".")[0] == self.head for n in self.names]
            if name == "body":
                inside = [not chosen for chosen in inside]
        else:
            inside = [n == name or n.startswith(name + ".") for n in self.names]
        if not any(inside) and any(f"{n}.".startswith(f"{name}.") for n in self.frozen):
            raise SettingError(f"{name} of the network is frozen, so that models have no such part")
        if not any(inside):
            owners = {n.rpartition(".")[0] for n in self.names}
            known = sorted({"all", "head", "body", *self.names, *owners} - {""})
            raise SettingError(
                f"the network has no part named {name}{did_you_mean(name, known)}"
                f" (its parts: {', '.join(known)})"
            )
        return torch.repeat_interleave(torch.tensor(inside), torch.tensor(self.sizes))


def is_intercept(name: str) -> bool:
    """Whether a tensor of this name is a bias, also one of a recurrent or attention layer.

    >>> [is_intercept(name) for name in ("0.bias", "rnn.bias_hh_l0", "bias.weight")]
    [True, True, False]
    """
    return "bias" in name.rpartition(".")[2]


def frozen_digest(module: nn.Module) -> str:
    """A digest of the frozen weights of a network; empty if none are frozen.

    Models fit together only where these are the same.
    """
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    total = hashlib.sha256()
    for name, weight in frozen.items():
        total.update(f"{name} {weight.dtype} {list(weight.shape)}".encode())
        flat = weight.detach().cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return total.hexdigest()[:16] if frozen else ""


def keeps_statistics(module: nn.Module) -> bool:
    """Whether a network updates buffers when it trains, as batch normalisation does."""
    return any(getattr(part, "track_running_stats", False) for part in module.modules())


def cast_to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A piece of the flat vector in the type that the module has it in."""
    if tensor.dtype == dtype:
        return tensor
    return tensor.to(dtype) if dtype.is_floating_point else tensor.round().to(dtype)
