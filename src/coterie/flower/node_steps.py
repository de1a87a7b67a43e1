"""How a node answers client steps: each once, whatever is lost on the way.

The key of an answer is where its step is in the run, and whose it is. A step that is asked for
again is answered with the same bits: by what was sent last, or computed again from what clients had
kept before the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import traits_of
from coterie.core.clients import Call, Each, Fold, Stacked, is_client_step
from coterie.engine.client_memory import ClientMemory
from coterie.experiment.settings import make_settings, setting_names
from coterie.flower.folded import sums_to_send
from coterie.flower.memory import WHEN_KEPT, RunMemory, StepNumber, check_kept, copy_rows
from coterie.flower.node_file import check_batch
from coterie.flower.permission import NotAllowed, check_allowed
from coterie.flower.plain_data import decode_plain
from coterie.flower.wire import BadPacket, Packet, decode_arguments
from coterie.registry import algorithm_name, resolve

if TYPE_CHECKING:
    from coterie.flower.node import Node

WORK = ("steps", "epochs")  # settings of algorithms that say how much clients do in a step


class StepAnswer(NamedTuple):
    """What a node sends."""

    tensors: dict[str, Tensor]  # the uploads of its clients, or their sums
    lost: list[int]  # places of the clients whose replies were lost in the channel
    kept: bool  # whether they keep something after this step


@dataclass(frozen=True)
class KeepOnly:
    """A filter that lets through the replies of some clients."""

    ids: Tensor

    def apply(self, call: Call, ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
        asked = torch.isin(ids, self.ids)
        return ids[asked], type(upload)(*(value[asked] for value in upload))


class NodeSteps:
    """Answers the client steps that a node is asked for."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.last: tuple[Any, StepAnswer] | None = None  # the last answer that trained, by its key

    def answer(self, packet: Packet) -> StepAnswer:
        """The answer to a message."""
        node = self.node
        call, raw = self.read_call(packet), packet.header.get("fold")
        fold = Stacked() if raw is None else decode_plain(raw, packet.tensors)
        memory, rounds = node.run_memory(packet), packet.get("rounds", int)
        asked = node.selected
        if not call.trains:
            memory.read_after(node.memory, rounds)
            check_kept(node.memory, asked, packet.tensor("kept"))
            return to_answer(call, fold, [self.compute(call, fold, asked)], kept=False)
        step = StepNumber(rounds, packet.get("exchange", int), packet.get("attempt", str))
        if min(step[:2]) < 0:
            raise BadPacket("the number of a message must not be negative")
        key = memory.of.run, step, tuple(asked)
        if self.last is None or self.last[0] != key:
            before = memory.begin(step)
            memory.read_before(node.memory, step)
            check_kept(node.memory, asked, packet.tensor("kept"))
            parts = self.train(call, fold, step, memory, before)
            kept = node.memory.changed
            if kept:
                memory.write(node.memory, step, packet.get("saved", int), *read_best(packet))
            self.last = key, to_answer(call, fold, parts, kept)
        return self.last[1]

    def train(
        self,
        call: Call,
        fold: Fold[Any],
        step: StepNumber,
        memory: RunMemory,
        before: list[dict[str, int]],
    ) -> list[tuple[Tensor, Any]]:
        """Answers to a step that may change what clients keep, which is then what they keep.

        before  the clients that the step was computed for before, message by message
        """
        node, asked = self.node, self.node.selected
        new = {name: i for name, i in asked.items() if not any(name in each for each in before)}
        if new:
            memory.note_answer(step, new)
        groups = [each for each in (*before, new) if asked.keys() & each.keys()]
        after = ClientMemory(node.memory.count, node.memory.locate)
        if before:
            memory.read_after(after, step.rounds, step.exchange)
        parts = []
        for place, group in enumerate(groups):
            if place:
                memory.read_before(node.memory, step)
            parts.append(self.compute(call, fold, group))
            if node.memory.changed:
                node.memory.keep(WHEN_KEPT, node.ids, torch.full_like(node.ids, step.rounds + 1))
                if before:
                    copy_rows(node.memory, after, node.ids)
        if before:
            node.memory.rows, node.memory.known = after.rows, after.known
            node.memory.changed = after.changed
        node.select(asked)
        return parts

    def compute(self, call: Call, fold: Fold[Any], group: dict[str, int]) -> tuple[Tensor, Any]:
        """Whose replies arrive, and the fold of these; clients compute beside their `group`."""
        self.node.select(group)
        ids, channel = self.node.ids, call.channel
        if not torch.equal(ids, call.ids):
            channel = (KeepOnly(call.ids), *channel)
        message = {
            name: spread(value, ids) if isinstance(value, Each) else value
            for name, value in call.message.items()
        }
        beside = call._replace(ids=ids, message=message, channel=channel)
        return self.node.simulators["train"].collect(beside, fold)

    def read_call(self, packet: Packet) -> Call:
        """The step that a message asks for, on the clients that are selected."""
        address, ids = tuple(packet.get("address", list)), self.node.ids
        if not all(isinstance(piece, int | str) for piece in address):
            raise BadPacket("the address of a step must be numbers and texts")
        arguments = decode_arguments(packet, ids)
        step, trains = find_step(self.node, packet), packet.get("trains", bool)
        check_work(self.node.app.plan.algorithm, packet.get("settings", dict))
        channel = tuple(decode_plain(raw, packet.tensors) for raw in packet.get("channel", list))
        return Call(step, ids, packet.get("round", int), address, arguments, trains, channel)


