"""What the operator of a node decides: the file NODE.toml, and what of a run it refuses.

Whatever a server asks for, these settings hold. With `app`, the node takes part in runs of that app
alone: of its columns, algorithm, network and local work. What goes wrong on a node is written to
its log; a server is told no more than that it did, and what was wrong with its own message.
"""

from __future__ import annotations

import sys
import tomllib
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.core.errors import CoterieError, SettingError, did_you_mean
from coterie.core.imports import own_frame
from coterie.data.tables.table_settings import TableSettings
from coterie.files import read_plain_file
from coterie.flower.app import read_app
from coterie.flower.memory import MemoryRefusal
from coterie.flower.permission import NotAllowed, load_allowed
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket

# What a server is told; nothing that a node holds is in these words.
NOT_ACCEPTED = "the settings of this run are not those that the operator of this node has accepted"
UNUSABLE = "the settings of this run cannot be used on this node"
UNFIT = "the data of this node do not fit the app"
FAILED = "the step could not be carried out"
# Errors about what a server sent, in words that hold nothing else.
TOLD = BadPacket, NotAllowed, MemoryRefusal
LEAST = {
    **{"smallest_client": 1, "largest_model": 1, "longest_step": 1},
    **{"map_samples": 0, "schema_rows": 1},
}
MOST = 10**12


@dataclass(frozen=True, kw_only=True)
class NodeFile:
    """What NODE.toml says of a node."""

    data: str = ""  # its table or folder, as in data = "patients.csv"; empty: as the app says
    share: str = ""  # which part of these clients are its own, as in 1/3; empty: all
    memory: str = "memory"  # the folder for what its clients keep between rounds
    # what it runs besides coterie's own, as in allow = ["mypackage.mine:Method"]
    allow: frozenset[str] = frozenset()
    app: str = ""  # the folder of the app that it accepts, no setting changed; empty: any
    # of its table the columns that an app may use, as in columns = ["age", "outcome"]; empty: all
    columns: frozenset[str] = frozenset()
    client: str = ""  # the only column that may name clients; empty: any that it offers
    smallest_client: int = 5  # training samples that a client must have to take part
    largest_model: int = 10**8  # numbers that a model may have
    longest_step: int = 3600  # seconds that an answer may take
    schema: bool = True  # whether it says sums of its table where an app brings no schema
    schema_rows: int = 10  # rows of its table that must stand behind a name or a sum that it says
    map: bool = True  # whether its clients send what places them on the map of the report
    map_samples: int = 10  # training samples that a client must have to be on the map

    @classmethod
    def read(cls, path: Path) -> NodeFile:
        """The file at `path`; other paths in it are relative to its folder."""
        try:
            raw = tomllib.loads(read_plain_file(path).decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SettingError(f"the node file {path} cannot be read: {error}") from error
        known = list(cls.__dataclass_fields__)
        for name, value in raw.items():
            if name not in known:
                near = did_you_mean(name, known) or f" (settings: {', '.join(known)})"
                raise SettingError(f"{path}: no setting of a node is named {name}{near}")
            usual = getattr(cls, name)
            if isinstance(usual, frozenset):
                if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
                    raise SettingError(f"{path}: `{name}` must be a list of names, got {value!r}")
            elif type(value) is not type(usual):
                kind = {str: "a text", bool: "true or false", int: "a whole number"}[type(usual)]
                raise SettingError(f"{path}: `{name}` must be {kind}, got {value!r}")
            elif type(value) is int and not LEAST[name] <= value <= MOST:
                raise SettingError(
                    f"{path}: `{name}` must be from {LEAST[name]} to {MOST:,}, got {value}"
                )
        columns = frozenset(raw.get("columns", []))
        allow = load_allowed(raw.get("allow", []))
        found = cls(**{**raw, "allow": allow, "columns": columns})
        found.bounds(1)
        home = path.resolve().parent
        own, app = (str(home / each) if each else "" for each in (found.data, found.app))
        return replace(found, data=own, app=app, memory=str(home / found.memory))

    def bounds(self, count: int) -> tuple[int, int]:
        """Where its share of `count` clients begins and ends."""
        if not self.share:
            return 0, count
        which, slash, of = self.share.partition("/")
        if not (slash and which.isdigit() and of.isdigit() and 1 <= int(which) <= int(of)):
            raise SettingError(f"`share` of a node must be as in 1/3, got {self.share}")
        return (int(which) - 1) * count // int(of), int(which) * count // int(of)


def check_accepted(file: NodeFile, app: App) -> None:
    """Refuse an app that the operator of a node has not accepted, in words that tell nothing.

    It has other settings than the app in the node's file, uses other columns, or other clients.
    """
    if file.app and read_app(Path(file.app)).fingerprint != app.accepted_fingerprint:
        raise NotAllowed(NOT_ACCEPTED)
    table = app.plan.federation
    if app.schema is None or not isinstance(table, TableSettings):
        return
    names = {app.schema.client, table.client}
    labels = {app.schema.label, table.label} if app.schema.labelled else set()
    used = {*names, *labels, *app.schema.columns, *table.split_columns, *table.category_columns}
    unnamed = not app.schema.encoders  # arrays have no columns
    if file.columns and not unnamed and not used <= file.columns:
        raise NotAllowed(NOT_ACCEPTED)
    if file.client and not unnamed and names != {file.client}:
        raise NotAllowed(NOT_ACCEPTED)


def smallest_upload(algorithm: object) -> int:
    """The fewest samples that an upload may be of by the settings of an algorithm; 0: all."""
    batch: int = getattr(algorithm, "batch", 0)
    if not batch or getattr(algorithm, "epochs", None):
        return 0
    steps: int | None = getattr(algorithm, "steps", None)
    sends_gradients = getattr(algorithm, "average", "") == "gradients"
    return batch if sends_gradients or steps is None else batch * steps


def check_model(file: NodeFile, numbers: int) -> None:
    """Refuse a model of more numbers than the operator of a node wants."""
    if numbers > file.largest_model:
        raise NotAllowed(f"a model of {numbers:,} numbers is larger than this node allows")


def check_batch(file: NodeFile, algorithm: object) -> None:
    """Refuse an algorithm whose uploads are of fewer samples than the smallest client may have."""
    fewest = smallest_upload(algorithm)
    if 0 < fewest < file.smallest_client:
        raise NotAllowed(
            f"an upload of {fewest} samples (`batch`) is of fewer than this node allows"
        )


def told_to_server(error: Exception, told: str) -> Exception:
    """What a server is told of an error: itself, if it is about what the server sent."""
    if isinstance(error, TOLD) and own_frame(error) is None:
        return error
    return CoterieError(keep_to_log(error, told))


def keep_to_log(error: Exception, told: str) -> str:
    """What the server is told of an error: its kind. The error itself may hold what clients have.

    All of it is written to what this process writes, which stays on the node.
    """
    print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
    place = own_frame(error)
    where = ""
    if place is not None:
        code = place[0].f_code
        where = f", {Path(code.co_filename).name}, line {place[1]}, in {code.co_name}"
    return f"{told} ({type(error).__name__}{where}); the node's log says why"
