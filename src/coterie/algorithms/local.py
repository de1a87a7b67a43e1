"""Local: one model per client, nothing is shared.

The "local model" baseline of the IFCA paper, and NoFed of the multi-center thesis:

    for t = 0, ..., T - 1:
        client i: w_i = LocalUpdate(w_i)

All clients begin with the same random model, sent once. After that nothing but the word to go on
crosses the network: the models stay in the clients' memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Info, Serving, Start
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Statistic
from coterie.core.local_training import LocalTraining


class State(NamedTuple):
    model: Tensor  # [d] the common start
    begun: Tensor  # [m] which clients have trained
    rounds: Tensor  # [] rounds so far


class Upload(NamedTuple):
    done: Statistic  # [m] that the client has trained


@dataclass(frozen=True, kw_only=True)
class Local(LocalTraining):
    """Each client trains a model of its own on its own data."""

    def init(self, start: Start) -> State:
        begun = torch.zeros(start.clients, dtype=torch.bool)
        return State(start.models(1)[0], begun, torch.tensor(0))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        begun = state.begun[clients.ids]
        new, _ = clients.only(clients.ids[~begun]).run(self.begin, model=state.model)
        old, _ = clients.only(clients.ids[begun]).run(self.train)
        ids = torch.cat([new, old]).sort().values
        after = State(state.model, state.begun.index_fill(0, new, True), state.rounds + 1)
        return after, Info(ids, ids, clients.population)

    def serve(self, state: State, clients: Clients) -> Serving:
        count = len(clients.ids)
        own = partial(self.own, rounds=int(state.rounds))
        return Serving(state.model.expand(count, -1), clients.ids, torch.arange(count), adapt=own)

    @on_client
    def begin(self, cohort: Cohort, model: Tensor) -> Upload:
        return self._train(cohort, cohort.recall("model", model.expand(len(cohort), -1)))

    @on_client
    def train(self, cohort: Cohort) -> Upload:
        return self._train(cohort, cohort.recall("model"))

    @on_client
    def own(self, cohort: Cohort, model: Tensor, rounds: int) -> Tensor:
        mine = cohort.recall("model", model)
        late = torch.nonzero(~cohort.remembers("model")).flatten()
        if not len(late):
            return mine
        # Those who never took part make up for it.
        behind, model = cohort.subset(late), model[late]
        for t in range(rounds):
            model = self.local_update(behind, model, round=t)
        return mine.index_put((late,), model)

    def _train(self, cohort: Cohort, model: Tensor) -> Upload:
        cohort.keep("model", self.local_update(cohort, model))
        return Upload(torch.ones_like(cohort.ids, dtype=torch.bool))
