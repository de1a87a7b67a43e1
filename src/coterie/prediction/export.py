"""The models of a run for others: weights, programs, the schema, a card, and a script that scores.

    group-0.safetensors   the weights of the network of a group, by their names in PyTorch
    group-0.pt2           the network as a program of torch.export
    group-0.onnx          and as one of ONNX, where its exporter is installed
    client-3.*            the same of a client that has a model of its own
    schema.json           how a row becomes features, and what outputs mean (docs/data.md)
    export.json           which client is served by which models, in which shares
    predict.py            scores a CSV file without coterie
    README.md             the model card

A program takes features x [rows, ...] and gives the network's outputs: logits of classes, or a
target in the units of the schema.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from coterie.core.errors import CoterieError, SettingError
from coterie.core.task import Task
from coterie.files import to_json, write_text
from coterie.prediction.kept_models import group_shares
from coterie.prediction.model_card import model_card
from coterie.prediction.modules import load_model
from coterie.prediction.predictor import Predictor
from coterie.tasks.classification import Classification
from coterie.tasks.regression import Regression

MOST_OWN_EXPORTED = 100  # clients' own models that are exported unless some are named
MISSING_WORDS = (  # fields of a CSV file that are missing values, as coterie reads them
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"),
)


class Program(nn.Module):
    """A network as it is exported: features x as they are stored, and its outputs."""

    def __init__(self, task: Task, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.inputs = task.inputs
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.network(self.inputs(x))
        return found


def export_run(
    predictor: Predictor,
    folder: Path,
    *,
    clients: Sequence[str] = (),
    result: dict[str, Any] | None = None,
) -> list[str]:
    """Write the models of a run into a new folder; what is left out, in sentences.

    Of runs in which clients have models of their own, those of `clients` are written, or all. The
    folder is there when it is complete.
    """
    check_exportable(predictor, folder)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    unfinished.mkdir(parents=True)
    try:
        left_out = write_export(predictor, unfinished, clients, result)
        if folder.is_dir():
            folder.rmdir()
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return left_out


def check_exportable(predictor: Predictor, folder: Path) -> None:
    """Refuse a folder that holds something, and models that predict nothing."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CoterieError(f"the folder {folder} must be new or empty")
    if predictor.samples is not None or not isinstance(predictor.task, Classification | Regression):
        raise SettingError(
            "models that predict classes of samples or real targets are exported, but this run "
            f"learns a {type(predictor.task).__name__}"
        )
    if predictor.kept.facts["shape"] is None or -1 in predictor.kept.facts["shape"]:
        raise SettingError("models of samples of one shape are exported, not of several inputs")


def write_export(
    predictor: Predictor, folder: Path, clients: Sequence[str], result: dict[str, Any] | None
) -> list[str]:
    """Write all files; what is left out, in sentences."""
    vectors, served, average = served_models(predictor, clients)
    left_out: list[str] = []
    for name, vector in vectors.items():
        network = load_model(predictor.task, vector)
        state = {n: each.contiguous().clone() for n, each in network.state_dict().items()}
        safetensors.torch.save_file(state, folder / f"{name}.safetensors")
        left_out += write_programs(predictor, network, folder / name)
    has_table = predictor.schema is not None and bool(predictor.schema.encoders)
    if predictor.schema is not None:
        write_text(folder / "schema.json", to_json(predictor.schema.raw(), indent=1) + "\n")
    if has_table:
        script = files("coterie.prediction").joinpath("score_script.txt").read_text("utf-8")
        write_text(folder / "predict.py", script)
    else:
        left_out.append("predict.py, for the samples of the run are no rows of a table")
    left_out = list(dict.fromkeys(left_out))
    known = {"missing": list(MISSING_WORDS), "clients": served, "average": average}
    write_text(folder / "export.json", to_json(known, indent=1) + "\n")
    names = [path.name for path in folder.iterdir()]
    card = model_card(predictor.kept, served, sorted(names), left_out, result)
    write_text(folder / "README.md", card)
    return left_out


def served_models(
    predictor: Predictor, clients: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, dict[str, float]], dict[str, float] | None]:
    """The models by name, the shares in which they serve each client, and those of a new one.

    Where there are no groups and only the models of some clients are asked for, no new one is
    served.
    """
    kept = predictor.kept
    for name in clients:
        predictor.model(name)  # refuses one that is not there
    own = owned_models(predictor, clients)
    groups = (
        {}
        if kept.facts["own_only"]
        else {f"group-{j}": model for j, model in enumerate(kept.models)}
    )
    served: dict[str, dict[str, float]] = {}
    for i, name in enumerate(kept.names):
        if clients and name not in clients:
            continue
        if f"client-{i}" in own:
            served[name] = {f"client-{i}": 1.0}
        elif kept.shares is not None and bool((kept.shares[i] > 0).any()):
            served[name] = positive_shares(list(groups), kept.shares[i])
        elif int(kept.cluster[i]) >= 0 and groups:
            served[name] = {f"group-{int(kept.cluster[i])}": 1.0}
    if not groups:
        return own, served, None if clients else {name: 1 / len(own) for name in own}
    return groups | own, served, positive_shares(list(groups), group_shares(kept)[0])


def owned_models(predictor: Predictor, clients: Sequence[str]) -> dict[str, Tensor]:
    """The models that clients have for themselves: those of `clients`, or of all."""
    kept = predictor.kept
    if kept.own_ids is None:
        return {}
    if kept.own is None:
        raise SettingError(
            "clients of this run have models of their own, which the run did not keep: "
            f"{kept.facts['own_left_out']}"
        )
    ids = kept.own_ids.tolist()
    wanted = [place for place, i in enumerate(ids) if not clients or kept.names[i] in clients]
    if not clients and len(wanted) > MOST_OWN_EXPORTED:
        raise SettingError(
            f"{len(wanted):,} clients have models of their own, more than {MOST_OWN_EXPORTED}: "
            "say whose are to be exported, as in --client NAME"
        )
    return {f"client-{ids[place]}": kept.own[place] for place in wanted}


def positive_shares(names: Sequence[str], shares: Tensor) -> dict[str, float]:
    """Shares above 0 by name."""
    return {name: s for name, s in zip(names, shares.tolist(), strict=True) if s > 0}


def write_programs(predictor: Predictor, network: nn.Module, stem: Path) -> list[str]:
    """Write a network as programs of torch.export and ONNX; what is left out, in sentences."""
    facts = predictor.kept.facts
    example = torch.zeros(2, *facts["shape"])
    with quiet_exporters():
        try:
            rows = torch.export.Dim("rows")
            program = torch.export.export(
                Program(predictor.task, network), (example,), dynamic_shapes={"x": {0: rows}}
            )
            torch.export.save(program, f"{stem}.pt2")
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return [f"programs, for torch.export cannot write down the network: {reason}"]
        if not all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript")):
            return ["ONNX, for its exporter is not installed: pip install onnx onnxscript"]
        try:
            names: dict[str, Any] = {"input_names": ["x"], "output_names": ["output"]}
            torch.onnx.export(
                program,
                (),
                f"{stem}.onnx",
                dynamo=True,
                external_data=False,
                verbose=False,
                **names,
            )
        except Exception as error:  # many kinds, of several libraries
            Path(f"{stem}.onnx").unlink(missing_ok=True)
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return [f"ONNX, whose exporter cannot write down the network: {reason}"]
    return []


@contextmanager
def quiet_exporters() -> Iterator[None]:
    """Keep to themselves what exporters say of other libraries."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