def to_answer(
    call: Call, fold: Fold[Any], parts: list[tuple[Tensor, Any]], kept: bool
) -> StepAnswer:
    """What is sent for the clients of a call: their uploads, or sums of these."""
    arrived = torch.cat([ids for ids, _ in parts])
    lost = torch.nonzero(~torch.isin(call.ids, arrived)).flatten().tolist()
    if not len(arrived):
        return StepAnswer({}, lost, kept)
    total = reduce(fold.merge, (total for _, total in parts))
    if isinstance(fold, Stacked):
        return StepAnswer(fold.finish(total, call.message)._asdict(), lost, kept)
    return StepAnswer(sums_to_send(fold, total), lost, kept)


def read_best(packet: Packet) -> list[int]:
    """The rounds after which the state of the run was best, which it may go back to."""
    best: list[int] = packet.get("best", list)
    if not all(type(rounds) is int for rounds in best):
        raise BadPacket("the best rounds must be whole numbers")
    return best


def spread(value: Each, ids: Tensor) -> Each:
    """A download for clients `ids`, of whom only some were sent it; others get any row of it."""
    assert value.ids is not None
    places = torch.searchsorted(value.ids, ids).clamp_max(len(value.ids) - 1)
    places = torch.where(value.ids[places] == ids, places, 0)
    if value.index is None:
        return Each(value.rows[places], None, ids)
    return Each(value.rows, value.index[places], ids)


def check_work(algorithm: Any, settings: dict[str, Any]) -> None:
    """Refuse a step of more local work than the app says."""
    for name in WORK:
        most = getattr(algorithm, name, None)
        if most is not None and settings.get(name, most) > most:
            raise BadPacket(f"`{name}` of this app is {most}, got {settings[name]}")


def find_step(node: Node, packet: Packet) -> Any:
    """The client step that a message names: of which algorithm, with which settings.

    An algorithm may be made of others, so that the step need not be of the app's own. A node that
    accepts one app carries out the steps that this app's algorithm is made of, and no others.
    """
    of, name = packet.get("of", str), packet.get("step", str)
    settings = packet.get("settings", dict)
    check_allowed(node.allow, "algorithm", of)
    kind = resolve("algorithm", of)
    if set(settings) != set(setting_names(kind)):
        raise BadPacket(f"{of} has other settings")
    if node.file.app and of not in node.allow:
        check_made_of(node.app.plan.algorithm, of, settings, make_settings(kind, {}))
    owner = make_settings(kind, settings)
    check_batch(node.file, owner)
    step = getattr(owner, name, None) if name.isidentifier() else None
    if not is_client_step(step):
        raise BadPacket(f"{of} has no client step {name!r}")
    return step


def check_made_of(algorithm: Any, of: str, settings: dict[str, Any], usual: Any) -> None:
    """Refuse a step that an algorithm is not made of, or one with other settings.

    usual  an algorithm of that name with the settings that are not given
    """
    own = algorithm_name(algorithm)
    made_of = {own: (), **traits_of(algorithm).made_of}
    if of not in made_of:
        raise NotAllowed(f"{own} has no steps of {of}: `allow` of this node does not name it")
    for name, value in settings.items():
        expected = getattr(algorithm if hasattr(algorithm, name) else usual, name)
        if name in WORK or name in made_of[of] or value == expected:
            continue
        raise NotAllowed(f"`{name}` of {of} in this app is {expected}, got {value}")
