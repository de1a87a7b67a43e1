"""The settings by which a server defends itself against some of its clients."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.channel.screens import Screen
from coterie.core.errors import SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, one_of
from coterie.vectors.robust_folds import AGGREGATES, RobustMean


@dataclass(frozen=True, kw_only=True)
class DefenceSettings(Settings):
    """Settings of robust means and screens."""

    aggregate: str = setting(
        "mean",
        "mean inside a cluster; all but mean show the server every client's upload",
        one_of(*AGGREGATES),
        added=True,
    )
    tolerate: float = setting(
        0.0,
        "share of a cluster that trimmed, krum and bulyan withstand; 0: 0.3, bulyan 0.2",
        at_least(0),
        added=True,
    )
    screen: str = setting(
        "none",
        "who is left out before anything is averaged; norm: whose update is long, lof: outliers",
        one_of("none", "norm", "lof"),
        added=True,
    )
    screen_limit: float = setting(
        0.0,
        "times the median length (norm), or outlier factor (lof), above which; 0: 3, 2",
        at_least(0),
        added=True,
    )
    screen_of: str = setting(
        "updates", "what lof compares", one_of("updates", "models"), added=True
    )
    screen_neighbours: int = setting(
        0, "neighbours of lof; 0: half of the clients", at_least(0), added=True
    )

    davies_bouldin: bool = setting(
        False,
        "whether that index of all clients' models is measured in every round",
        added=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tolerate >= 0.5:
            raise SettingError(
                f"`tolerate` of {type(self).__name__} must be below 0.5, got {self.tolerate:g}"
            )

    @property
    def defends(self) -> bool:
        """Whether the server looks at single clients to defend itself."""
        return self.aggregate != "mean" or self.screen != "none"

    @property
    def looks_closely(self) -> str:
        """The setting for which the server sees the updates of single clients; empty: none."""
        if self.aggregate != "mean":
            return f"aggregate={self.aggregate}"
        if self.screen != "none":
            return f"screen={self.screen}"
        return "davies_bouldin=true" if self.davies_bouldin else ""

    @property
    def robust_mean(self) -> RobustMean | None:
        """What takes the place of means; None: nothing does."""
        return None if self.aggregate == "mean" else RobustMean(self.aggregate, self.tolerate)

    def make_screen(self) -> Screen | None:
        """A screen that has excluded nobody yet; None if there is none."""
        if self.screen == "none":
            return None
        return Screen(self.screen, self.screen_limit, self.screen_of, self.screen_neighbours)
