"""A nemesis on a real deployment: processes and connections of three nodes and their server.

Each case strikes the deployment once, at a moment that is drawn, while a run goes on, and a checker
reads the history of the run: which rounds were closed when, and who was missing in each.

`nodes`   a fault of one node: it misses rounds for as long as the fault lasts and 30 s more, and
          nobody else misses any. A fault that nobody is missing for must not be seen at all
`ends`    a run is stopped, or its ServerApp killed, in the middle of a round: the next run, or the
          same that the server goes on with, has all nodes within 60 s
`power`   all processes are killed at once, and what a service manager starts is started again: the
          run goes on unattended and ends in the same bits as one that was not disturbed
"""

from __future__ import annotations

import random
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from coterie.flower.unfinished import note_folder, read_note
from tests.faults.clock import SettableClock
from tests.faults.deployment import WORKLOADS, Deployment, records, same_bits

RECOVER_SECONDS = 30.0  # after the end of a fault
HUNG_ROUNDS = 12  # for which a hung node hangs
HUNG_TIMES = 1.5  # as long as without it the median round may take with a hung node
BEGIN_SECONDS = 60.0  # until the next run has a round with all nodes
PATIENCE = 300.0  # for the deployment itself, on a busy machine
MANY = 100_000  # rounds: the nemesis ends the run
POWER_ROUNDS = 6
CLIENTS = {1: {"0", "1"}, 2: {"2", "3"}, 3: {"4", "5"}}

Say = Callable[[str], None]


