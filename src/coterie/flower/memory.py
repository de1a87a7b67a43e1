"""What the clients of a node keep between rounds, on the node's own disk, and what they answered.

A run may have to go back: a SuperLink that dies is started again, and the run goes on from the last
checkpoint, which may be some rounds behind what the nodes have done. And a step may be asked for
again, since its reply was lost. So every change of the memory is kept as a version, named after the
rounds done by then, the number of the message in its attempt, and the attempt:

    00000007-00000012-ATTEMPT.safetensors

A step is answered once. Asked again, it is computed again from the version before it, beside the
very clients that it was computed beside (`steps.json` names them), so that no bit of it differs.

Versions of other attempts that are newer than what an attempt begins with belong to rounds that the
run has gone back on. They are not read, and removed; so are those that neither the server's
checkpoint nor the last step needs.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.engine.client_memory import ClientMemory
from coterie.files import read_json, write_atomically, write_text
from coterie.flower.memory_folders import STEPS, VERSION, RunFacts, mark, open_run, read_marker

# Kept beside what steps keep: when a client last kept something, as rounds done by then and one.
# The server knows it too, and so it is noticed when a node has lost what its clients kept.
WHEN_KEPT = "when kept"


class MemoryRefusal(CoterieError):
    """A step that cannot be done from what is kept here; only what the server knows is said."""


class StepNumber(NamedTuple):
    """Where in a run a step is."""

    rounds: int  # that are done when it is
    exchange: int  # number of the message in this attempt
    attempt: str  # at the run, which may be resumed


class Version(NamedTuple):
    """What clients kept after a step."""

    step: StepNumber
    path: Path


class RunMemory:
    """The memory of one run on a node whose clients have these names, as an attempt at it sees it.

    began      the rounds that the run had done when the attempt began; -1: it began anew
    algorithm  what the owner of the folder is told that the run is of
    """

    def __init__(
        self,
        memory: Path,
        run: str,
        names: list[str],
        *,
        attempt: str = "",
        began: int = -1,
        algorithm: str = "",
    ) -> None:
        if not run.isalnum():
            raise CoterieError(f"a run must have a name of letters and digits, got {run!r}")
        # Nodes may share a folder; each has what its own clients keep.
        clients = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]
        self.memory, self.name = memory, f"{run}-{clients}"
        self.of = RunFacts(run, algorithm, len(names))
        self.attempt, self.began = attempt, began
        self.folder = memory / self.name

    def begin(self, step: StepNumber) -> list[dict[str, int]]:
        """Get ready for a step that trains: whom it was computed for before, message by message.

        These are clients by name, with their numbers. A step is refused where the run has gone on
        from it.
        """
        self.folder = open_run(self.memory, self.name, self.of)
        log = self._log()
        over = step.attempt in log["attempts"][:-1]
        if log["attempts"][-1:] != [step.attempt] and not over:
            log = {"attempts": [*log["attempts"], step.attempt], "exchange": -1, "clients": []}
            write_text(self.folder / STEPS, json.dumps(log))
            for version in set(self._versions()) - set(self._usable()):
                version.path.unlink()
        if over or step.exchange < log["exchange"]:
            raise MemoryRefusal("the run has gone on from the step that is asked for")
        answered: list[dict[str, int]] = log["clients"]
        return answered if step.exchange == log["exchange"] else []

    def note_answer(self, step: StepNumber, clients: dict[str, int]) -> None:
        """Write down that a step is answered for these clients, before it is."""
        log = self._log()
        before = log["clients"] if step.exchange == log["exchange"] else []
        log |= {"exchange": step.exchange, "clients": [*before, clients]}
        write_text(self.folder / STEPS, json.dumps(log))

    def read_before(self, memory: ClientMemory, step: StepNumber) -> None:
        """Let `memory` be what it was before a step that trains."""
        place = step.rounds, step.exchange
        self._load(memory, [v for v in self._usable() if v.step[:2] < place])

    def read_after(self, memory: ClientMemory, rounds: int, exchange: float = math.inf) -> None:
        """Let `memory` be what it was after so many rounds, or after a message of the last one."""
        place = rounds, exchange
        self._load(memory, [v for v in self._usable() if v.step[:2] <= place])

    def write(self, memory: ClientMemory, step: StepNumber, *needed: int) -> None:
        """Keep `memory` as that after a step.

        `needed` are numbers of rounds that the server may go back to: the rounds that its
        checkpoint holds, which come first, and those after which the state was best.
        """
        tensors = {f"rows.{name}": rows.contiguous() for name, rows in memory.rows.items()}
        tensors |= {f"known.{name}": known for name, known in memory.known.items()}
        path = self.folder / f"{step.rounds:08d}-{step.exchange:08d}-{step.attempt}.safetensors"
        write_atomically(path, lambda file: safetensors.torch.save_file(tensors, file))
        memory.changed = False
        self._remove_old(*needed)

    def finish(self) -> None:
        """The run is over: its folder may go when another run begins."""
        known = read_marker(self.folder)
        if known is not None:
            mark(self.folder, self.of, finished=True)

    def _remove_old(self, saved: int, *best: int) -> None:
        """Remove the versions that nothing goes back to.

        What stays: the last two, the last of every round that the checkpoint does not hold, the
        last that it does, and the last of the best rounds.
        """
        versions = self._versions()
        last_of = {version.step.rounds: version for version in versions}
        held: list[Version] = []
        for needed in (saved, *best):
            held += [last for rounds, last in last_of.items() if rounds <= needed][-1:]
        later = [last for rounds, last in last_of.items() if rounds > saved]
        for old in set(versions) - {*versions[-2:], *held, *later}:
            old.path.unlink()

    def _load(self, memory: ClientMemory, versions: list[Version]) -> None:
        memory.rows, memory.known, memory.changed = {}, {}, False
        if versions:
            for name, tensor in safetensors.torch.load_file(versions[-1].path).items():
                owner, _, rest = name.partition(".")
                (memory.rows if owner == "rows" else memory.known)[rest] = tensor

    def _versions(self) -> list[Version]:
        """Every version, the newest last."""
        if read_marker(self.folder) is None:
            return []
        matches = [(VERSION.fullmatch(path.name), path) for path in self.folder.iterdir()]
        return sorted(
            Version(StepNumber(int(match[1]), int(match[2]), match[3]), path)
            for match, path in matches
            if match
        )

    def _usable(self) -> list[Version]:
        """The versions of this attempt, and those from which it began."""
        return [
            version
            for version in self._versions()
            if version.step.attempt == self.attempt or version.step.rounds <= self.began
        ]

    def _log(self) -> dict[str, Any]:
        """The attempts so far, and whom the last step was computed for, as `steps.json` has it."""
        empty: dict[str, Any] = {"attempts": [], "exchange": -1, "clients": []}
        log: dict[str, Any] = read_json(self.folder / STEPS, empty)
        return log


def copy_rows(source: ClientMemory, target: ClientMemory, ids: Tensor) -> None:
    """Let `target` keep what `source` has of clients `ids`."""
    for name in source.rows:
        known = ids[source.remembers(name, ids)]
        if len(known):
            target.keep(name, known, source.recall(name, known))


def check_kept(memory: ClientMemory, clients: dict[str, int], expected: Tensor) -> None:
    """Refuse to go on where clients kept more, by the server's account, than is here.

    clients   their numbers, by name
    expected  [a] when each last kept something, as rounds done by then and one; 0: never
    """
    ids = torch.tensor(list(clients.values()))
    if expected.shape != ids.shape or expected.dtype != torch.long:
        raise MemoryRefusal("a message must say when its clients last kept something")
    there = torch.zeros_like(expected)
    known = memory.remembers(WHEN_KEPT, ids)
    if bool(known.any()):
        there[known] = memory.recall(WHEN_KEPT, ids)[known]
    lost = torch.nonzero(there < expected).flatten().tolist()
    if lost:
        rounds = int(expected[lost[0]]) - 1
        when = f"in round {rounds}" if rounds else "before the first round"
        others = f" (as of {len(lost) - 1} others)" if len(lost) > 1 else ""
        raise MemoryRefusal(
            f"what client {list(clients)[lost[0]]} kept {when}{others} is not in its node's memory "
            "any more: it is left out of this run, unless `coterie deploy memory NODE.toml --from "
            "FOLDER` brings it back there"
        )
