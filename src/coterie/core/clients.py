"""The seam: how an algorithm reaches clients, and the only way it does.

    ids, up = clients.run(self.train, models=state.models)

`self.train` is a client step, marked `@on_client`. Its keyword arguments are what a client
downloads, the fields of the `NamedTuple` it returns are what it uploads; nothing else crosses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, TypeVar, overload, runtime_checkable

import torch
from torch import Tensor

from coterie.core.fields import Role
from coterie.core.task import Task
from coterie.tensors.lazy import dense, select_rows

Step = TypeVar("Step", bound=Callable[..., Any])
Upload = TypeVar("Upload", bound=tuple[Any, ...])
Result = TypeVar("Result", covariant=True)
# What a field with the role Model is a displacement of: a download, or what a function of the
# algorithm, the task and the message gives.
Origin = str | Callable[[Any, Task, Mapping[str, Any]], Tensor]


@overload
def on_client(step: Step) -> Step: ...
@overload
def on_client(
    *, fold: type[Fold[Any]] | None = None, origins: Mapping[str, Origin] | None = None
) -> Callable[[Step], Step]: ...
def on_client(
    step: Any = None,
    *,
    fold: type[Fold[Any]] | None = None,
    origins: Mapping[str, Origin] | None = None,
) -> Any:
    """Mark a method, or a function that algorithms share, as a client step.

    It is called as `step(self, cohort, **download) -> NamedTuple`, `self` being the algorithm.

    A step is written for a cohort: every tensor it returns has a leading client axis. It must not
    mix clients and must not change its arguments; `coterie.checks` proves both.

    Without a `fold` the server sees the upload of every client. `@on_client(fold=ByCluster)`
    promises that it only ever sees what such a fold lets through, and holds every call to it.

    A fold says which download a field with the role Model is a displacement of. Where there is
    none, `origins` says it, as in {"model": "model"}, for whoever asks how far a client has moved:
    attacks and screens. In place of a download's name it may be a function of the algorithm, the
    task and the message that gives the model [d] or the models [k, d].
    """
    if step is None:
        return partial(mark_client_step, fold=fold, origins=origins)
    return mark_client_step(step, fold=None, origins=None)


def mark_client_step(
    step: Step, fold: type[Fold[Any]] | None, origins: Mapping[str, Origin] | None
) -> Step:
    """A function marked as a client step whose uploads go through a kind of fold, or are seen."""
    step.__on_client__ = True  # type: ignore[attr-defined]
    step.__fold__ = fold  # type: ignore[attr-defined]
    step.__origins__ = dict(origins or {})  # type: ignore[attr-defined]
    return step


def is_client_step(step: Any) -> bool:
    """Whether something is marked `@on_client`."""
    return getattr(step, "__on_client__", False)


def declared_fold(step: Callable[..., Any]) -> type[Fold[Any]] | None:
    """The kind of fold that all uploads of a step go through; None: the server sees each."""
    return getattr(step, "__fold__", None)


def declared_origins(
    step: Callable[..., Any], task: Task, sent: Mapping[str, Any]
) -> dict[str, str | Tensor]:
    """What fields of a step's uploads are displacements of: a download by its name, or models."""
    declared: Mapping[str, Origin] = getattr(step, "__origins__", {})
    algorithm = getattr(step, "__self__", None)
    return {
        name: origin if isinstance(origin, str) else origin(algorithm, task, sent)
        for name, origin in declared.items()
    }


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

    def index_for(self, ids: Tensor) -> Tensor:
        """Which of the shared rows clients `ids` receive, [len(ids)]."""
        assert self.index is not None, "clients that have rows of their own share none"
        return self.index[ids if self.ids is None else torch.searchsorted(self.ids, ids)]

    def for_clients(self, ids: Tensor) -> Each:
        """What of this goes to clients `ids`; models that they share are sent once."""
        if self.index is None:
            return Each(dense(self.rows)[ids], None, ids)
        return Each(dense(self.rows), self.index[ids], ids)


class Traffic(NamedTuple):
    """What arrived of some clients at once."""

    replies: int
    bytes: dict[str, int]  # of each field, of all of them


