"""What `coterie list` and `coterie describe` say, all of it read off the code."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any, get_type_hints

from coterie.algorithms import ALGORITHMS
from coterie.core.errors import SettingError, did_you_mean
from coterie.data import FEDERATIONS
from coterie.experiment.settings import RunSettings, settings_of


def listing() -> str:
    """All algorithms and federations, a line each."""
    width = max(map(len, [*ALGORITHMS, *FEDERATIONS]))
    lines = ["algorithms"]
    lines += [f"  {name:{width}}  {first_line(kind)}" for name, kind in ALGORITHMS.items()]
    lines += ["", "federations"]
    lines += [f"  {name:{width}}  {first_line(kind)}" for name, kind in FEDERATIONS.items()]
    lines += ["", "`coterie describe NAME` tells the settings and what leaves a client."]
    return "\n".join(lines)


def description(name: str) -> str:
    """One algorithm or federation: what it is, its settings, and what crosses the network."""
    if name in ALGORITHMS:
        kind = ALGORITHMS[name]
        text = inspect.getdoc(sys.modules[kind.__module__]) or ""
        suggested = [getattr(kind, "suggests", {})] if getattr(kind, "suggests", {}) else []
        return "\n\n".join(
            [
                text,
                "Settings\n" + settings_table(kind),
                *[f"It suggests, where you say nothing else: {pairs(some)}" for some in suggested],
                run_settings(),
                "What crosses\n" + crossing(kind),
            ]
        )
    if name in FEDERATIONS:
        kind = FEDERATIONS[name]
        lines = (
            []
            if not kind.suggests
            else [f"It suggests, where you say nothing else: {pairs(kind.suggests)}"]
        )
        for algorithm, special in getattr(kind, "suggests_for", {}).items():
            lines.append(f"and for {algorithm}: {pairs(special)}")
        return "\n\n".join(
            [
                f"{name}: {first_line(kind)}",
                inspect.getdoc(sys.modules[kind.__module__]) or "",
                "Settings\n" + settings_table(kind),
                *(["\n".join(lines)] if lines else []),
                run_settings(),
            ]
        )
    known = [*ALGORITHMS, *FEDERATIONS]
    near = did_you_mean(name, known) or f" (known: {', '.join(known)})"
    raise SettingError(f"no algorithm or federation is named {name}{near}")


def pairs(settings: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def first_line(kind: type[Any]) -> str:
    return (inspect.getdoc(kind) or "").splitlines()[0]


def run_settings() -> str:
    return "Settings of every run\n" + settings_table(RunSettings)


def settings_table(kind: type) -> str:
    """Names, types, defaults and meanings of settings, a line each."""
    settings = settings_of(kind)
    left = [f"{s.name}={s.default}" for s in settings]
    width = max(map(len, left), default=0)
    return "\n".join(
        f"  {text:{width}}  {s.meaning}" for text, s in zip(left, settings, strict=True)
    )


def crossing(kind: type[Any]) -> str:
    """For every client step, what a client downloads and what it uploads; nothing else crosses."""
    state = get_type_hints(kind.init)["return"]
    lines = []
    inherited = {name: step for base in reversed(kind.__mro__) for name, step in vars(base).items()}
    for name, step in inherited.items():
        if not getattr(step, "__on_client__", False):
            continue
        upload = get_type_hints(step)["return"]
        fields = getattr(upload, "_fields", ())
        sent, kept = dict(comments(upload)) if fields else {}, dict(comments(state))
        arguments = [a for a in inspect.signature(step).parameters if a not in ("self", "cohort")]
        lines.append(f"  {name}")
        for a in arguments if fields else []:
            one_of_many = f"one of {a}s {kept[a + 's']}" if a + "s" in kept else ""
            lines.append(f"    down  {a:8} {kept.get(a, one_of_many)}".rstrip())
        lines += [f"    up    {field:8} {sent.get(field, '')}".rstrip() for field in fields]
        if not fields:
            lines.append("    nothing crosses: what it makes stays with the client")
    return "\n".join(lines)


def comments(owner: type) -> list[tuple[str, str]]:
    """The fields of an upload or a state and the comments behind them; none without its source."""
    try:
        source = inspect.getsource(owner)
    except (OSError, TypeError):  # of a class from a notebook
        return []
    return re.findall(r"^    (\w+): [^#\n]*?  # (.+)$", source, flags=re.MULTILINE)
