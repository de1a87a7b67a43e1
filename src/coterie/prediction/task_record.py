"""The task of a run as plain data, and the task again from these: no data of anybody is needed.

kind     `package.module:name` of the task, as in coterie.tasks.classification:Classification
scale    by which features are divided
padding  what the network is told of padding
double   whether it computes in double precision
layout   names and shapes of the numbers in a flat vector
network  how the network is built; null where that cannot be said in words:
           name, settings, shape, outputs   one that a run can name
           function                         `package.module:name` of one that builds it
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import CheckpointError, CoterieError, SettingError
from coterie.core.imports import load_object
from coterie.core.task import Task
from coterie.registry import home_name, resolve
from coterie.tasks.network import NetworkTask


def describe_task(task: Task, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the task of a run is, whose `settings` may name the network."""
    kind = type(task)
    build = task.build if isinstance(task, NetworkTask) else None
    return {
        "kind": f"{kind.__module__}:{kind.__qualname__}",
        "scale": float(getattr(task, "scale", 1.0)),
        "padding": str(getattr(task, "padding", "lengths")),
        "double": task.layout.dtype == torch.float64,
        "layout": layout_record(task),
        "network": describe_network(build, str(settings.get("network", ""))),
    }


def layout_record(task: Task) -> list[Any]:
    """The names and shapes of the tensors in a flat vector, as JSON has them."""
    return [task.layout.names, [list(shape) for shape in task.layout.shapes]]


def describe_network(build: Any, named: str) -> dict[str, Any] | None:
    """How to build the network again; `named` is the name that the run knows it by, if any."""
    owner: Any = getattr(getattr(build, "func", None), "__self__", None)
    if isinstance(build, partial) and is_dataclass(type(owner)) and len(build.args) == 2:
        kind: Any = type(owner)
        shape, outputs = build.args
        for name in (named, home_name("network", kind, "")):
            with suppress(CoterieError):
                if name and resolve("network", name) is kind:
                    given = {"settings": asdict(owner), "shape": list(shape)}
                    return {"name": name, **given, "outputs": int(outputs)}
        return None
    path = f"{getattr(build, '__module__', '')}:{getattr(build, '__qualname__', '')}"
    with suppress(CoterieError):
        if load_object(path) is build:
            return {"function": path}
    return None


def rebuild_task(
    record: Mapping[str, Any], frozen: Mapping[str, Tensor], network: Any = None
) -> Task:
    """The task of a record, with the weights that are the same in all models.

    `network`, a module or a function that builds one, takes the place of that in the record.
    """
    try:
        kind = load_object(record["kind"])
        build = network if network is not None else network_builder(record["network"])
        task: Any = kind(build, scale=record["scale"], padding=record["padding"])
        if record["double"]:
            task = task.double()
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"the record of the network is damaged: {error!r}") from error
    check_layout(task, record["layout"])
    task.module.load_state_dict(dict(frozen), strict=False)
    found: Task = task
    return found


def check_layout(task: Task, layout: Any) -> None:
    """Refuse a task whose flat vectors are not those of the run."""
    found = layout_record(task)
    if found != layout:
        names, own = ", ".join(layout[0]), ", ".join(found[0])
        shapes = "tensors of these names in other shapes" if names == own else own
        raise SettingError(f"the network must be that of the run, with {names}: it has {shapes}")


def network_builder(record: Mapping[str, Any] | None) -> Any:
    """The function that builds the network of a record."""
    if record is None:
        raise SettingError(
            "the network of this run cannot be found by a name: give it, as in "
            "coterie.load_run(folder, network=mynets.build)"
        )
    if "function" in record:
        return load_object(record["function"])
    owner = resolve("network", record["name"])
    return partial(owner(**record["settings"]).module, record["shape"], record["outputs"])


def frozen_weights(module: nn.Module) -> dict[str, Tensor]:
    """The weights of a network that are the same in all models, by name."""
    parameters = module.named_parameters()
    return {name: p.detach().cpu() for name, p in parameters if not p.requires_grad}
