"""What the fields of an upload are: each has a role, which is part of its type.

    class Upload(NamedTuple):
        cluster: Cluster  # [m]
        model: Model  # [m, d]
        size: Size  # [m]

Whoever handles uploads without knowing the algorithm (folds, `coterie describe`, the network's
checks of a reply) goes by the role of a field, never by its name.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Annotated, get_args

from torch import Tensor

from coterie.core.imports import read_annotations


class Role(Enum):
    """What a field of an upload is."""

    MODEL = "model"
    UPDATE = "update"
    CLUSTER = "cluster"
    SIZE = "size"
    LOSS = "loss"
    STATISTIC = "statistic"


# A model [m, d] or part of one, or [m, k, d]; summed as its displacement from what was sent.
Model = Annotated[Tensor, Role.MODEL]
# A gradient or a difference of models [m, d]; summed as it is.
Update = Annotated[Tensor, Role.UPDATE]
# The index of a cluster [m].
Cluster = Annotated[Tensor, Role.CLUSTER]
# How many samples a client has used [m].
Size = Annotated[Tensor, Role.SIZE]
# Mean losses [m] or [m, k].
Loss = Annotated[Tensor, Role.LOSS]
# Anything else; a field that is annotated as a plain tensor is one too.
Statistic = Annotated[Tensor, Role.STATISTIC]


@cache
def roles(upload: type) -> dict[str, Role]:
    """The role of each field of an upload.

    >>> from typing import NamedTuple
    >>> class Upload(NamedTuple):
    ...     model: Model
    ...     note: Tensor
    >>> roles(Upload)
    {'model': <Role.MODEL: 'model'>, 'note': <Role.STATISTIC: 'statistic'>}
    """
    hints = read_annotations(upload, with_roles=True)
    return {
        field: next((a for a in get_args(hint) if isinstance(a, Role)), Role.STATISTIC)
        for field, hint in hints.items()
    }


def moves_models(upload: type) -> bool:
    """Whether an upload has a model, an update, or a part of one."""
    return any(role in (Role.MODEL, Role.UPDATE) for role in roles(upload).values())


def field_of_role(upload: type, role: Role) -> str | None:
    """The first field of an upload that has a role, None if there is none."""
    return next((field for field, own in roles(upload).items() if own is role), None)
