"""A population: all clients of a run, wherever they are.

Clients may be simulated in this process (`engine/simulator.py`), in Ray actors (`engine/ray.py`) or
sit behind Flower's network (`flower/clients.py`). A run asks them for the clients of a round and
for little else; an algorithm only ever sees `Clients`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.clients import (
    Call,
    Each,
    Filter,
    Fold,
    LinearFold,
    Listener,
    Stacked,
    declared_origins,
    step_name,
)
from coterie.core.cohort import Memory
from coterie.core.errors import CoterieError, SettingError
from coterie.core.fields import Role, field_of_role, moves_models
from coterie.core.step_checks import (
    check_client_step,
    check_downloads,
    check_promised_fold,
    declared_upload,
)
from coterie.core.task import Task

# What clients are asked for: a start of the run, a round of it, or how they are to be served, which
# changes nothing that they keep.
Purpose = Literal["start", "round", "serve"]
# Another fold in the place of one, as a robust mean in that of a mean; the same if it has none.
ReplaceFold = Callable[[Callable[..., Any], Fold[Any]], Fold[Any]]


class Population(Protocol):
    """All clients that train in a run: on this machine, in Ray actors or over a network."""

    @property
    def population(self) -> int:
        """How many clients the federation has; ids of unseen clients start here."""

    @property
    def task(self) -> Task:
        """What a flat parameter vector means."""

    @property
    def ids(self) -> Tensor:
        """The ids of all clients, increasing."""

    @property
    def sizes(self) -> Tensor:
        """How many training samples each client has, [m]."""

    @property
    def memory(self) -> Memory:
        """What clients keep between rounds, as far as a checkpoint of the run has to hold it."""

    def at(
        self, purpose: Purpose, *address: int | str, round: int = 0, ids: Tensor | None = None
    ) -> RoundClients:
        """The clients `ids` (all of them if not given) in a round, behind the seam.

        Their randomness begins with the seed, the purpose and `address`.
        """

    def collect(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Run a client step: whose replies arrived, and the fold of these, unfinished.

        Uploads go through the channel of the call before they are folded, and its listener is told.
        """

    def notes(self) -> dict[str, Any]:
        """What else the record of a round says, of what happened since this was last asked."""

    def on_checkpoint(self, rounds: int) -> None:
        """The checkpoint of the run now holds so many rounds."""

    def on_best(self, rounds: int) -> None:
        """The best state so far is that after so many rounds, and may be gone back to."""

    def go_to(self, rounds: int) -> None:
        """What clients keep, `memory` included, is from now on what it was after these rounds."""


