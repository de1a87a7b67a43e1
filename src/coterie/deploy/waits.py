"""Waits that Flower 1.41 has fixed, and that we shorten in our processes.

A message is announced before all its parts have arrived. Who asks for a part too early asks again
after 1 s, then 2, 4, 8 and 10 s: that is what most rounds would consist of.
"""

from __future__ import annotations

FIRST_SECONDS, MOST_SECONDS = 0.05, 2.0  # doubled from the first to the most


def fetch_promptly(seconds: float | None = None) -> None:
    """Let this process ask sooner for parts of messages that have not arrived yet.

    After `seconds` it gives up on a message whose sender died while it was sending. None leaves
    that to Flower: when the SuperLink has seen no part of it for 3 minutes.
    """
    from flwr.supercore.inflatable import inflatable_utils

    new = {
        "initial_backoff": FIRST_SECONDS,
        "backoff_cap": MOST_SECONDS,
        "max_tries_per_object": None,
    }
    if seconds is not None:
        new["max_time"] = seconds
    for fetch in (
        inflatable_utils.pull_objects,
        inflatable_utils.pull_and_inflate_object_from_tree,
    ):
        known = fetch.__kwdefaults__ or {}
        assert set(new) <= set(known), f"this Flower's {fetch.__name__} has other waits"
        known.update(new)
