"""`coterie.load_run`: the models of a run from its folder, without its data."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from coterie.core.errors import CheckpointError, CoterieWarning
from coterie.prediction.kept_models import MODELS, KeptModels, read_models
from coterie.prediction.predictor import Predictor
from coterie.prediction.sample_groups import restore_groups
from coterie.prediction.task_record import rebuild_task


def load_run(folder: str | Path, *, network: Any = None) -> Predictor:
    """The models of a run, to predict with: those of the folder that it left, or of `run.save`.

    The data of the run are not needed. `network`, a module or a function that builds one, is for
    runs whose network has no name, such as one of a function inside another. The models of a run
    that is not finished are those of its last checkpoint; a warning says so.

    >>> import tempfile, coterie
    >>> federation, task = coterie.load("rotated-digits", clients=8, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = coterie.simulate(coterie.IFCA(k=4), federation, task, rounds=2)
    ...     loaded = coterie.load_run(run.save(folder))
    >>> x, _ = federation.test.client(3)
    >>> bool((loaded.predict(x, client=3) == run.predict(x, client=3)).all())
    True
    """
    path = Path(folder).expanduser()
    check_folder(path)
    kept = read_models(path / MODELS)
    began = (path / "config.json").is_file()  # else it was written by `save`
    if not kept.facts["finished"] or (began and not (path / "result.json").is_file()):
        warnings.warn(
            f"the run in {path} is not finished: its models are those after "
            f"{kept.facts['rounds']} rounds",
            CoterieWarning,
            stacklevel=2,
        )
    return predictor_of(kept, network)


def check_folder(path: Path) -> None:
    """Refuse a folder that holds no models."""
    if not path.is_dir():
        raise CheckpointError(f"no folder of a run is at {path}")
    if (path / MODELS).is_file():
        return
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path} is not the folder of a run: it has no {MODELS}")
    raise CheckpointError(
        f"{path} has no {MODELS} to predict with: the run did no round yet, has copies that are "
        f"not finished, or is of an earlier version; `coterie run --resume {path}` goes on with "
        "it, and writes them"
    )


def predictor_of(kept: KeptModels, network: Any = None) -> Predictor:
    """Models that were read, ready to predict."""
    facts = kept.facts
    if facts["samples"] is not None:
        task, samples = restore_groups(facts, kept.others, len(kept.cluster))
        return Predictor(kept, task, samples)
    return Predictor(kept, rebuild_task(facts["task"], kept.under("frozen."), network))
