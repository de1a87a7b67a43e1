"""A population: all clients of a run, wherever they are.

Clients may be simulated in this process (`engine/simulator.py`), in Ray actors (`engine/ray.py`) or
sit behind Flower's network (`flower/clients.py`). A run asks them for the clients of a round and
for little else; an algorithm only ever sees `Clients`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from torch import Tensor

from coterie.core.clients import Call, Clients, Fold, Stacked
from coterie.core.cohort import Memory
from coterie.core.task import Task

# What clients are asked for: a start of the run, a round of it, or how they are to be served, which
# changes nothing that they keep.
Purpose = Literal["start", "round", "serve"]


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
    ) -> Clients:
        """The clients `ids` (all of them if not given) in a round, behind the seam.

        Their randomness begins with the seed, the purpose and `address`.
        """

    def collect(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Run a client step: who answered, and the fold of their replies, unfinished."""

    def notes(self) -> dict[str, Any]:
        """What else the record of a round says, of what happened since this was last asked."""

    def on_checkpoint(self, rounds: int) -> None:
        """The checkpoint of the run now holds so many rounds."""


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
        self._calls = [0]  # shared with the narrowed views, so that no two calls draw the same

    def only(self, ids: Tensor) -> RoundClients:
        """The same clients, narrowed to `ids`."""
        ids = ids.sort().values
        narrowed = RoundClients(self.runner, self.round, ids, self._address, self.purpose)
        narrowed._calls = self._calls
        return narrowed

    def run(
        self, step: Callable[..., Any], *, fold: Fold[Any] | None = None, **message: Any
    ) -> tuple[Tensor, Any]:
        """Run a client step on these clients and fold what they send."""
        assert getattr(step, "__on_client__", False), f"{step} is not marked @on_client"
        fold = fold or Stacked()
        address = (*self._address, self._calls[0])
        self._calls[0] += 1
        trains = self.purpose != "serve"
        call = Call(step, self.ids, self.round, address, message, trains)
        ids, total = self.runner.collect(call, fold)
        return ids, fold.finish(total)
