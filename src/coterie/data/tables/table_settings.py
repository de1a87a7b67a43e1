"""The settings of a table: its columns, what they mean, and how its rows are split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.core.errors import SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, between, one_of
from coterie.data.tables.labels import TARGETS

USUAL_LABEL = "label"  # a table may lack the column of this name, and has no label then
SPLITS = ("split", "test", "group", "time")  # of these settings one at most is given


@dataclass(frozen=True, kw_only=True)
class TableSettings(Settings):
    """The settings of `Table`."""

    path: str = setting(
        "", "a .csv, .parquet, .feather or .arrow file, or a folder with a file per client"
    )
    client: str = setting("client", "column that says whose row it is; in a folder the file does")
    label: str = setting(
        USUAL_LABEL, "column to predict, or to score clusters of samples by; empty: none"
    )
    features: str = setting("", "columns to predict from, with commas between; empty: all others")
    target: str = setting("auto", "what the label is; auto: by its type", one_of(*TARGETS))
    train_share: float = setting(0.8, "share of a client's rows that it trains on", between(0, 1))
    min_samples: int = setting(2, "rows that a client must have, else it is left out", at_least(2))
    categories: int = setting(20, "features from text at most; rarer values share one", at_least(1))
    standardise: bool = setting(True, "whether numbers are scaled to mean 0 and deviation 1")
    scale_target: bool = setting(
        True, "whether targets of a regression are scaled so, to learn", added=True, before=False
    )
    missing: str = setting(
        "", "values that mean missing besides empty ones, with commas between", added=True
    )
    categorical: str = setting(
        "", "columns of numbers that are categories, with commas between", added=True
    )
    stratify: bool = setting(
        True, "whether both parts get their share of each class", added=True, before=False
    )
    split: str = setting("", "column that says train, validation or test of each row", added=True)
    test: str = setting(
        "", "file or folder of rows to be tested on, like those of path", added=True
    )
    group: str = setting("", "column whose rows of one value are all in one part", added=True)
    time: str = setting("", "column by which a client's last rows are tested on", added=True)

    class_count: ClassVar[int] = 0  # as many as the labels show
    pixel_scale: ClassVar[float] = 1.0
    suggests: ClassVar[dict[str, Any]] = dict(
        network="mlp",
        hidden="auto",
        split_seed=0,
        rounds=300,
        validation=0.15,
        early_stopping=20,
        weighting="size",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = type(self).__name__
        if self.client == self.label:
            raise SettingError(
                f"`client` and `label` of {kind} must be two columns, got {self.label} for both"
            )
        taken = {"the client": self.client, "the label": self.label}
        for name in ("features", "categorical"):
            named = names_of(getattr(self, name))
            for column in named:
                if column in taken.values() and (name == "features" or column == self.client):
                    raise SettingError(
                        f"`{name}` of {kind} must not name the client or the label, got {column}"
                    )
            if len(set(named)) < len(named):
                raise SettingError(
                    f"`{name}` of {kind} must name a column once, got {','.join(named)}"
                )
        given = [name for name in SPLITS if getattr(self, name)]
        if len(given) > 1:
            raise SettingError(
                f"one of {', '.join(f'`{name}`' for name in SPLITS)} of {kind} must decide who is "
                f"tested on what, got {' and '.join(given)}"
            )
        for name in ("split", "group", "time"):
            if getattr(self, name) and getattr(self, name) in taken.values():
                raise SettingError(
                    f"`{name}` of {kind} must not be the client or the label, got "
                    f"{getattr(self, name)}"
                )

    @property
    def columns(self) -> list[str]:
        """The columns that `features` names; none: all but the client and the label."""
        return names_of(self.features)

    @property
    def category_columns(self) -> list[str]:
        """The columns that are categories whatever they hold."""
        return names_of(self.categorical)

    @property
    def missing_words(self) -> tuple[str, ...]:
        """The values that mean missing."""
        return tuple(names_of(self.missing))

    @property
    def split_columns(self) -> list[str]:
        """The columns that decide which part a row is in."""
        return [name for name in (self.split, self.group, self.time) if name]


def names_of(text: str) -> list[str]:
    """The words with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]
