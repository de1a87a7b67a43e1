"""Running an algorithm from Python, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from coterie.core.algorithm import Algorithm, algorithm_for_rounds, traits_of
from coterie.core.errors import SettingError, did_you_mean
from coterie.core.function_settings import check_method
from coterie.core.sampling import Sampling
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.data.holdout import hold_out
from coterie.experiment.grid import Grid
from coterie.experiment.initial import Initial
from coterie.experiment.participants import make_sampling
from coterie.experiment.run import OnRound, Run
from coterie.experiment.settings import (
    AUTO,
    AutomaticValues,
    RunSettings,
    check_attack_given,
    setting_names,
)
from coterie.registry import METHODS
from coterie.starts import settled_start
from coterie.tasks.defaults import algorithm_task, weigh_classes


def simulate(
    algorithm: Algorithm[Any],
    federation: Federation,
    task: Task,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    initial: Initial | None = None,
    participants: Sampling | Callable[[int], Iterable[int]] | None = None,
    on_round: OnRound | None = None,
    shards: int | None = None,
    ray: str = "",
    grid: Mapping[str, Sequence[Any]] | None = None,
    **settings: Any,
) -> Run:
    """Run an algorithm on a federation; `settings` are those of `RunSettings`, as in rounds=100.

    With a `folder` the run leaves its files there, and `resume=True` continues one that was
    interrupted, or one that is finished and is given more rounds.

    `initial` are the models to begin with: a network that is trained already, its flat vector, one
    for each cluster, or a file of them (docs/concepts.md). `participants` says who takes part in a
    round, the first being 0: a function that gives the ids of clients, or an object like those of
    `coterie.core.sampling`.

    `on_round(record, run)` is called after every round with its record and the run, whose `models`,
    `metrics` and `clients` are those of that round; `run.stop()` makes it the last. The result and
    the report are then of the rounds so far, and so they are if `on_round` raises an error, which
    is raised when they are written.

    `shards` runs the clients in so many Ray actors (0: one per core), of the cluster at the address
    `ray` if there is one; see docs/ray.md. `grid` gives settings of the algorithm several values,
    as in {"lr": [0.1, 1.0]}, and `starts` the number of independent starts; all are run side by
    side, and the run with the lowest validation loss is returned, or without a validation part
    with the lowest training loss. With {"k": "auto"} k is found (docs/concepts.md).

    >>> import coterie
    >>> federation, task = coterie.load("rotated-digits", clients=8, seed=0)
    >>> run = coterie.simulate(coterie.IFCA(k=4), federation, task, rounds=2, seed=0)
    >>> run.clusters.shape, run.models.shape
    (torch.Size([8]), torch.Size([4, 7510]))
    """
    check_arguments(algorithm, federation, task)
    wanted = make_run_settings(settings)
    federation = hold_out(federation, wanted.validation, wanted.data_seed)
    algorithm = settled_start(algorithm_for_rounds(algorithm, wanted.rounds), wanted.wary)
    task = algorithm_task(algorithm, federation, task)
    task = weigh_classes(task, federation, wanted.class_weight)
    sampling = None if participants is None else make_sampling(participants)
    grid = automatic_values(algorithm, grid or {})
    if grid or wanted.starts > 1:
        if shards is not None or ray:
            raise SettingError("several starts or values run in one process; leave out shards")
        copies = Grid(algorithm, federation, task, wanted, grid, initial=initial, sampling=sampling)
        if folder is not None:
            copies.use(Path(folder), resume=resume)
        return copies.complete(on_round)
    run = Run(algorithm, federation, task, wanted, initial=initial, sampling=sampling)
    with run.use_ray(shards or 0, ray) if shards is not None or ray else nullcontext():
        if folder is not None:
            run.use(Path(folder), resume=resume)
        return run.complete(on_round)


def automatic_values(
    algorithm: Algorithm[Any], grid: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    """The values of a grid; those of "auto" are written out, which only k may be."""
    found, known = dict(grid), setting_names(type(algorithm))
    for name, values in found.items():
        if values == AUTO and name == traits_of(algorithm).clusters:
            found[name] = AutomaticValues()
        elif isinstance(values, str):
            raise SettingError(f"`{name}` of a grid must be a list of values, got {values!r}")
        if name not in known:
            near = did_you_mean(name, known) or "; those of the network are in the task"
            raise SettingError(f"{type(algorithm).__name__} has no setting named {name}{near}")
    return found


def make_run_settings(settings: Mapping[str, Any]) -> RunSettings:
    """The settings of a run; one that no run has is refused."""
    known = setting_names(RunSettings)
    for name in settings:
        if name not in known:
            near = did_you_mean(name, known) or f" (settings: {', '.join(known)})"
            raise SettingError(f"no setting of a run is named {name}{near}")
    wanted = RunSettings(**settings)
    check_attack_given(settings)
    return wanted


def check_arguments(algorithm: object, federation: object, task: object) -> None:
    """Refuse what is no algorithm, no federation or no task, with what it should be."""
    check_algorithm_argument(algorithm)
    check_federation_argument(federation)
    check_task_argument(task)


def check_algorithm_argument(algorithm: object) -> None:
    """Refuse what is not an algorithm."""
    given = describe_argument(algorithm)
    if isinstance(algorithm, type) and is_algorithm(algorithm):
        name = algorithm.__name__
        raise SettingError(f"`algorithm` must be an instance, as in {name}(), got the class {name}")
    if not is_algorithm(algorithm):
        raise SettingError(
            f"`algorithm` must be an algorithm, as in coterie.IFCA(k=4), got {given}"
        )
    for method, parameters in METHODS["algorithm"].items():
        check_method(type(algorithm).__name__, type(algorithm), method, parameters)


def check_federation_argument(federation: object) -> None:
    """Refuse what is not a federation."""
    if not isinstance(federation, Federation):
        advice = "as coterie.load or coterie.Federation.from_clients give it"
        raise SettingError(
            f"`federation` must be a Federation, {advice}, got {describe_argument(federation)}"
        )


def check_task_argument(task: object) -> None:
    """Refuse what is not a task, such as a bare network."""
    if isinstance(task, nn.Module) or (isinstance(task, type) and issubclass(task, nn.Module)):
        raise SettingError(
            "`task` must say what the network learns, as in coterie.Classification(network), "
            f"got the network {describe_argument(task)}"
        )
    if isinstance(task, type) or not hasattr(task, "layout") or not hasattr(task, "losses"):
        raise SettingError(
            f"`task` must be a task, as in coterie.Classification(network), "
            f"got {describe_argument(task)}"
        )


def is_algorithm(value: object) -> bool:
    """Whether something has the methods of an algorithm."""
    return all(callable(getattr(value, name, None)) for name in ("init", "round", "serve"))


def describe_argument(value: object) -> str:
    """A value that was given in the place of another, in a few words.

    >>> describe_argument([1, 2]), describe_argument("ifca"), describe_argument(int)
    ('a list', "'ifca'", 'the class int')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