class Nemesis:
    """A deployment, the run that goes on in it, and the history of the run as it was seen."""

    def __init__(self, seed: int, say: Say = lambda text: None) -> None:
        self.place, self.say = Path(mkdtemp(prefix="coterie-faults-")), say
        self.clock = SettableClock(self.place)
        environment = self.clock.environment if self.clock.works else {}
        self.deployment = Deployment(self.place, seed, environment)
        self.workload, self.out, self.run = "", self.place, 0
        self.history: list[tuple[float, dict[str, Any]]] = []  # when a round was closed, and it
        self.number = 0
        try:
            self.need(lambda: self.deployment.nodes_online() == 3, "three nodes online")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.deployment.__exit__()
        shutil.rmtree(self.place, ignore_errors=True)

    def need(self, until: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Wait for what the nemesis itself needs."""
        if not self.deployment.wait(lambda: self.look() or until(), seconds):
            raise AssertionError(f"no {what} after {seconds:g} s")

    def look(self) -> None:
        """Add to the history the rounds that were closed since the last look."""
        found = records(self.out)
        if len(found) < len(self.history):  # a run that goes on is back at its checkpoint
            del self.history[len(found) :]
        self.history += [(time.monotonic(), record) for record in found[len(self.history) :]]

    def begin(self, workload: str, rounds: int = MANY) -> None:
        """Start a run."""
        self.number += 1
        self.workload, self.out = workload, self.place / f"run-{self.number}"
        self.history = []
        self.run = self.deployment.start(workload, rounds, self.out)

    def stop(self) -> None:
        """Stop the run, as `flwr stop` does, also one that the server went on with."""
        note = read_note(note_folder(self.place / "unfinished", self.out))
        with self.deployment.control() as control:
            control.stop_run(self.run if note is None else note.run)

    def whole_after(self, moment: float) -> list[dict[str, Any]]:
        """The rounds with all clients that were closed after a moment."""
        return [r for at, r in self.history if at > moment and not r.get("missing")]

    def closed_after(self, moment: float) -> int:
        """How many rounds were closed after a moment."""
        return sum(at > moment for at, _ in self.history)

    def calm(self, workload: str) -> None:
        """Wait until a run of this workload has done two rounds with all nodes."""
        if self.workload != workload:
            if self.run:
                self.stop()
            self.begin(workload)
        now = time.monotonic()
        self.need(lambda: len(self.whole_after(now)) >= 2, "two rounds with all nodes")

    def usual_seconds(self) -> float:
        """The median of the rounds with all nodes."""
        return statistics.median([r["seconds"] for _, r in self.history if not r.get("missing")])


class Fault:
    """What is done to a node, or to the server if the node is 0, and undone."""

    def __init__(self, name: str, nemesis: Nemesis, node: int, draw: random.Random) -> None:
        self.name, self.node, self.draw = name, node, draw
        self.deployment, self.clock = nemesis.deployment, nemesis.clock
        self.toggled_at, self.on = 0.0, False

    def victims(self) -> list[int]:
        """The processes that the fault is about."""
        find, file = self.deployment.processes, f"node-{self.node}.toml"
        worker, supernode = find("deploy.worker", file), find("deploy.supernode", file)
        if "worker" in self.name or self.name in ("slow", "hung node"):
            watcher = find("deploy node", file) if self.name == "hung node" else []
            return worker + watcher
        return supernode if "supernode" in self.name else find(file)

    def strike(self) -> None:
        """Begin."""
        kill, stop = self.deployment.signal_all, signal.SIGSTOP
        if self.name.startswith("kill"):
            kill(self.victims(), signal.SIGKILL)
        elif self.name == "replaced node":
            kill(self.victims(), signal.SIGKILL)
            shutil.rmtree(self.deployment.folder / f"node-{self.node}" / "memory", True)
        elif self.name.startswith(("stop", "hung")):
            kill(self.victims(), stop)
        elif self.name == "clock":
            self.clock.set(self.draw.choice([3600, -3600]))
        elif self.name != "slow":
            amount = {"delay": 0.3, "loss": 0.1}.get(self.name, 0.0)
            self.deployment.relays[self.node - 1].set(self.name, amount)

    def go_on(self) -> None:
        """Called all the time while it lasts."""
        if self.name == "slow" and time.monotonic() - self.toggled_at > (0.4 if self.on else 0.1):
            self.on, self.toggled_at = not self.on, time.monotonic()
            number = signal.SIGSTOP if self.on else signal.SIGCONT
            self.deployment.signal_all(self.victims(), number)

    def undo(self) -> None:
        """End."""
        if self.name == "clock":
            self.clock.set(0)
        elif self.name == "slow" or self.name.startswith(("stop", "hung")):
            self.deployment.signal_all(self.victims(), signal.SIGCONT)
        elif self.node:
            self.deployment.relays[self.node - 1].set("pass")


FAULTS = (
    *("kill worker", "kill supernode", "kill node", "replaced node"),
    *("stop worker", "stop supernode", "stop node", "hung node", "slow"),
    *("cut", "reset", "delay", "loss", "clock"),
)
UNSEEN = {"delay", "loss", "clock", "slow"}  # nobody may miss a round for these


def try_node(nemesis: Nemesis, seed: int) -> str:
    """One fault of one node, or a step of the server's clock; what is wrong with what came of it.

    Every seed from 0 on is the next fault of the list, on a node and for a time that are drawn.
    """
    draw = random.Random(seed)
    name = FAULTS[seed % len(FAULTS)]
    if name == "clock" and not nemesis.clock.works:
        nemesis.say(f"seed {seed}: clock: not tried, for there is no C compiler")
        return ""
    # What clients keep is gone with a replaced node: it says so and is left out.
    workload = "ifca" if name == "replaced node" or seed // len(FAULTS) % 2 == 0 else "ditto"
    node = 0 if name == "clock" else draw.choice([1, 2, 3])
    nemesis.calm(workload)
    usual = nemesis.usual_seconds()
    lasts = {"clock": 30.0, "hung node": PATIENCE}.get(name, draw.uniform(3, 20))
    nemesis.deployment.wait(lambda: False, draw.uniform(0, usual))  # anywhere in a round
    fault, began = Fault(name, nemesis, node, draw), time.monotonic()
    fault.strike()
    instant = name.startswith(("kill", "replaced"))
    try:
        deadline = began + (0.0 if instant else lasts)
        enough = HUNG_ROUNDS if name == "hung node" else MANY
        while time.monotonic() < deadline and nemesis.closed_after(began) < enough:
            nemesis.deployment.watch()
            nemesis.look()
            fault.go_on()
            time.sleep(0.05)
    finally:
        fault.undo()
    over = time.monotonic()
    back = nemesis.deployment.wait(
        lambda: nemesis.look() or len(nemesis.whole_after(over)) >= 2, PATIENCE
    )
    missed = [(at, r) for at, r in nemesis.history if at > began and r.get("missing")]
    after = max([at - over for at, _ in missed], default=0.0)
    during = [r["seconds"] for at, r in nemesis.history if began < at < over] or [0.0]
    median = statistics.median(during)
    nemesis.say(
        f"seed {seed}: {name} of node {node} for {over - began:.0f} s in {workload}: "
        f"{len(missed)} rounds missed, the last closed {after:.0f} s after; "
        f"a round took {usual:.1f} s, then {median:.1f} s"
    )
    if not back:
        return f"seed {seed}: {name} of node {node} for {over - began:.0f} s: it never came back"
    if name == "hung node" and median > HUNG_TIMES * usual:
        return f"seed {seed}: with a hung node a round took {median:.1f} s, not {usual:.1f} s"
    return judge(seed, name, node, [r for _, r in missed], after - usual)


def judge(seed: int, name: str, node: int, missed: list[dict[str, Any]], after: float) -> str:
    """What is wrong with the rounds that somebody missed, the last so many seconds after."""
    what = f"seed {seed}: {name} of node {node}"
    others = [
        who
        for record in missed
        for who in record["missing"]
        if not set(who.split(", ")) <= CLIENTS.get(node, set())
    ]
    if others:
        return f"{what}: clients {others[0]} of another node missed a round"
    if missed and name in UNSEEN:
        return f"{what}: {len(missed)} rounds were missed, though it could answer"
    if after > RECOVER_SECONDS:
        return f"{what}: a round was missed {after:.0f} s after the fault was over"
    return ""


def try_end(nemesis: Nemesis, seed: int) -> str:
    """A run is stopped (even seeds) or its ServerApp killed (odd ones) in the middle of a round."""
    draw = random.Random(seed)
    workload = draw.choice(sorted(WORKLOADS))
    if not nemesis.run or seed % 2 == 0 or nemesis.workload not in WORKLOADS:
        if nemesis.run:
            nemesis.stop()
        nemesis.begin(workload)
    now = time.monotonic()
    nemesis.need(lambda: nemesis.whole_after(now), "round with all nodes")
    nemesis.deployment.wait(lambda: False, draw.uniform(0, 5))
    began = time.monotonic()
    if seed % 2 == 0:
        nemesis.stop()
        nemesis.begin(workload)
    else:
        server = nemesis.deployment.processes("flwr-serverapp")
        nemesis.deployment.signal_all(server, signal.SIGKILL)
    back = nemesis.deployment.wait(lambda: nemesis.look() or nemesis.whole_after(began), PATIENCE)
    first = next((r for at, r in nemesis.history if at > began), {})
    seconds = time.monotonic() - began
    how = "stopped" if seed % 2 == 0 else "ServerApp killed"
    rounds = (
        f"first round with all nodes after {seconds:.0f} s, which took {first.get('seconds')} s"
    )
    nemesis.say(f"seed {seed}: {how} in {nemesis.workload}: {rounds}")
    if not back:
        return f"seed {seed}: {how}: no round with all nodes in {PATIENCE:g} s"
    if first.get("missing"):
        return f"seed {seed}: {how}: the next round was without {first['missing']}"
    if seconds - float(first["seconds"]) > BEGIN_SECONDS:
        return f"seed {seed}: {how}: the next round began after {seconds:.0f} s"
    return ""


def try_power(nemesis: Nemesis, seed: int) -> str:
    """All processes are killed in the middle of FPFC (even seeds) or of Ditto (odd ones)."""
    draw, workload = random.Random(seed), ("fpfc", "ditto")[seed % 2]
    whole = nemesis.place / f"undisturbed-{workload}"
    if not whole.exists():
        nemesis.begin(workload, POWER_ROUNDS)
        finished(nemesis)
        nemesis.out.rename(whole)
    nemesis.begin(workload, POWER_ROUNDS)
    least = draw.randrange(1, POWER_ROUNDS - 2)
    nemesis.need(lambda: len(nemesis.history) >= least, f"round {least}")
    nemesis.deployment.wait(lambda: False, draw.uniform(0, 5))
    began, done = time.monotonic(), len(nemesis.history)
    deployment = nemesis.deployment
    deployment.signal_all(deployment.processes(), signal.SIGKILL)
    nemesis.run = 0
    ended = deployment.wait(lambda: nemesis.look() or is_finished(nemesis.out), PATIENCE)
    seconds = time.monotonic() - began
    nemesis.say(f"seed {seed}: power cut in round {done + 1} of {workload}: {seconds:.0f} s to end")
    if not ended:
        return f"seed {seed}: power cut in {workload}: it did not go on to its end"
    missed = [record for _, record in nemesis.history if record.get("missing")]
    if missed:
        return f"seed {seed}: power cut in {workload}: a round was without {missed[0]['missing']}"
    same = same_bits(whole, nemesis.out)
    return "" if same else f"seed {seed}: power cut in {workload}: it ended in other bits"


def is_finished(out: Path) -> bool:
    """Whether a run has ended with its results."""
    return (out / "result.json").exists()


def finished(nemesis: Nemesis) -> None:
    """Wait for the end of a run."""
    nemesis.need(lambda: is_finished(nemesis.out), "end of a run")
    nemesis.need(lambda: nemesis.deployment.status(nemesis.run).finished, "end of a ServerApp")
    nemesis.run = 0


PARTS = {"nodes": try_node, "ends": try_end, "power": try_power}
