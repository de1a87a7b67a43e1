"""Which node's key each client's name belongs to, kept on the server over runs and restarts.

The names of clients are bound to the key of the node that brings them first. Another node that
claims one of them is refused, and so is the same node under another key, until an operator says
that a key takes the place of another:

    coterie deploy owners clients.json                            # who has how many clients
    coterie deploy owners clients.json --replace OLD.pub NEW.pub  # a node that got a new key
    coterie deploy owners clients.json --remove OLD.pub           # its names are free again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from coterie.core.errors import CoterieError, DataError, SettingError
from coterie.files import read_json, to_json, write_text

OWNERS = "clients.json"  # beside the run folders of a server
NOT_KEPT = "none"  # the setting `owners` of a run that keeps none
LISTED = 5  # names of clients that are shown


class ClientOwners:
    """Knows to whose key each client belongs.

    path  the file that says so; None: nobody's names are bound
    keys  asks for the keys of the nodes, by Flower's id; empty where nodes have none
    """

    def __init__(self, path: Path | None, keys: Callable[[], Mapping[int, str]] = dict) -> None:
        self.path, self.ask_keys = path, keys
        self.keys: Mapping[int, str] = {}
        self.owner: dict[str, str] = {} if path is None else read_owners(path)

    def look(self) -> None:
        """Ask for the keys of the nodes that are there now."""
        if self.path is not None:
            self.keys = self.ask_keys()

    def check(self, node: int, names: Iterable[str]) -> None:
        """Refuse a node that claims a client of another key."""
        if not self.keys:
            return
        own = self.keys.get(node, "none")
        for name in names:
            owner = self.owner.get(name, own)
            if owner != own:
                raise DataError(
                    f"client {name} belongs to the node with the key {owner}, and this one has "
                    f"{own}: `coterie deploy owners {self.path} --replace` changes that"
                )

    def bind(self, node: int, names: Iterable[str]) -> None:
        """Let clients belong to the key of a node from now on."""
        own = self.keys.get(node)
        new = [] if own is None else [name for name in names if name not in self.owner]
        if new and own and self.path is not None:
            self.owner = read_owners(self.path) | self.owner | dict.fromkeys(new, own)
            write_owners(self.path, self.owner)


def owners_file(setting: str, out: Path) -> Path | None:
    """Where a run with this setting `owners` and folder finds to whom clients belong."""
    if setting == NOT_KEPT:
        return None
    return Path(setting) if setting else out.absolute().parent / OWNERS


def read_owners(path: Path) -> dict[str, str]:
    """The key of each client, by name; nobody's if there is no such file."""
    try:
        found = read_json(path, {})
    except (OSError, ValueError, RecursionError) as error:
        raise CoterieError(f"{path}, to whom clients belong, cannot be read: {error}") from error
    texts = isinstance(found, dict) and all(isinstance(key, str) for key in found.values())
    if not texts:
        raise CoterieError(f"{path} must say to which key each client belongs, by name")
    return dict(found)


def write_owners(path: Path, owner: Mapping[str, str]) -> None:
    """Write down to which key each client belongs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, to_json(dict(sorted(owner.items())), indent=1) + "\n")


def replace_owner(path: Path, old: str, new: str | None) -> int:
    """Let the clients of a key belong to another, or to nobody; how many they are."""
    owner = read_owners(path)
    own = [name for name, key in owner.items() if key == old]
    if not own:
        raise SettingError(f"no client of {path} belongs to the key {old}")
    rest = {name: key for name, key in owner.items() if key != old}
    write_owners(path, rest if new is None else rest | dict.fromkeys(own, new))
    return len(own)


def owners_table(path: Path) -> str:
    """Who has which clients, a line for each key."""
    clients: dict[str, list[str]] = {}
    for name, key in read_owners(path).items():
        clients.setdefault(key, []).append(name)
    lines = [f"{path}: {sum(map(len, clients.values()))} clients of {len(clients)} keys"]
    for key, names in clients.items():
        more = ", ..." if len(names) > LISTED else ""
        lines.append(f"  {key}  {len(names):6,} clients: {', '.join(names[:LISTED])}{more}")
    return "\n".join(lines)
