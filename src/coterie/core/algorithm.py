"""What an algorithm is: `init`, `round` and `serve` over an explicit state."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.clients import Clients
from coterie.core.errors import CoterieWarning, SettingError
from coterie.core.task import Task

REDRAWS = 20  # draws that may coincide by chance, as of a few coin flips

State = TypeVar("State", bound=tuple[Any, ...])


class ClientSampler(Protocol):
    """Draws the clients that take part in the rounds before the first."""

    def sample(self, round: int, at_least: int) -> Clients:
        """The clients that take part in a round before the first, or more if that is too few."""


@dataclass(frozen=True)
class Start:
    """What an algorithm begins with: random models, clients to ask, for the oracle the truth."""

    sampler: ClientSampler
    task: Task
    clients: int  # how many there are, m
    seed: int
    truth: Tensor | None = None  # [m] true clusters; for reference methods only

    def models(self, count: int, attempt: int = 0) -> Tensor:
        """`count` independent random models [count, d]; another `attempt`, other models."""
        draws: list[Tensor] = []
        for j in range(count):
            for again in range(REDRAWS):
                seed = seeds.generator(self.seed, "model", attempt, j, again)
                draw = self.task.draw(seed)
                if not any(torch.equal(draw, other) for other in draws):
                    break
            else:
                raise SettingError(
                    "the draws of the starting model are identical, so that all clusters would "
                    "stay alike: pass a function that builds the network instead of the network"
                )
            draws.append(draw)
        if count > 1:
            self._warn_of_layers_that_start_alike(draws[0], draws[1])
        return torch.stack(draws)

    def _warn_of_layers_that_start_alike(self, one: Tensor, other: Tensor) -> None:
        layout = self.task.layout
        first, second = layout.unflatten(one), layout.unflatten(other)
        # A constant start, as of a bias, is meant to be the same in every draw.
        alike = [
            name
            for name in layout.trained
            if torch.equal(first[name], second[name])
            and not (first[name] == first[name].max()).all()
        ]
        if alike:
            warnings.warn(
                f"{', '.join(alike)} cannot be drawn anew and start alike in all models: pass a "
                "function that builds the network instead of the network",
                CoterieWarning,
                stacklevel=3,
            )

    def sample(self, round: int, at_least: int = 1) -> Clients:
        """The clients that take part in a round before the first, or more if that is too few."""
        return self.sampler.sample(round, at_least)

    def all_clients(self) -> Clients:
        """All clients, before the first round."""
        return self.sample(0, at_least=self.clients)


class Info(NamedTuple):
    """Of interest about a round, but not needed to go on."""

    ids: Tensor  # [a] the clients that answered
    cluster: Tensor | None  # [a] the cluster each was in; None: the server does not know
    clusters: int  # how many clusters the algorithm keeps
    weights: Tensor | None = None  # [k] of the clusters in this round, where that is all it knows


class Serving(NamedTuple):
    """Which model serves which client.

    Client `ids[a]` uses `models[cluster[a]]`; with `adapt`, a client step
    `adapt(cohort, model) -> [m, d]`, it first makes a model of its own from it, on its own data and
    memory, and that model does not leave it. With `label`, a client step
    `label(cohort, models) -> [m, n]`, every sample has a model of its own choice instead: the step
    says which, and that does not leave the client either. `cluster` is then where most of the
    client is.
    """

    models: Tensor  # [k, d]
    ids: Tensor  # [a]
    cluster: Tensor  # [a]
    adapt: Callable[..., Tensor] | None = None
    label: Callable[..., Tensor] | None = None


class Algorithm(Protocol[State]):
    """A method of federated learning. Its settings are the fields of a frozen dataclass."""

    def init(self, start: Start) -> State: ...
    def round(self, state: State, clients: Clients) -> tuple[State, Info]: ...
    def serve(self, state: State, clients: Clients) -> Serving:
        """Give each of `clients` a model, also one that never took part in a round."""