class Filter(Protocol):
    """Changes or drops uploads on their way: plain data, applied where uploads arise.

    That is in a chunk of the simulator, in a Ray actor or on a node, before anything is folded.
    """

    def apply(self, call: Call, ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
        """What becomes of the uploads of clients `ids`: whose are left, and what they are."""


class Listener(Protocol):
    """Follows the traffic of calls, on the server only."""

    def on_call(self, call: Call) -> None:
        """Clients are about to be asked."""

    def on_replies(self, call: Call, traffic: Traffic) -> None:
        """Some of them have replied; what was lost on the way does not count."""


class Call(NamedTuple):
    """A client step on some clients in one round."""

    step: Callable[..., Any]  # marked @on_client
    ids: Tensor  # [a] the clients, increasing
    round: int
    address: tuple[int | str, ...]  # where the randomness of the step begins, the seed first
    message: dict[str, Any]  # what they are sent
    trains: bool = True  # False: nothing that clients keep may change
    channel: tuple[Filter, ...] = ()  # what uploads go through, in this order
    listener: Listener | None = None
    withheld: bool = False  # whether sums are all that the server may see of a fold that only adds
    participants: int = 0  # clients that take part in the round, of which `ids` are asked
    silent: int = 0  # of these, others who were asked before in this round and did not answer
    # What fields with the role Model are displacements of: the name of a download, or models.
    origins: Mapping[str, str | Tensor] = {}


class Fold(Protocol[Result]):
    """Takes uploads in as they arrive, so that memory does not grow with the number of clients.

    A fold is a frozen dataclass of plain data, so that it can be sent to where uploads arise. The
    chunked simulator, shards that are merged later and a server on a network use the same four
    operations. `total` is whatever the fold likes it to be, `sent` the message of the call.
    """

    def start(self) -> Any: ...
    def add(self, total: Any, ids: Tensor, upload: Any, sent: Mapping[str, Any]) -> Any: ...
    def merge(self, one: Any, other: Any) -> Any: ...
    def finish(self, total: Any, sent: Mapping[str, Any], floor: float = 0.0) -> Result:
        """The result; a weight of at most `floor` counts as nobody's."""


TermShapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


@runtime_checkable
class LinearFold(Fold[Result], Protocol[Result]):
    """A fold that only adds: what each client adds to the sums are its terms.

    So partial folds can be made anywhere, and be clipped, noised or masked without knowing whose.
    """

    @property
    def per_client(self) -> tuple[Role, ...]:
        """The roles of what the result may tell of single clients, besides the sums."""

    def without_clients(self) -> Self | None:
        """The same fold, which tells nothing of single clients; None if it cannot do without."""

    def term_shapes(self, sent: Mapping[str, Any]) -> TermShapes:
        """The shape and type of every term, known before anybody answers."""

    def terms(self, ids: Tensor, upload: Any, sent: Mapping[str, Any]) -> dict[str, Tensor]:
        """What each client adds to the sums: for every term [m, ...]."""

    def bound(self, limits: Mapping[str, float], largest_weight: float = 1.0) -> float:
        """The largest norm of one client's terms, taken together.

        `limits` are the largest norms of what the fields of a client are displaced by.
        """


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

    @property
    def withheld(self) -> bool:
        """Whether the server is not told which client is in which cluster."""

    def only(self, ids: Tensor) -> Clients:
        """The same clients, narrowed to `ids`."""

    def generator(self, purpose: str) -> torch.Generator:
        """What the server draws from in this round, by the round and the purpose alone."""

    @overload
    def run(
        self, step: Callable[..., Upload], *, fold: None = None, **message: Any
    ) -> tuple[Tensor, Upload]: ...
    @overload
    def run(
        self, step: Callable[..., Any], *, fold: Fold[Result], **message: Any
    ) -> tuple[Tensor, Result]: ...


class Replies:
    """The replies to a call as they arrive: through the channel and the listener into the fold.

    `sent` is the message of the call, on the device where uploads are folded.
    """

    def __init__(self, call: Call, fold: Fold[Any], sent: Mapping[str, Any] | None = None) -> None:
        self.call, self.fold = call, fold
        self.sent = call.message if sent is None else sent
        self.total = fold.start()
        self._arrived: list[Tensor] = []

    def add(self, ids: Tensor, upload: Any) -> None:
        """Take in what clients `ids` sent."""
        for each in self.call.channel:
            if len(ids):
                ids, upload = each.apply(self.call, ids, upload)
        if not len(ids):
            return
        if self.call.listener is not None:
            sizes = {n: v.numel() * v.element_size() for n, v in upload._asdict().items()}
            self.call.listener.on_replies(self.call, Traffic(len(ids), sizes))
        self._arrived.append(ids)
        self.total = self.fold.add(self.total, ids, upload, self.sent)

    @property
    def ids(self) -> Tensor:
        """Whose replies arrived, increasing."""
        return torch.cat([torch.arange(0), *self._arrived]).sort().values


@dataclass(frozen=True)
class Stacked:
    """The fold that folds nothing: every upload, in increasing order of client id.

    `k` is how many clusters there are, where somebody folds them afterwards. To finish it empties
    what was taken in, so that uploads are never held twice.
    """

    k: int | None = None

    def start(self) -> list[tuple[Tensor, Any]]:
        return []

    def add(
        self, total: list[tuple[Tensor, Any]], ids: Tensor, upload: Any, sent: Mapping[str, Any]
    ) -> Any:
        return [*total, (ids, type(upload)(*map(dense, upload)))]

    def merge(self, one: list[tuple[Tensor, Any]], other: list[tuple[Tensor, Any]]) -> Any:
        return one + other

    def finish(
        self, total: list[tuple[Tensor, Any]], sent: Mapping[str, Any], floor: float = 0.0
    ) -> Any:
        if not total:
            return None
        place = torch.cat([ids for ids, _ in total]).argsort().argsort()
        kind, first = type(total[0][1]), total[0][1]
        if len(total) == 1 and bool((place.diff() > 0).all()):
            return total.pop()[1]
        fields = [value.new_empty(len(place), *value.shape[1:]) for value in first]
        end = len(place)
        while total:  # from the end, so that a list gives its uploads back one by one
            ids, upload = total.pop()
            for field, value in zip(fields, upload, strict=True):
                field[place[end - len(ids) : end]] = value
            end -= len(ids)
        return kind(*fields)


def merge_answers(*answers: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    """Answers of different clients, to different steps with one upload, as one answer.

    Clients are in increasing order of id; the upload is None if nobody answered.
    """
    ids = torch.cat([torch.arange(0), *(ids for ids, _ in answers)]).sort().values
    return ids, Stacked().finish([(ids, upload) for ids, upload in answers if len(ids)], {})
