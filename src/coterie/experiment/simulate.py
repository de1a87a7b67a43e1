"""Running an algorithm from Python, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from coterie.core.algorithm import Algorithm
from coterie.core.errors import SettingError, did_you_mean
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.experiment.folder import Record
from coterie.experiment.grid import Grid
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings, setting_names
from coterie.tasks.defaults import algorithm_task


def simulate(
    algorithm: Algorithm[Any],
    federation: Federation,
    task: Task,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    on_round: Callable[[Record], None] | None = None,
    shards: int | None = None,
    ray: str = "",
    grid: Mapping[str, Sequence[Any]] | None = None,
    **settings: Any,
) -> Run:
    """Run an algorithm on a federation; `settings` are those of `RunSettings`, as in rounds=100.

    With a `folder` the run leaves its files there, and `resume=True` continues one that was
    interrupted. `on_round` is called with the record of every round. `shards` runs the clients in
    so many Ray actors (0: one per core), of the cluster at the address `ray` if there is one; see
    docs/ray.md. `grid` gives settings of the algorithm several values, as in {"lr": [0.1, 1.0]},
    and `starts` the number of independent starts; all are run side by side, and the run with the
    lowest training loss is returned.

    >>> import coterie
    >>> federation, task = coterie.load("rotated-digits", clients=8, seed=0)
    >>> run = coterie.simulate(coterie.IFCA(k=4), federation, task, rounds=2, seed=0)
    >>> run.clusters.shape, run.models.shape
    (torch.Size([8]), torch.Size([4, 7510]))
    """
    known = setting_names(RunSettings)
    for name in settings:
        if name not in known:
            raise SettingError(f"no setting of a run is named {name}{did_you_mean(name, known)}")
    wanted = RunSettings(**settings)
    task = algorithm_task(algorithm, federation, task)
    if grid or wanted.starts > 1:
        if shards is not None or ray:
            raise SettingError("several starts or values run in one process; leave out shards")
        copies = Grid(algorithm, federation, task, wanted, grid or {})
        if folder is not None:
            copies.use(Path(folder), resume=resume)
        return copies.complete(on_round)
    run = Run(algorithm, federation, task, wanted)
    with run.use_ray(shards or 0, ray) if shards is not None or ray else nullcontext():
        if folder is not None:
            run.use(Path(folder), resume=resume)
        return run.complete(on_round)
