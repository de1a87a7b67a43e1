"""Evaluation protocols: the data by which a client chooses its model before it is scored.

`train-loss`: its own training part, as a real client would. `test-loss`: the very data it is then
scored on, labels included, as the IFCA paper does with its test machines. The choice is made by
showing the clients one part or the other; no algorithm has code for it.
"""

from __future__ import annotations

from coterie.core.errors import SettingError
from coterie.data.federation import Federation


def resolve_protocol(protocol: str, federation: Federation) -> str:
    """The protocol of a run, `auto` replaced; clients with only test data can choose only by it."""
    if not federation.unseen:
        return "train-loss" if protocol == "auto" else protocol
    if protocol == "train-loss":
        raise SettingError(
            "`protocol` train-loss needs test clients with training data of their own, "
            "but those of this federation have only test data; use test-loss"
        )
    return "test-loss"
