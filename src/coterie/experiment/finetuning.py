"""The settings of a run by which its clients fine-tune their models after the last round."""

from __future__ import annotations

from typing import Any

from coterie.core.algorithm import traits_of
from coterie.core.errors import SettingError
from coterie.evaluation.personal import FineTuning
from coterie.experiment.settings import RunSettings

# Settings of local training that fine-tuning goes by, where the algorithm has them.
TRAINING = ("batch", "weight_decay", "optimizer", "momentum", "clip", "training_samples")


def make_fine_tuning(algorithm: Any, settings: RunSettings) -> FineTuning | None:
    """How clients fine-tune their models; None where they do not."""
    if not settings.finetune:
        return None
    known = {name: getattr(algorithm, name) for name in TRAINING if hasattr(algorithm, name)}
    return FineTuning(
        settings.finetune,
        settings.finetune_lr or algorithm.lr,
        outliers_only=settings.finetune_for == "outliers",
        distance=settings.finetune_distance,
        **known,
    )


def check_fine_tuning(algorithm: Any, settings: RunSettings) -> None:
    """Refuse to fine-tune where no model is a client's own to train on, or nobody says how."""
    if not settings.finetune:
        return
    traits, name = traits_of(algorithm), type(algorithm).__name__
    refused = f"`finetune` must be 0 for {name}"
    if traits.by_sample:
        raise SettingError(
            f"{refused}, which clusters samples, so that no one model serves a client, "
            f"got {settings.finetune}"
        )
    if traits.soft:
        raise SettingError(f"{refused}, whose clients mix several models, got {settings.finetune}")
    if not (settings.finetune_lr or getattr(algorithm, "lr", 0.0)):
        raise SettingError(
            f"`finetune_lr` must be above 0 for {name}, which has no step size of its own, "
            f"got {settings.finetune_lr:g}"
        )
    if settings.withheld and settings.finetune_for == "outliers":
        raise SettingError(
            "`finetune_for` must be all where clusters are withheld, for outliers are found by "
            "the distances of single clients, got outliers"
        )
