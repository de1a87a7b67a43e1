"""Participants: the clients that are drawn for a round, behind the channel of the run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.channel.lost_replies import LoseReplies
from coterie.channel.metering import ByteMeter
from coterie.core import seeds
from coterie.core.clients import Call, Clients, Filter, Traffic
from coterie.core.population import Population, Purpose
from coterie.experiment.settings import RunSettings

OnReply = Callable[[int, int], None]  # the round, 0 for the start, and its replies so far


class Participants:
    """Draws the clients of each round, loses some of their replies and counts the bytes."""

    def __init__(self, population: Population, settings: RunSettings, bytes: ByteMeter) -> None:
        self.population = population
        self.settings = settings
        self.bytes = bytes
        self.channel: tuple[Filter, ...] = (LoseReplies(settings.lost),) if settings.lost else ()
        self.on_reply: OnReply | None = None  # called whenever clients have replied
        self._round = 0  # the round that is going on
        self._replies = 0  # in that round
        self._samples = 0  # calls of `sample`

    @property
    def per_round(self) -> int:
        """How many clients take part in a round."""
        count = round(self.settings.fraction * self.population.population)
        return self.settings.per_round or max(1, count)

    def sample(self, round: int, at_least: int) -> Clients:
        """The clients of a round before the first, for the start of the algorithm."""
        count = max(self.per_round, min(at_least, self.population.population))
        self._samples += 1  # each call draws its own batches and loses its own replies
        ids = self._draw(count, "start", round)
        return self._connect("start", self._samples, ids=ids)

    def of_round(self, t: int) -> Clients:
        """The clients of a round; the first is round 0."""
        self._round, self._replies = t + 1, 0
        return self._connect("round", t, ids=self._draw(self.per_round, "round", t), round=t)

    def _draw(self, count: int, *address: int | str) -> Tensor:
        """`count` random clients, in order of id."""
        m = self.population.population
        if count >= m:
            return torch.arange(m)
        generator = seeds.generator(self.settings.seed, "participants", *address)
        return torch.randperm(m, generator=generator)[:count].sort().values

    def _connect(
        self, purpose: Purpose, *address: int | str, ids: Tensor, round: int = 0
    ) -> Clients:
        """Clients behind the channel of this run."""
        clients = self.population.at(purpose, *address, round=round, ids=ids)
        return clients.through(*self.channel, listener=self)

    def on_call(self, call: Call) -> None:
        """A listener's: clients are about to be asked."""
        self.bytes.on_call(call)

    def on_replies(self, call: Call, traffic: Traffic) -> None:
        """A listener's: some clients have replied."""
        self.bytes.on_replies(call, traffic)
        self._replies += traffic.replies
        if self.on_reply is not None:
            self.on_reply(self._round, self._replies)
