"""What an algorithm is: `init`, `round` and `serve` over an explicit state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.clients import Clients
from coterie.core.errors import CoterieError, DataError, SettingError
from coterie.core.step_checks import (
    check_models,
    check_served_clients,
    check_served_clusters,
    check_shares,
)
from coterie.core.task import Task

REDRAWS = 20  # draws that may coincide by chance, as of a few coin flips

# What an algorithm that clusters samples suggests for tables: nothing is held out, and no label
# decides which samples are trained on.
WITHOUT_LABELS: dict[str, Any] = {"validation": 0.0, "stratify": False}

State = TypeVar("State", bound=tuple[Any, ...])


class ClientSampler(Protocol):
    """Draws the clients that take part in the rounds before the first."""

    def sample(self, round: int, at_least: int) -> Clients:
        """The clients that take part in a round before the first, or more if that is too few."""


@dataclass(frozen=True)
class Start:
    """What an algorithm begins with: its first models, clients to ask, for the oracle the truth."""

    sampler: ClientSampler
    task: Task
    clients: int  # how many there are, m
    seed: int
    withheld: bool = False  # whether the server is not told which client is in which cluster
    truth: Tensor | None = None  # [m] true clusters; for reference methods only
    parameters: Tensor | None = None  # [groups, d] true parameters; for reference starts only
    initial: Tensor | None = None  # [j, d] the models to begin with; None: the task draws them
    asked: list[int] = field(default_factory=list)  # how many models were asked for, each time
    wary: bool = False  # whether some clients may be adversaries: the run attacks or defends
    teachers: list[int] = field(default_factory=list)  # whose training made the first models

    def models(self, count: int, attempt: int = 0, *, distinct: bool = True) -> Tensor:
        """`count` models to begin with [count, d]; another `attempt`, other draws.

        They are those of `initial`, if it has as many, or draws of the task. Where only one can be
        had, for the network brings its weights, several are refused unless they need not be
        `distinct`.
        """
        self.asked.append(count)
        if self.initial is not None and len(self.initial) not in (1, count):
            raise SettingError(
                f"`initial` has {len(self.initial)} models, but the algorithm begins with {count}"
            )
        if self.initial is not None and len(self.initial) == count:
            return self.initial.clone()
        draws: list[Tensor] = []
        for j in range(count):
            draw = self._draw(j, attempt, draws)
            if draw is None and distinct:
                raise SettingError(
                    f"{count} models cannot begin differently with a network that brings its "
                    "weights, and would stay alike: pass a function that builds the network anew, "
                    "or choose a start that needs one model, such as start=farthest"
                )
            draws.append(draws[0] if draw is None else draw)
        return torch.stack(draws)

    @property
    def brings_weights(self) -> bool:
        """Whether there is only one model to begin with, however often it is drawn."""
        one = self._draw(0, 0, [])
        assert one is not None
        return self._draw(0, 1, [one]) is None

    def _draw(self, j: int, attempt: int, others: list[Tensor]) -> Tensor | None:
        """Model j [d], unlike the `others`; None if all draws are like one of them."""
        for again in range(REDRAWS):
            generator = seeds.generator(self.seed, "model", attempt, j, again)
            draw = self.task.draw(generator) if self.initial is None else self.initial[0]
            if not any(torch.equal(draw, other) for other in others):
                return draw
        return None

    def generator(self, purpose: str) -> torch.Generator:
        """What the server draws from before the first round, by the seed and the purpose alone."""
        return seeds.generator(self.seed, "server", purpose)

    def sample(self, round: int, at_least: int = 1) -> Clients:
        """The clients that take part in a round before the first, or more if that is too few."""
        return self.sampler.sample(round, at_least)

    def all_clients(self) -> Clients:
        """All clients, before the first round."""
        return self.sample(0, at_least=self.clients)


@dataclass(frozen=True)
class Traits:
    """What an algorithm is like, as far as its users and `coterie.checks` rely on it.

    An algorithm declares it in its class: `traits: ClassVar[Traits] = Traits(clusters="k")`.
    """

    clusters: str = ""  # the setting that says how many clusters there are; empty: there is none
    # The field of its state with the models of clusters [k, ...], of which those of clusters in
    # which nobody trained stay as they are; empty: nothing of the kind is promised.
    models: str = ""
    soft: bool = False  # whether clients are served mixtures of models
    draws: bool = True  # whether it draws, its first models or others, so that seeds matter
    withholds: bool = False  # whether its server can do without knowing who is in which cluster
    clients_draw: bool = False  # whether clients draw, or are drawn, by their ids: these matter
    by_sample: bool = False  # whether it clusters samples, so that no one model serves a client
    averages: bool = True  # whether its rounds make means by `ByCluster`, which may be robust ones
    # Algorithms whose client steps it asks for, by name, each with the settings that then are not
    # its own: a node that accepts an app with this algorithm carries out these and no others.
    made_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def traits_of(algorithm: object) -> Traits:
    """The traits that an algorithm declares; those of one that declares none.

    Of a class whose traits depend on settings they are those by default.
    """
    found = getattr(algorithm, "traits", Traits())
    if isinstance(found, Traits) or not isinstance(algorithm, type):
        return cast(Traits, found)
    try:
        return traits_of(algorithm())
    except TypeError:  # a setting without a default
        return Traits()


class Info(NamedTuple):
    """Of interest about a round, but not needed to go on."""

    ids: Tensor  # [a] the clients that answered
    cluster: Tensor | None  # [a] the cluster each was in; None: the server does not know
    clusters: int  # how many clusters the algorithm keeps
    metrics: Mapping[str, float] = {}
    weights: Tensor | None = None  # [k] of the clusters in this round, where that is all it knows
    excluded: Tensor | None = None  # [e] clients that answered and were left out of all means


class Serving(NamedTuple):
    """Which model serves which client.

    Client `ids[a]` uses `models[cluster[a]]`; with `adapt`, a client step
    `adapt(cohort, model) -> [m, d]`, it first makes a model of its own from it, on its own data and
    memory, and that model does not leave it. With `label`, a client step
    `label(cohort, models) -> [m, n]`, every sample has a model of its own choice instead: the step
    says which, and that does not leave the client either. `cluster` is then where most of the
    client is. With a `mixture`, client `ids[a]` uses all models together: what they predict is
    mixed, as the task says how, in the shares of its row, which are at least 0 and sum to 1; its
    cluster is that of its largest share, whatever `cluster` says, which may be None. Where the
    server is not told which client is in which cluster, that is -1 for all, and they choose for
    themselves when they are scored, by the client step `choose(cohort)`, which gives `cluster`.
    """

    models: Tensor  # [k, d]
    ids: Tensor  # [a]
    cluster: Tensor  # [a]
    adapt: Callable[..., Tensor] | None = None
    label: Callable[..., Tensor] | None = None
    mixture: Tensor | None = None  # [a, k] shares of the models
    choose: Callable[..., Any] | None = None
    chosen_by: str = "train"  # the part of its data by which a client chooses

    def for_clients(self, chosen: Tensor) -> Serving:
        """The same for the clients that a mask [a] chooses."""
        mixture = None if self.mixture is None else self.mixture[chosen]
        return self._replace(ids=self.ids[chosen], cluster=self.cluster[chosen], mixture=mixture)


class Algorithm(Protocol[State]):
    """A method of federated learning. Its settings are the fields of a frozen dataclass.

    It may name its task, `task(default, federation) -> Task`: what it learns on a federation where
    others would learn `default`. It may declare its `traits`. It may have to know how many rounds a
    run has, `for_rounds(rounds) -> Algorithm`, and may need more than one sample of every client:
    `least_samples`.
    """

    def init(self, start: Start) -> State: ...
    def round(self, state: State, clients: Clients) -> tuple[State, Info]: ...
    def serve(self, state: State, clients: Clients) -> Serving:
        """Give each of `clients` a model, also one that never took part in a round."""


def algorithm_for_rounds(algorithm: Any, rounds: int) -> Any:
    """The algorithm in a run of so many rounds, which it refuses if it cannot have as many."""
    settle = getattr(algorithm, "for_rounds", None)
    return algorithm if settle is None else settle(rounds)


def least_samples(algorithm: object) -> int:
    """How many samples every client must have, as far as the algorithm says so."""
    found: int = getattr(algorithm, "least_samples", 1)
    return found


def check_least_samples(algorithm: object, sizes: Tensor) -> None:
    """Refuse clients with so many samples [m] if one has too few for the algorithm."""
    least = least_samples(algorithm)
    if len(sizes) and int(sizes.min()) < least:
        raise DataError(
            f"every client must have at least {least} samples for {type(algorithm).__name__} with "
            f"these settings, got {int(sizes.min())} of client {int(sizes.argmin())}"
        )


def first_state(algorithm: Algorithm[State], start: Start) -> State:
    """The state that an algorithm begins with."""
    state: Any = algorithm.init(start)
    if not isinstance(state, tuple):
        raise CoterieError(
            f"{type(algorithm).__name__}.init must return its first state, a named tuple, got "
            f"{type(state).__name__}"
        )
    return state  # type: ignore[return-value]


def next_state(algorithm: Algorithm[State], state: State, clients: Clients) -> tuple[State, Info]:
    """One round of an algorithm: its new state, and what is of interest."""
    found: Any = algorithm.round(state, clients)
    after, info = found if type(found) is tuple and len(found) == 2 else (found, None)
    name = type(algorithm).__name__
    if not (isinstance(after, tuple) and isinstance(info, Info)):
        parts = [found] if info is None else [after, info]
        raise CoterieError(
            f"{name}.round must return its new state, a named tuple, and an Info, got "
            f"{' and '.join(type(each).__name__ for each in parts)}"
        )
    if info.cluster is not None and info.cluster.shape != info.ids.shape:
        raise CoterieError(
            f"the Info of {name}.round must have a cluster for each client that answered, "
            f"{list(info.ids.shape)}, got {list(info.cluster.shape)}"
        )
    return after, info  # type: ignore[return-value]


def serve_clients(algorithm: Algorithm[State], state: State, clients: Clients) -> Serving:
    """Whom an algorithm serves what; the cluster of a mixture is that of the largest share."""
    serving: Any = algorithm.serve(state, clients)
    name = type(algorithm).__name__
    if not isinstance(serving, Serving):
        raise CoterieError(f"{name}.serve must return a Serving, got {type(serving).__name__}")
    check_served_clients(name, serving, clients.ids)
    check_models(f"the models that {name} serves", serving.models, clients.task.layout.size, ["k"])
    if serving.mixture is None:
        check_served_clusters(name, serving)
        return serving
    check_shares(name, serving)
    return serving._replace(cluster=serving.mixture.argmax(1))
