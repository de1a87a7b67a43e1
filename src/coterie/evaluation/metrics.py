"""What runs are judged by: every metric with its name, which way is better, and how it is written.

A metric of the samples that are tested on has its plain name, the same of what was trained on is
called `train_...`, and of what was held out to end training and to choose by, `validation_...`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

PREFIXES = {"test": "", "train": "train_", "validation": "validation_"}  # by the part
RARE = 0.25  # a class that is rarer than this, of two, makes accuracy a poor judge


class Metric(NamedTuple):
    """What is known of a metric."""

    label: str  # in a chart or a table
    higher: bool = True  # whether higher is better
    share: bool = False  # whether it is written in percent


ACCURACY = Metric("accuracy", share=True)
BALANCED = Metric("balanced accuracy", share=True)
F1 = Metric("F1", share=True)
# Of samples, by name; all but those named `loss` also as the mean over clients, `..._macro`.
OF_EACH_CLIENT = {
    "accuracy": ACCURACY,
    "balanced_accuracy": BALANCED,
    "f1": F1,
    "auc": Metric("AUC"),
    "average_precision": Metric("average precision"),
    "rmse": Metric("RMSE", higher=False),
    "mae": Metric("MAE", higher=False),
    "r2": Metric("R2"),
}
OF_SAMPLES = {
    **OF_EACH_CLIENT,
    **{
        f"{name}_macro": metric._replace(label=f"{metric.label}, macro")
        for name, metric in OF_EACH_CLIENT.items()
    },
    "f1_micro": F1._replace(label="F1, micro"),
    "log_loss": Metric("log-loss", higher=False),
    "ece": Metric("expected calibration error", higher=False, share=True),
    "loss": Metric("loss", higher=False),
}
OF_CLUSTERS = {
    "ari": Metric("ARI"),
    "nmi": Metric("NMI"),
    "purity": Metric("purity"),
    "distance": Metric("distance", higher=False),
    "distance_nearest": Metric("distance, nearest", higher=False),
    "success": Metric("success", share=True),
    "success_nearest": Metric("success, nearest", share=True),
}
METRICS = {**OF_SAMPLES, **OF_CLUSTERS}
# These take the predicted probabilities of all samples, and not only what they add up to.
OF_PROBABILITIES = (
    "auc",
    "average_precision",
    "log_loss",
    "ece",
    "auc_macro",
    "average_precision_macro",
)

OF_TUNING = ("tuned", "tuned_distance", "davies_bouldin")
OF_COPIES = ("success_any", "success_any_nearest")
OF_ATTACKS = (
    *(f"attackers_{part}{name}" for part in ("", "train_") for name in ("accuracy", "loss")),
    "attacker_share",
    "attacking_teachers",
    "excluded",
    "detection_precision",
    "detection_recall",
    "false_exclusion",
)
# What coterie itself calls metrics; an algorithm's own metrics have other names.
FIXED_METRICS = frozenset(
    [
        *(f"{part}{name}" for part in PREFIXES.values() for name in OF_SAMPLES),
        *(f"untuned_{part}{name}" for part in PREFIXES.values() for name in OF_SAMPLES),
        *(*OF_CLUSTERS, "clusters", "davies_bouldin_sent"),
        *(*OF_TUNING, *OF_COPIES, *OF_ATTACKS),
    ]
)


def plain_name(name: str) -> str:
    """The name of a metric without the part that it is of, and without what became of models.

    >>> plain_name("train_accuracy"), plain_name("untuned_train_loss"), plain_name("train_size")
    ('accuracy', 'loss', 'train_size')
    """
    bare = name.removeprefix("attackers_").removeprefix("untuned_")
    bare = next((bare.removeprefix(p) for p in PREFIXES.values() if p and bare.startswith(p)), bare)
    return bare if bare in METRICS else name


def metric_label(name: str) -> str:
    """What a metric is called in a chart or a table, with the part that it is of.

    >>> metric_label("auc"), metric_label("train_accuracy"), metric_label("entropy")
    ('AUC', 'training accuracy', 'entropy')
    """
    plain = plain_name(name)
    label = METRICS[plain].label if plain in METRICS else name
    words = {"train_": "training ", "validation_": "validation ", "untuned_": "untuned "}
    lead = "".join(word for prefix, word in words.items() if prefix in name.removesuffix(plain))
    return f"{lead}{label}"


def is_share(name: str) -> bool:
    """Whether a metric is written in percent."""
    known = METRICS.get(plain_name(name))
    return known is not None and known.share


def is_better(name: str, one: float, other: float) -> bool:
    """Whether one value of a metric is better than another; of one that nobody knows, if higher."""
    known = METRICS.get(plain_name(name))
    return one > other if known is None or known.higher else one < other


def name_in(metric: str, known: Mapping[str, Any]) -> str | None:
    """The name that a metric has among those of a run: of the test part, or else of training.

    >>> name_in("accuracy", {"train_accuracy": 0.9}), name_in("auc", {"accuracy": 0.9})
    ('train_accuracy', None)
    """
    names = (metric, f"train_{metric}")
    return next((name for name in names if known.get(name) is not None), None)


def default_metric(known: Mapping[str, Any], label_shares: tuple[float, ...] = ()) -> str:
    """What a run is judged by where nobody says it, among the plain names that it has.

    AUC if there are two classes and one of them is less than a quarter of the labels trained on;
    else accuracy, R2 for a regression, and the loss where neither is known.

    >>> default_metric({"accuracy": 0.9, "auc": 0.8}), default_metric({"loss": 1, "r2": 0.5})
    ('accuracy', 'r2')
    >>> default_metric({"accuracy": 0.9, "auc": 0.8}, (0.9, 0.1))
    'auc'
    """
    if "accuracy" in known:
        unbalanced = len(label_shares) == 2 and min(label_shares) < RARE
        return "auc" if unbalanced else "accuracy"
    return "r2" if "r2" in known else "loss"
