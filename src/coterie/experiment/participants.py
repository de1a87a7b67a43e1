"""Participants: the clients that are drawn for a round, behind the channel of the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.channel.attacks import attack_filters
from coterie.channel.lost_replies import LoseReplies
from coterie.channel.metering import ByteMeter
from coterie.channel.model_spread import ModelSpread
from coterie.core import seeds
from coterie.core.clients import Call, Clients, Filter, Traffic
from coterie.core.errors import SettingError
from coterie.core.population import Population, Purpose
from coterie.core.sampling import FixedSize, Poisson, Sampling, draw_participants
from coterie.experiment.settings import RunSettings
from coterie.tensors.digest import content_digest
from coterie.vectors.robust_folds import robust_fold

OnReply = Callable[[int, int], None]  # the round, 0 for the start, and its replies so far


def declared_sampling(settings: RunSettings, population: int) -> Sampling:
    """How the settings of a run say that participants are drawn."""
    if settings.sampling == "poisson":
        count = settings.per_round
        return Poisson(count / population if count else settings.fraction)
    return FixedSize(settings.per_round or max(1, round(settings.fraction * population)))


@dataclass(frozen=True)
class ChosenClients:
    """A sampling by a function of the user: the ids of the clients of a round, the first being 0.

    Where the start of an algorithm needs more clients, others join in order of id.
    """

    choose: Callable[[int], Iterable[int]]

    def draw(
        self, round: int, population: int, generator: torch.Generator, at_least: int = 0
    ) -> Tensor:
        ids = torch.as_tensor([int(i) for i in self.choose(round)], dtype=torch.long)
        others = torch.arange(population)
        others = others[~torch.isin(others, ids)][: max(0, at_least - len(ids))]
        return torch.cat([ids, others]).sort().values


def make_sampling(participants: Sampling | Callable[[int], Iterable[int]]) -> Sampling:
    """A sampling, or one by a function of the user."""
    if callable(getattr(participants, "draw", None)) and not isinstance(participants, type):
        return participants  # type: ignore[return-value]
    if callable(participants) and not isinstance(participants, type):
        return ChosenClients(participants)
    raise SettingError(
        "`participants` must be a function of the round that gives ids of clients, or an object "
        f"with `draw`, got {participants!r}"
    )


def identify_sampling(sampling: object) -> list[Any]:
    """What tells one sampling of a user's own from another, as JSON takes it.

    It is known by its class and its public attributes, a function by its name, its defaults and
    what it closes over. Of what is not plain data, such as a generator, only the class counts.

    >>> identify_sampling(FixedSize(2)), identify_sampling(ChosenClients(max))
    (['FixedSize', {'count': 2}], ['ChosenClients', {'choose': 'max'}])
    """
    names = getattr(sampling, "__dict__", getattr(sampling, "__slots__", ()))
    own = {name: getattr(sampling, name) for name in names if not name.startswith("_")}
    return [type(sampling).__name__, identify_values(own)]


def identify_values(values: Mapping[str, Any], depth: int = 5) -> dict[str, Any]:
    """Values by their names, each as JSON takes it; what lies deeper than `depth` is left out."""
    return {name: identify_value(values[name], depth - 1) for name in sorted(values) if depth}


def identify_value(value: Any, depth: int) -> Any:
    """A value as JSON takes it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor | np.ndarray):
        return content_digest({"": torch.as_tensor(value).cpu()}, {})
    if isinstance(value, Mapping):
        return identify_values({str(key): each for key, each in value.items()}, depth)
    if isinstance(value, list | tuple | range):
        return [identify_value(each, depth - 1) for each in value if depth]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    name = getattr(value, "__name__", type(value).__name__)
    if isinstance(value, partial):
        given = {"args": value.args, "keywords": value.keywords}
        return [identify_value(value.func, depth), identify_values(given, depth)]
    if inspect.isfunction(value):
        closed = inspect.getclosurevars(value).nonlocals
        defaults = {"defaults": value.__defaults__, **(value.__kwdefaults__ or {})}
        return [name, identify_values({**closed, **defaults}, depth)]
    if inspect.ismethod(value):
        return [name, *identify_sampling(value.__self__)]
    return name


class Participants:
    """Draws the clients of each round, loses some of their replies and counts the bytes."""

    def __init__(
        self,
        population: Population,
        settings: RunSettings,
        bytes: ByteMeter,
        sampling: Sampling | None = None,
        attackers: Tensor | None = None,
    ) -> None:
        self.population = population
        self.sampling = sampling or declared_sampling(settings, population.population)
        self.settings = settings
        self.bytes = bytes
        self.channel: tuple[Filter, ...] = (LoseReplies(settings.lost),) if settings.lost else ()
        self.attackers = attackers  # [m] who attacks; None: nobody
        self.screen = settings.make_screen()
        self.spread = ModelSpread() if settings.davies_bouldin else None
        robust = settings.robust_mean
        self.replace_fold = None if robust is None else robust_fold(robust)
        self.on_reply: OnReply | None = None  # called whenever clients have replied
        self._round = 0  # the round that is going on
        self._replies = 0  # in that round
        self._samples = 0  # calls of `sample`

    def sample(self, round: int, at_least: int) -> Clients:
        """The clients of a round before the first, for the start of the algorithm."""
        at_least = min(at_least, self.population.population)
        self._samples += 1  # each call draws its own batches and loses its own replies
        ids = self._draw("start", round, at_least)
        return self._connect("start", self._samples, ids=ids)

    def of_round(self, t: int) -> Clients:
        """The clients of a round; the first is round 0."""
        self._round, self._replies = t + 1, 0
        return self._connect("round", t, ids=self._draw("round", t), round=t)

    def _draw(self, purpose: Purpose, round: int, at_least: int = 0) -> Tensor:
        """Random clients, in order of id."""
        generator = seeds.generator(self.settings.seed, "participants", purpose, round)
        m = self.population.population
        return draw_participants(self.sampling, round, m, generator, at_least)

    def _connect(
        self, purpose: Purpose, *address: int | str, ids: Tensor, round: int = 0
    ) -> Clients:
        """Clients behind the channel of this run."""
        clients = self.population.at(purpose, *address, round=round, ids=ids)
        alone, together = attack_filters(self.settings, self.attackers, len(ids))
        screens = tuple(each for each in (self.spread, self.screen) if each is not None)
        channel = (*alone, *self.channel)
        return clients.through(*channel, listener=self, withheld=self.settings.withheld).defended(
            *together, *screens, replace_fold=self.replace_fold
        )

    def take_excluded(self) -> list[int]:
        """Whom the screen has excluded since this was last asked, in order of id."""
        if self.screen is None:
            return []
        found, self.screen.excluded = sorted(set(self.screen.excluded)), []
        return found

    def on_call(self, call: Call) -> None:
        """A listener's: clients are about to be asked."""
        self.bytes.on_call(call)

    def on_replies(self, call: Call, traffic: Traffic) -> None:
        """A listener's: some clients have replied."""
        self.bytes.on_replies(call, traffic)
        self._replies += traffic.replies
        if self.on_reply is not None:
            self.on_reply(self._round, self._replies)
