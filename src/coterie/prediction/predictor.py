"""Predicting with the models that a run keeps: known clients by name, others by what they show.

A known client is served as at the end of the run: by the model of its group, by one of its own, or
by its mixture of several. A client that was not there

- with labels in some of its rows is served by the model with the lowest mean loss on these;
- without any is served by all groups at once: what they predict is averaged, each group counting
  as often as it has clients, for so likely is a client that nothing is known of to be in it.

The models that it can be served are those of the groups; where a run has no groups but a model for
every client, as `local` and `ditto` do, those of the clients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.core.errors import DataError, SettingError, did_you_mean
from coterie.core.names import short_name
from coterie.core.task import Task
from coterie.data.federation import Samples
from coterie.data.tables.schema import Schema
from coterie.engine.simulator import Simulator
from coterie.prediction.kept_models import MODELS, KeptModels, group_shares, write_models
from coterie.prediction.modules import MixtureModule, load_model
from coterie.prediction.new_rows import NOBODY, NewRows, client_name, labels_of, read_rows
from coterie.prediction.sample_groups import SampleGroups
from coterie.tasks.classification import Classification
from coterie.tasks.regression import Regression

ROWS_AT_ONCE = 65_536  # of one client, through a network


class Predictions(NamedTuple):
    """What is predicted for n rows, in their order."""

    values: NDArray[Any]  # [n] classes by name, or targets in the label's units
    probabilities: NDArray[Any] | None  # [n, c] of the classes in the order of `classes`
    group: NDArray[np.int64]  # [n] the group whose model served, -1 where several did
    chosen: NDArray[Any]  # [n] how it was chosen: see `HOW`


# How a row's group was chosen.
HOW = {
    "training": "the client took part in the run, which put it there",
    "own": "the client took part and has a model of its own",
    "mixture": "the client took part and mixes several models",
    "labels": "of all models that one has the lowest loss on the client's rows with a label",
    "average": "the client shows no label: the groups' predictions are averaged by their clients",
    "sample": "samples are clustered: the group is that of the row itself",
}


class Service(NamedTuple):
    """What serves a client."""

    module: nn.Module
    group: int
    chosen: str


class Predictor:
    """The models of a run and whom they serve; it holds no data of anybody."""

    def __init__(self, kept: KeptModels, task: Task, samples: SampleGroups | None = None) -> None:
        self.kept = kept
        self.task = task
        self.samples = samples  # where samples are clustered: who says where they belong
        raw = kept.facts["schema"]
        self.schema = None if raw is None else Schema.of(raw)
        self.number = {name: i for i, name in enumerate(kept.names)}

    def __repr__(self) -> str:
        """What it is of; nothing is computed for it."""
        facts = self.kept.facts
        names = f"{short_name(facts['algorithm'])} on {short_name(facts['federation'])}"
        groups = ", ".join(f"{count:g}" for count in self.kept.members.tolist())
        own = "" if self.kept.own is None else f", {len(self.kept.own)} models of their own"
        clients = f"{len(self.number):,} clients, groups of {groups}{own}"
        return f"<Predictor of {names}: {clients}, after {facts['rounds']} rounds>"

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients of the run by name; by number where they have none."""
        return self.kept.names

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; of a regression none."""
        names = () if self.schema is None else self.schema.classes
        if names or not isinstance(self.task, Classification):
            return names
        given = self.kept.facts["classes"]
        return tuple(given) if given else tuple(map(str, range(self.kept.facts["outputs"])))

    def predict(self, rows: Any, client: Any = None) -> NDArray[Any]:
        """The class [n] of every row, or its target in the label's units.

        Classes whose names are whole numbers come as numbers, `true` and `false` as booleans.
        """
        return self.predictions(rows, client).values

    def predict_proba(self, rows: Any, client: Any = None) -> NDArray[Any]:
        """The probabilities [n, c] of the classes, in the order of `classes`."""
        found = self.predictions(rows, client).probabilities
        if found is None:
            raise SettingError("there are probabilities of classes only, and this run has none")
        return found

    def predictions(self, rows: Any, client: Any = None) -> Predictions:
        """What is predicted, and by which group.

        `rows` are a file, a frame, an Arrow table or an array, read by the schema of the run.
        `client` says whose they are: one name for all or one for each, in place of a column.
        """
        new = read_rows(rows, self.schema, client)
        if self.samples is not None:
            return self._cluster(new, self.samples)
        if not isinstance(self.task, Classification | Regression):
            raise SettingError(
                "classes of samples and real targets are predicted, but this run learns a "
                f"{type(self.task).__name__}: use model(client)"
            )
        count = len(new.owner)
        group, chosen = np.full(count, -1), np.empty(count, dtype=object)
        outputs: Tensor | None = None
        for name, places in new.by_client():
            service = self._serve(name, new, places)
            found = self._outputs(service.module, new.x[places])
            outputs = found.new_empty(count, found.shape[1]) if outputs is None else outputs
            outputs[places] = found
            group[places.numpy()], chosen[places.numpy()] = service.group, service.chosen
        assert outputs is not None, "there are rows"
        return Predictions(*self._decode(outputs), group, chosen)

    def model(self, client: Any = None) -> nn.Module:
        """The network that serves a client, as a module of PyTorch: a copy, ready to predict.

        Without a client it is that of one which nothing is known of. It takes features as the task
        hands them to the network, `task.inputs(x)`.
        """
        if client is None:
            return self._average().module
        name = client_name(client)
        service = self._known(name) if name in self.number else None
        if service is None:
            near = did_you_mean(name, self.number)
            raise SettingError(
                f"no client is named {name}{near}"
                if name not in self.number
                else f"which model serves client {name} is known to that client alone"
            )
        return service.module

    def save(self, folder: str | Path) -> Path:
        """Write what `coterie.load_run` reads into a folder: the models and their schema."""
        from coterie.files import to_json, write_text

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_models(path / MODELS, self.kept)
        if self.schema is not None:
            write_text(path / "schema.json", to_json(self.schema.raw()) + "\n")
        return path

    def _serve(self, name: str, rows: NewRows, places: Tensor) -> Service:
        """What serves a client with the rows at `places`."""
        known = self._known(name) if name in self.number and name != NOBODY else None
        if known is not None:
            return known
        labelled = labels_of(rows.label, self.schema, places)
        if labelled is None:
            return self._average()
        some, y = labelled
        models, own = self._candidates()
        self.task.check_samples(rows.x[some], y)
        best = self.choose(models, rows.x[some], y)
        return Service(load_model(self.task, models[best]), -1 if own else best, "labels")

    def choose(self, models: Tensor, x: Any, y: Tensor) -> int:
        """The one of models [k, d] with the lowest mean loss on samples."""
        clients = Simulator(Samples(x, y, torch.tensor([0, len(y)])), self.task)
        cohort = clients.cohort(clients.ids, 0, (0, "serve"))
        return int(cohort.choose(models).cluster)

    def _known(self, name: str) -> Service | None:
        """What serves a client that took part; None where only the client itself can say it."""
        kept, i = self.kept, self.number[name]
        group = int(kept.cluster[i])
        if kept.own_ids is not None and bool((kept.own_ids == i).any()):
            if kept.own is None:
                raise SettingError(
                    f"client {name} has a model of its own, which the run did not keep: "
                    f"{kept.facts['own_left_out']}"
                )
            place = int(torch.nonzero(kept.own_ids == i))
            return Service(load_model(self.task, kept.own[place]), group, "own")
        if kept.shares is not None and bool((kept.shares[i] > 0).any()):
            mixed = MixtureModule(self.task, kept.models, kept.shares[i : i + 1])
            return Service(mixed, group, "mixture")
        if group < 0 or self._own_only:
            return None
        return Service(load_model(self.task, kept.models[group]), group, "training")

    @property
    def _own_only(self) -> bool:
        """Whether there are no models of groups, but one for each client."""
        return bool(self.kept.facts["own_only"])

    def _candidates(self) -> tuple[Tensor, bool]:
        """The models that a new client can be served, and whether they are single clients'."""
        if not self._own_only:
            return self.kept.models, False
        if self.kept.own is None:
            raise SettingError(
                "every client of this run has a model of its own, which the run did not keep: "
                f"{self.kept.facts['own_left_out']}"
            )
        return self.kept.own, True

    def _average(self) -> Service:
        """What serves a client that nothing is known of."""
        models, own = self._candidates()
        shares = torch.full((1, len(models)), 1 / len(models)) if own else group_shares(self.kept)
        used = torch.nonzero(shares[0] > 0).flatten()
        if len(used) == 1:
            best = int(used)
            return Service(load_model(self.task, models[best]), -1 if own else best, "average")
        return Service(MixtureModule(self.task, models, shares.to(models.dtype)), -1, "average")

    def _outputs(self, module: nn.Module, x: Any) -> Tensor:
        """What a network gives for samples, [n, c]."""
        try:
            with torch.no_grad():
                parts = [
                    module(*self.task.arguments(self.task.inputs(x[i : i + ROWS_AT_ONCE])))
                    for i in range(0, len(x), ROWS_AT_ONCE)
                ]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise DataError(
                f"the network cannot take samples of shape {list(x.shape[1:])}: {reason}"
            ) from error
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, outputs: Tensor) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """What outputs [n, c] mean: values [n], and probabilities [n, c] of classes."""
        if isinstance(self.task, Regression):
            values = outputs[:, 0].numpy()
            return (values if self.schema is None else self.schema.decode(values)), None
        names = natural_classes(self.classes)
        return names[outputs.argmax(1).numpy()], torch.softmax(outputs, 1).numpy()

    def _cluster(self, rows: NewRows, samples: SampleGroups) -> Predictions:
        """The cluster of every row."""
        group = np.full(len(rows.owner), -1)
        known = [(self.number.get(n, -1) if n else -1, p) for n, p in rows.by_client()]
        for places, labels in samples.labels(rows.x, known, self.task):
            group[places.numpy()] = labels.numpy()
        chosen = np.full(len(group), "sample", dtype=object)
        return Predictions(group, None, group, chosen)


def natural_classes(names: tuple[str, ...]) -> NDArray[Any]:
    """Classes [c] as one would write them in Python: whole numbers, booleans, or their names.

    >>> natural_classes(("0", "1")).tolist(), natural_classes(("false", "true")).tolist()
    ([0, 1], [False, True])
    >>> natural_classes(("007", "1")).tolist()
    ['007', '1']
    """
    if set(names) == {"false", "true"}:
        return np.array([name == "true" for name in names])
    if all(name.removeprefix("-").isdecimal() and str(int(name)) == name for name in names):
        return np.array([int(name) for name in names])
    return np.array(names, dtype=object)
