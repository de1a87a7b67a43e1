"""Where samples are clustered: the cluster of each new sample, as the algorithm says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.algorithm import algorithm_for_rounds, serve_clients
from coterie.core.cohort import Memory
from coterie.core.state import rebuild_state
from coterie.core.task import Task
from coterie.data.federation import Samples
from coterie.data.tables.schema import Schema
from coterie.engine.client_memory import ClientMemory
from coterie.engine.simulator import Simulator
from coterie.prediction.task_record import check_layout
from coterie.registry import resolve
from coterie.tasks.defaults import prepare_task


@dataclass(frozen=True)
class SampleGroups:
    """The algorithm of a run with its last state, and what its clients remember."""

    algorithm: Any
    state: Any
    memory: Memory
    clients: int  # that took part
    seed: int

    def labels(
        self, x: Any, clients: list[tuple[int, Tensor]], task: Task
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and their clusters, client after client.

        Each of `clients` has its number in the run, -1 if it had none, and its rows of `x`.
        """
        fresh = ClientMemory(self.clients)
        for memory, some in (
            (self.memory, [each for each in clients if each[0] >= 0]),
            (fresh, [each for each in clients if each[0] < 0]),
        ):
            numbered = [(i if i >= 0 else self.clients + j, p) for j, (i, p) in enumerate(some)]
            if numbered:
                yield from self._label(x, sorted(numbered, key=lambda each: each[0]), task, memory)

    def _label(
        self, x: Any, clients: list[tuple[int, Tensor]], task: Task, memory: Memory
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The clusters of the rows of clients that all remember, or all do not."""
        ids = torch.tensor([i for i, _ in clients])
        rows = [places for _, places in clients]
        samples = Samples.select(x, torch.zeros(len(x)), rows)
        train = Simulator(
            samples,
            task,
            seed=self.seed,
            population=self.clients,
            memory=memory,
            locate=lambda wanted: torch.searchsorted(ids, wanted),
        )
        serving = serve_clients(self.algorithm, self.state, train.at("serve", ids=ids))
        assert serving.label is not None, "samples are clustered"
        for chunk in train.chunks(serving.ids):
            cohort = train.cohort(chunk, 0, (self.seed, "score"))
            found = serving.label(cohort, models=serving.models)
            for i, row in zip(train.locate(chunk).tolist(), found, strict=True):
                yield rows[i], row[: len(rows[i])]


def restore_groups(
    facts: Mapping[str, Any], tensors: dict[str, Tensor], clients: int
) -> tuple[Task, SampleGroups]:
    """The task of a run that clusters samples, and who says where they belong, from a file."""
    known = facts["samples"]
    algorithm = resolve("algorithm", facts["algorithm"])(**known["settings"])
    algorithm = algorithm_for_rounds(algorithm, known["planned"])
    network = resolve("network", known["network"]["name"])(**known["network"]["settings"])
    raw = facts["schema"]
    schema = Schema((), (), tuple(facts["shape"]), False) if raw is None else Schema.of(raw)
    _, task = prepare_task(algorithm, schema.stub(schema.shape, torch.float32), network)
    check_layout(task, facts["task"]["layout"])
    memory = ClientMemory(clients)
    memory.restore(tensors)
    state = rebuild_state(known["state"], tensors, algorithm, "state")
    return task, SampleGroups(algorithm, state, memory, clients, facts["seed"])
