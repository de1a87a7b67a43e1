"""What `coterie list` and `coterie describe` say, all of it read off the code."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Any

from coterie.core.algorithm import traits_of
from coterie.core.clients import declared_fold, is_client_step
from coterie.core.errors import SettingError
from coterie.core.fields import Role, field_of_role
from coterie.core.imports import read_annotations
from coterie.core.population import sends_models
from coterie.core.step_checks import declared_upload
from coterie.evaluation.client_map import MOST_MODELS, SKETCH
from coterie.experiment.settings import NetworkChoice, RunSettings, settings_of
from coterie.registry import resolve, resolve_any, suggestions
from coterie.shelves import SHELVES, entry_points_of

MAP_TEXT = (
    "For the map of the report every client is asked for its mean loss under each of the models, "
    f"or, with one model or more than {MOST_MODELS}, for {SKETCH} sums of the numbers of a "
    "gradient; nothing where clusters are withheld. A node of a network takes the gradient at a "
    "model that the seed draws, leaves out clients of few samples (`map_samples` of NODE.toml), "
    "and sends nothing of it with `map = false`."
)


def list_names() -> str:
    """All algorithms, federations and networks, a line each; those of packages say which."""
    offers = {kind: entry_points_of(kind) for kind in SHELVES}
    width = max(len(name) for kind in SHELVES for name in (*SHELVES[kind], *offers[kind]))
    lines = []
    for kind, shelf in SHELVES.items():
        lines += [f"{kind}s"]
        lines += [f"  {name:{width}}  {summary_line(owner)}" for name, owner in shelf.items()]
        lines += [f"  {name:{width}}  {offer_line(kind, name)}" for name in offers[kind]]
        lines += [""]
    lines += [
        "One of your own is named package.module:name.",
        "`coterie describe NAME` tells the settings and what leaves a client.",
    ]
    return "\n".join(lines)


def offer_line(kind: str, name: str) -> str:
    """What an entry point offers, and which package it is from."""
    points = entry_points_of(kind)[name]
    packages = [f"{each.dist.name} {each.dist.version}" for each in points if each.dist is not None]
    try:
        summary = summary_line(resolve(kind, name))
    except SettingError as error:
        summary = str(error)
    return f"{summary} ({', '.join(packages)})".lstrip()


def describe_name(name: str) -> str:
    """What an algorithm, a federation or a network is, with its settings."""
    kind, owner = resolve_any(name)
    if kind == "algorithm":
        return describe_algorithm(owner)
    if kind == "federation":
        return describe_federation(name, owner)
    return f"{name}: {inspect.getdoc(owner)}\n\nSettings\n{settings_table(owner)}".rstrip()


def describe_algorithm(kind: type[Any]) -> str:
    """An algorithm: its paper, its settings, and what crosses the network."""
    suggested = getattr(kind, "suggests", {})
    parts = [
        module_text(kind),
        "Settings\n" + settings_table(kind),
        f"It suggests, where you say nothing else: {format_settings(suggested)}"
        if suggested
        else "",
        "Settings of every run\n" + settings_table(NetworkChoice, RunSettings),
        "What crosses\n" + messages_table(kind),
        defended_text(kind),
        MAP_TEXT,
    ]
    return "\n\n".join(filter(None, parts))


def describe_federation(name: str, kind: type[Any]) -> str:
    """A federation: what it is, its settings, and what it suggests for a run."""
    suggested = suggestions(kind)
    network = suggested["network"]
    wishes = [f"It suggests, where you say nothing else: {format_settings(suggested)}"]
    for algorithm, special in getattr(kind, "suggests_for", {}).items():
        wishes.append(f"and for {algorithm}: {format_settings(special)}")
    own = settings_table(resolve("network", network), values=suggested)
    parts = [
        f"{name}: {summary_line(kind)}",
        module_text(kind),
        "Settings\n" + settings_table(kind),
        f"Settings of its network, {network}\n{own}" if own else "",
        "\n".join(wishes),
        "Settings of every run\n" + settings_table(NetworkChoice, RunSettings),
    ]
    return "\n\n".join(filter(None, parts))


def format_settings(settings: Mapping[str, Any]) -> str:
    """Settings as they are written on the command line."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


