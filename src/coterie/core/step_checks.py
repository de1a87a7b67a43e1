"""What an author may get wrong where server and clients meet, each refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.clients import Each, Fold, declared_fold, is_client_step, step_name
from coterie.core.errors import CoterieError
from coterie.core.imports import read_annotations

if TYPE_CHECKING:
    from coterie.core.algorithm import Serving

MIXTURE_ERROR = 1e-3  # by which shares may miss 1


def declared_upload(step: Callable[..., Any]) -> Any:
    """The type that a client step says it returns; None if it does not say."""
    return read_annotations(step).get("return")


def check_client_step(step: Any) -> None:
    """Refuse what is no client step of an algorithm."""
    if not (is_client_step(step) and hasattr(step, "__self__")):
        name = getattr(step, "__qualname__", type(step).__name__)
        raise CoterieError(
            "`clients.run` must be given a method of the algorithm that is marked @on_client, got "
            f"{name}"
        )


def check_promised_fold(step: Callable[..., Any], fold: Fold[Any]) -> None:
    """Refuse a fold that is not of the kind that a client step is marked with."""
    promised = declared_fold(step)
    if promised is not None and not isinstance(fold, promised):
        raise CoterieError(
            f"{step_name(step)} is marked `fold={promised.__name__}` and must be run with such a "
            f"fold, got {type(fold).__name__}"
        )


def check_downloads(step: Callable[..., Any], ids: Tensor, message: Mapping[str, Any]) -> None:
    """Refuse an `Each` in which one of the clients `ids` has no row."""
    for name, value in message.items():
        if not isinstance(value, Each) or value.ids is not None or not len(ids):
            continue
        last, index = int(ids[-1]), value.index
        rows = value.rows if index is None else index
        if last >= len(rows):
            raise CoterieError(
                f"{name} of {step_name(step)} must have a row for each client of the federation, "
                f"got {len(rows)} rows and none for client {last}"
            )
        if index is not None:
            what = f"the index of {name} of {step_name(step)}"
            check_index(what, index[ids], len(value.rows))


def check_upload(step: Callable[..., Any], ids: Tensor, upload: Any) -> None:
    """Refuse what a client step returned for clients `ids`, unless they have a row each in it."""
    if not hasattr(upload, "_fields"):
        raise CoterieError(
            f"{step_name(step)} must return a named tuple of tensors, got {type(upload).__name__}"
        )
    for name, value in zip(upload._fields, upload, strict=True):
        if not isinstance(value, Tensor):
            got = type(value).__name__
        elif value.dim() == 0 or len(value) != len(ids):
            got = str(list(value.shape))
        else:
            continue
        raise CoterieError(
            f"{name} of {step_name(step)} must be a tensor with a row for each client, "
            f"[{len(ids)}, ...], got {got}"
        )


def check_index(what: str, index: Tensor, count: int) -> None:
    """Refuse an index that is not made of whole numbers from 0 to count - 1."""
    if index.is_floating_point() or index.dtype.is_complex:
        got = str(index.dtype).removeprefix("torch.")
    else:
        outside = index[(index < 0) | (index >= count)]
        if not len(outside):
            return
        got = str(int(outside[0]))
    raise CoterieError(f"{what} must be whole numbers from 0 to {count - 1}, got {got}")


def check_models(what: str, models: Tensor, size: int, *leading: list[int | str]) -> None:
    """Refuse models that are not [..., size] with one of the leading shapes; k is any number."""
    shape = list(models.shape)
    for lead in leading:
        fits = zip([*lead, size], shape, strict=False)
        if len(shape) == len(lead) + 1 and all(a in ("k", b) for a, b in fits):
            return
    shapes = " or ".join(f"[{', '.join(map(str, lead))}, {size}]" for lead in leading)
    raise CoterieError(f"{what} must be {shapes}, for a model has {size} numbers, got {shape}")


def check_kept_rows(name: str, value: Tensor, clients: int) -> None:
    """Refuse what is to be kept if it has not a row for each of so many clients."""
    if value.dim() == 0 or len(value) != clients:
        raise CoterieError(
            f"`keep` must be given a row of {name} for each client, [{clients}, ...], got "
            f"{list(value.shape)}"
        )


def check_served_clients(name: str, serving: Serving, ids: Tensor) -> None:
    """Refuse a serving for others than the clients `ids`, or for one of them twice."""
    served = serving.ids
    whole = served.dim() == 1 and not served.is_floating_point()
    if whole and len(served.unique()) == len(served) and bool(torch.isin(served, ids).all()):
        return
    raise CoterieError(
        f"the ids that {name} serves must be those of clients that it was asked to serve, each "
        f"once, got {served.tolist()[:8]}"
    )


def check_served_clusters(name: str, serving: Serving) -> None:
    """Refuse a serving in which a client has no model; those who choose themselves may have -1."""
    ids, cluster, k = serving.ids, serving.cluster, len(serving.models)
    if cluster is None or cluster.shape != ids.shape:
        got = None if cluster is None else list(cluster.shape)
        raise CoterieError(
            f"the Serving of {name} must have a cluster for each client, {list(ids.shape)}, got "
            f"{got}"
        )
    told = cluster if serving.choose is None else cluster[cluster != -1]
    check_index(f"the clusters that {name} serves", told, k)


def check_shares(name: str, serving: Serving) -> None:
    """Refuse a mixture unless each client has a share of each model."""
    shares = serving.mixture
    assert shares is not None
    expected = [len(serving.ids), len(serving.models)]
    if list(shares.shape) != expected:
        raise CoterieError(
            f"the mixture that {name} serves must be {expected}, a row for each client and a "
            f"share for each model, got {list(shares.shape)}"
        )
    if bool((shares < 0).any()) or bool(((shares.sum(1) - 1).abs() > MIXTURE_ERROR).any()):
        raise CoterieError(f"the shares that {name} serves must be at least 0 and sum to 1")
    if serving.adapt is not None or serving.label is not None:
        raise CoterieError(f"{name} must serve a mixture, or adapt or label, not both")
