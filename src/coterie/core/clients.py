"""The seam: how an algorithm reaches clients, and the only way it does.

    ids, up = clients.run(self.train, models=state.models)

`self.train` is a client step, marked `@on_client`. Its keyword arguments are what a client
downloads, the fields of the `NamedTuple` it returns are what it uploads; nothing else crosses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, overload

import torch
from torch import Tensor

from coterie.core.task import Task
from coterie.tensors.lazy import dense, select_rows

Step = TypeVar("Step", bound=Callable[..., Any])
Upload = TypeVar("Upload", bound=tuple[Any, ...])
Result = TypeVar("Result", covariant=True)


def on_client(step: Step) -> Step:
    """Mark a method, or a function that algorithms share, as a client step.

    It is called as `step(self, cohort, **download) -> NamedTuple`, `self` being the algorithm.

    A step is written for a cohort: every tensor it returns has a leading client axis. It must not
    mix clients and must not change its arguments; `coterie.checks` proves both.
    """
    step.__on_client__ = True  # type: ignore[attr-defined]
    return step


def step_name(step: Callable[..., Any]) -> str:
    """The name of a client step with that of the algorithm whose class has it: `IFCA.train`."""
    classes = type(step.__self__).__mro__  # type: ignore[attr-defined]
    owner = next(each for each in classes if step.__name__ in vars(each))
    return f"{owner.__name__}.{step.__name__}"


@dataclass(frozen=True)
class Each:
    """A download in which client i gets row i of `rows`, or row `index[i]` when `index` is given.

    With an index, k models serve any number of clients without a copy for each of them. An `Each`
    may be cut down to some clients (`for_clients`), to be sent to where they are; it then has only
    their rows, or their places in the index, and says whose they are.
    """

    rows: Tensor  # [m, ...], or [k, ...] with an index
    index: Tensor | None = None  # [m]
    ids: Tensor | None = None  # [m] whose rows these are, increasing; None: those of 0 to m - 1

    def rows_for(self, ids: Tensor) -> Tensor:
        """The rows that clients `ids` receive, [len(ids), ...]."""
        places = ids if self.ids is None else torch.searchsorted(self.ids, ids)
        if self.index is None:
            return self.rows[places]
        index = self.index[places]
        return select_rows(self.rows, index) if self.rows.dim() == 2 else self.rows[index]

    def for_clients(self, ids: Tensor) -> Each:
        """What of this goes to clients `ids`; models that they share are sent once."""
        if self.index is None:
            return Each(dense(self.rows)[ids], None, ids)
        return Each(dense(self.rows), self.index[ids], ids)


class Call(NamedTuple):
    """A client step on some clients in one round."""

    step: Callable[..., Any]  # marked @on_client
    ids: Tensor  # [a] the clients, increasing
    round: int
    address: tuple[int | str, ...]  # where the randomness of the step begins, the seed first
    message: dict[str, Any]  # what they are sent
    trains: bool = True  # False: nothing that clients keep may change


class Fold(Protocol[Result]):
    """Takes uploads in as they arrive, so that memory does not grow with the number of clients.

    The chunked simulator, shards that are merged later and a server on a network use the same four
    operations. `total` is whatever the fold likes it to be.
    """

    def start(self) -> Any: ...
    def add(self, total: Any, ids: Tensor, upload: Any) -> Any: ...
    def merge(self, one: Any, other: Any) -> Any: ...
    def finish(self, total: Any) -> Result: ...


class Clients(Protocol):
    """The clients of a round, wherever they are: in a simulator or on a network."""

    @property
    def ids(self) -> Tensor:
        """Who takes part in this round, increasing."""

    @property
    def population(self) -> int:
        """How many clients the federation has; ids of unseen clients start here."""

    @property
    def round(self) -> int:
        """Which round it is, from 0."""

    @property
    def task(self) -> Task:
        """What a flat parameter vector means."""

    def only(self, ids: Tensor) -> Clients:
        """The same clients, narrowed to `ids`."""

    @overload
    def run(
        self, step: Callable[..., Upload], *, fold: None = None, **message: Any
    ) -> tuple[Tensor, Upload]: ...
    @overload
    def run(
        self, step: Callable[..., Any], *, fold: Fold[Result], **message: Any
    ) -> tuple[Tensor, Result]: ...


class Stacked:
    """The fold that folds nothing: every upload, in increasing order of client id."""

    def start(self) -> list[tuple[Tensor, Any]]:
        return []

    def add(self, total: list[tuple[Tensor, Any]], ids: Tensor, upload: Any) -> Any:
        return [*total, (ids, type(upload)(*map(dense, upload)))]

    def merge(self, one: list[tuple[Tensor, Any]], other: list[tuple[Tensor, Any]]) -> Any:
        return one + other

    def finish(self, total: list[tuple[Tensor, Any]]) -> Any:
        if not total:
            return None
        order = torch.cat([ids for ids, _ in total]).argsort()
        kind = type(total[0][1])
        fields = zip(*(upload for _, upload in total), strict=True)
        return kind(*(torch.cat(chunks)[order] for chunks in fields))


def merge_answers(*answers: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    """Answers of different clients, to different steps with one upload, as one answer.

    Clients are in increasing order of id; the upload is None if nobody answered.
    """
    ids = torch.cat([torch.arange(0), *(ids for ids, _ in answers)]).sort().values
    return ids, Stacked().finish([(ids, upload) for ids, upload in answers if len(ids)])