def summary_line(kind: type[Any]) -> str:
    """The first line of a class's docstring."""
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def module_text(kind: type[Any]) -> str:
    """The docstring of the file that a class is written in, or else its own."""
    return inspect.getdoc(sys.modules[kind.__module__]) or inspect.getdoc(kind) or ""


def settings_table(*owners: type, values: Mapping[str, Any] | None = None) -> str:
    """Names, defaults (or `values` in their place) and meanings of settings, a line each."""
    settings = [setting for owner in owners for setting in settings_of(owner)]
    given = {s.name: "" if s.default is MISSING else s.default for s in settings} | dict(
        values or {}
    )
    left = [f"{s.name}={given[s.name]}" for s in settings]
    width = max(map(len, left), default=0)
    return "\n".join(
        f"  {text:{width}}  {s.meaning}" for text, s in zip(left, settings, strict=True)
    )


def messages_table(kind: type[Any]) -> str:
    """For every client step, what a client downloads and what it uploads; nothing else crosses."""
    state = read_annotations(kind.init).get("return", object)
    lines = []
    inherited = {name: step for base in reversed(kind.__mro__) for name, step in vars(base).items()}
    for name, step in inherited.items():
        if not is_client_step(step):
            continue
        upload = declared_upload(step)
        fields = getattr(upload, "_fields", ())
        sent = dict(field_comments(upload)) if upload is not None and fields else {}
        kept = dict(field_comments(state))
        arguments = [a for a in inspect.signature(step).parameters if a not in ("self", "cohort")]
        lines.append(f"  {name}")
        for a in arguments if fields else []:
            one_of_many = f"one of {a}s {kept[a + 's']}" if a + "s" in kept else ""
            lines.append(f"    down  {a:8} {kept.get(a, one_of_many)}".rstrip())
        lines += [f"    up    {field:8} {sent.get(field, '')}".rstrip() for field in fields]
        lines.append(f"    {what_is_seen(step, upload)}")
    return "\n".join(lines) or "  nothing: no method is marked @on_client"


def defended_text(kind: type[Any]) -> str:
    """What the server sees besides where a run defends itself; empty: nothing."""
    steps = {name: getattr(kind, name) for name in dir(kind)}
    seen = [
        name
        for name, step in steps.items()
        if is_client_step(step) and declared_fold(step) is not None and sends_models(step)
    ]
    if not seen:
        return ""
    settings = "screen=, or aggregate= but mean," if traits_of(kind).averages else "screen="
    return (
        f"With {settings} the server sees every client's upload of {', '.join(sorted(seen))}, and "
        "not only sums."
    )


def what_is_seen(step: Callable[..., Any], upload: type | None) -> str:
    """What the server sees of the uploads of a client step."""
    if upload is None:
        return "what goes up is not declared: the step has no return annotation"
    if not getattr(upload, "_fields", ()):
        return "nothing crosses: what it makes stays with the client"
    fold = declared_fold(step)
    if fold is None:
        return "the server sees every client's upload"
    told: tuple[Role, ...] = getattr(fold, "per_client", ())
    # What an upload does not say, as a cluster, the fold finds out.
    names = [field_of_role(upload, role) or role.value for role in told]
    beside = f", and of each client: {', '.join(names)}" if names else ""
    return f"the server sees sums over clients{beside}"


def field_comments(owner: type) -> list[tuple[str, str]]:
    """The fields of an upload or a state and the comments behind them; none without its source."""
    try:
        source = inspect.getsource(owner)
    except (OSError, TypeError):  # of a class from a notebook
        return []
    return re.findall(r"^    (\w+): [^#\n]*?  # (.+)$", source, flags=re.MULTILINE)