class RoundClients:
    """Some clients of a population in one round: what an algorithm sees."""

    def __init__(
        self,
        runner: Population,
        round: int,
        ids: Tensor,
        address: tuple[int | str, ...],
        purpose: Purpose,
    ) -> None:
        self.runner, self.population, self.task = runner, runner.population, runner.task
        self.round, self.ids, self.purpose = round, ids, purpose
        self._address = address
        self._calls = [0]  # shared with other views, so that no two calls draw the same
        self._participants, self._silent = len(ids), SilentClients()  # shared with other views
        self._channel: tuple[Filter, ...] = ()
        self._listener: Listener | None = None
        self._inspectors: tuple[Filter, ...] = ()
        self._replace_fold: ReplaceFold | None = None
        self.withheld = False

    def only(self, ids: Tensor) -> RoundClients:
        """The same clients, narrowed to `ids`."""
        strangers = ids[~torch.isin(ids, self.ids)]
        if len(strangers):
            raise CoterieError(
                f"`clients.only` must be given clients that take part, got {int(strangers[0])}"
            )
        narrowed = copy(self)
        narrowed.ids = ids.sort().values
        return narrowed

    def generator(self, purpose: str) -> torch.Generator:
        """What the server draws from in this round, by the round and the purpose alone."""
        return seeds.generator(*self._address, "server", purpose)

    def through(
        self, *channel: Filter, listener: Listener | None = None, withheld: bool = False
    ) -> RoundClients:
        """The same clients behind filters, after those that they are behind already.

        `listener` takes the place of another one. With `withheld`, the server is not told which
        client is in which cluster.
        """
        view = copy(self)
        view.withheld = withheld or self.withheld
        view._channel = (*self._channel, *channel)
        view._listener = listener or self._listener
        return view

    def defended(
        self, *inspectors: Filter, replace_fold: ReplaceFold | None = None
    ) -> RoundClients:
        """The same clients, whose models the server looks at before it folds them.

        An inspector is a filter that is given the uploads of all clients of a call at once. It sees
        those of steps that train and send models or updates. `replace_fold` gives the fold that
        takes the place of an algorithm's.
        """
        view = copy(self)
        view._inspectors = (*self._inspectors, *inspectors)
        view._replace_fold = replace_fold or self._replace_fold
        return view

    def run(
        self, step: Callable[..., Any], *, fold: Fold[Any] | None = None, **message: Any
    ) -> tuple[Tensor, Any]:
        """Run a client step on these clients and fold what they send."""
        check_client_step(step)
        check_downloads(step, self.ids, message)
        fold = fold or Stacked()
        if self.withheld:
            fold = withhold_clusters(step, fold, message, self.purpose)
        check_promised_fold(step, fold)
        call = Call(
            step,
            self.ids,
            self.round,
            address=(*self._address, self._calls[0]),
            message=message,
            trains=self.purpose != "serve",
            channel=self._channel,
            listener=self._listener,
            withheld=self.withheld,
            origins=self._origins(step, fold, message),
            participants=self._participants,
            silent=self._silent.beside(self.ids),
        )
        self._calls[0] += 1
        if self._listener is not None:
            self._listener.on_call(call)
        if call.trains and self._replace_fold is not None:
            fold = self._replace_fold(step, fold)
        if call.trains and self._inspectors and sends_models(step):
            return self._inspect(call, fold)
        ids, total = self.runner.collect(call, fold)
        self._silent.note(self.ids, ids)
        return ids, fold.finish(total, message)

    def _origins(
        self, step: Callable[..., Any], fold: Fold[Any], message: dict[str, Any]
    ) -> dict[str, str | Tensor]:
        """What the models that clients send are displacements of."""
        origins = declared_origins(step, self.task, message)
        return origins | dict(getattr(fold, "models", {}))

    def _inspect(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Who is left, and the fold of their uploads, when inspectors have seen them all."""
        stacked = Stacked(getattr(fold, "k", None))
        ids, total = self.runner.collect(call, stacked)
        self._silent.note(self.ids, ids)
        upload = stacked.finish(total, call.message)
        for inspector in self._inspectors:
            if len(ids):
                ids, upload = inspector.apply(call, ids, upload)
        if isinstance(fold, Stacked):
            return ids, upload if len(ids) else None
        whole = fold.start()
        if len(ids):
            whole = fold.add(whole, ids, upload, call.message)
        return ids, fold.finish(whole, call.message)


def sends_models(step: Callable[..., Any]) -> bool:
    """Whether clients send models or updates in a step, as far as it says what they send."""
    upload = declared_upload(step)
    return upload is None or moves_models(upload)


class SilentClients:
    """Who was asked in a round and did not answer when last asked."""

    def __init__(self) -> None:
        self.ids = torch.arange(0)

    def beside(self, ids: Tensor) -> int:
        """How many of them are not among `ids`."""
        return int((~torch.isin(self.ids, ids)).sum())

    def note(self, asked: Tensor, answered: Tensor) -> None:
        """Clients were asked, and some of them answered."""
        others = self.ids[~torch.isin(self.ids, asked)]
        self.ids = torch.cat([others, asked[~torch.isin(asked, answered)]])


def withhold_clusters(
    step: Callable[..., Any], fold: Fold[Any], message: dict[str, Any], purpose: Purpose
) -> Fold[Any]:
    """A fold that does not tell the server which client is in which cluster.

    A step that tells it in another way is refused: by what single clients send, or because they are
    sent different things. What a start asks of them is another matter, unless it is their cluster.
    """
    blind: Fold[Any] | None = None
    if any(isinstance(value, Each) for value in message.values()):
        pass
    elif isinstance(fold, LinearFold):
        blind = fold.without_clients()
    elif purpose == "start":
        upload = declared_upload(step) or tuple
        blind = None if field_of_role(upload, Role.CLUSTER) else fold
    if blind is None:
        raise SettingError(
            f"`withhold` must be nothing where {step_name(step)} is asked for, by which the server "
            "knows single clients, got clusters"
        )
    return blind
