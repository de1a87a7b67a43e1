"""Many nodes on one server: seconds per round, memory of SuperLink, gate and ServerApp, and bytes.

    python benchmarks/load.py [--nodes 10,30,100] [--minutes 2] [--hidden 100]

For each number of nodes: what `coterie deploy superlink` starts, light nodes that connect through
its gate (light_nodes.py), and a run of FedAvg on digits, one client a node, for so many minutes.
The first tenth of the time is for everything to be allocated: memory after it should be flat.
Memory is the private part of a process (USS), so that what processes share is not counted twice.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from coterie.deploy.flwr_internals import ControlClient, build_bundle
from coterie.deploy.keys import make_authority, make_node_key
from coterie.deploy.processes import HOST, Processes, free_ports
from coterie.deploy.services import GATE, flower_home, superlink_command, temporary_folder
from coterie.flower.app import read_app, write_app
from coterie.flower.node import Node
from coterie.flower.node_file import NodeFile
from coterie.flower.wire import Packet

LOOK_SECONDS = 2.0  # between two looks at memory
SAMPLES = 16  # that each client says it has
PARTS = {
    "superlink": "coterie.deploy.superlink",
    "gate": "coterie.deploy.gate",
    "server": "serverapp",
}


class Load(NamedTuple):
    """What was seen with a number of nodes."""

    nodes: int
    numbers: int  # of a model
    rounds: list[dict[str, Any]]
    memory: list[tuple[float, dict[str, int]]]  # seconds since the first round, bytes by part


def measure_load(nodes: int, hidden: int, minutes: float) -> Load:
    """A run of light nodes for so many minutes after the first round."""
    with temporary_folder() as home, Processes(home / "logs", flower_home(home)) as processes:
        words = ["fedavg", "rotated-digits", "clients=4", f"hidden={hidden}", "evaluate=100000"]
        write_app(home / "app", [*words, "rounds=100000", "checkpoint=100000", "patience=600"])
        authority = make_authority(home / "keys")
        keys = [make_node_key(home / "nodes", f"node-{i}") for i in range(nodes)]
        app = read_app(home / "app", frozenset())
        full = Node(app, NodeFile(share="1/4", memory=str(home / "memory")))
        port, own_port = free_ports(2)
        spec = {
            "superlink": f"{HOST}:{port}",
            "ca": str(authority.certificate),
            "keys": [str(key.private) for key in keys],
            "enrolment": full.answer(Packet({"do": "enrol"})).header,
            "samples": SAMPLES,
        }
        (home / "spec.json").write_text(json.dumps(spec))
        link = processes.start("superlink", superlink_command(authority, own_port))
        link.wait_for_port(own_port)
        gate = processes.start("gate", [*GATE, HOST, str(port), str(own_port), str(home / "keys")])
        gate.wait_for_port(port)
        script = str(Path(__file__).with_name("light_nodes.py"))
        settings = {"out": str(home / "run"), "nodes": nodes}
        with ControlClient(f"{HOST}:{own_port}", authority.certificate) as control:
            for key in keys:
                control.register_node(key.public)
            light = processes.start("light", [sys.executable, script, str(home / "spec.json")])
            run = control.start_run(build_bundle(home / "app"), settings)
            memory, began, lines = [], 0.0, home / "run" / "rounds.jsonl"
            while not began or time.monotonic() - began < 60 * minutes:
                status = control.run_status(run)
                if status.finished or not (light.alive and link.alive):
                    raise RuntimeError(f"it ended: {status}, {light.last_lines} {link.last_lines}")
                if lines.exists() and lines.stat().st_size:
                    began = began or time.monotonic()
                    memory.append((time.monotonic() - began, private_bytes(processes)))
                time.sleep(LOOK_SECONDS)
        rounds = [json.loads(line) for line in lines.read_text().splitlines()]
        return Load(nodes, full.task.layout.size, rounds, memory)


def private_bytes(processes: Processes) -> dict[str, int]:
    """The memory of the parts of a server, each with what it has started."""
    found = dict.fromkeys(PARTS, 0)
    for pid in processes.alive():
        try:
            process = psutil.Process(pid)
            words = " ".join(process.cmdline())
            part = next((part for part, word in PARTS.items() if word in words), None)
            if part is not None:
                found[part] += process.memory_full_info().uss
        except psutil.Error:  # it has just ended
            continue
    return found


def growth(load: Load, part: str) -> float:
    """By how much the most memory after the first tenth is above the median of the second tenth."""
    end = load.memory[-1][0]
    early = [sizes[part] for at, sizes in load.memory if 0.1 * end <= at < 0.2 * end]
    late = [sizes[part] for at, sizes in load.memory if at >= 0.9 * end]
    return statistics.median(late) / statistics.median(early) - 1


def row(load: Load) -> str:
    """The line of the table about a number of nodes."""
    rounds = load.rounds[len(load.rounds) // 10 :]
    seconds = [record["seconds"] for record in rounds]
    asked = sum(record["answered"] for record in rounds) / len(rounds)
    sizes = {part: [each[part] / 2**20 for _, each in load.memory] for part in PARTS}
    told = [f"{statistics.median(sizes[p]):.0f} ({growth(load, p):+.1%})" for p in PARTS]
    traffic = [sum(r[f"bytes_{way}"] for r in rounds) / len(rounds) / 1e6 for way in ("down", "up")]
    return " | ".join(
        (
            f"| {load.nodes}, {load.numbers:,}",
            f"{len(load.rounds)} in {load.memory[-1][0] / 60:.1f} min, {asked:.0f} replied",
            f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})",
            *told,
            f"{traffic[0]:.2f}, {traffic[1]:.2f} |",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", default="10,30,100", help="how many, as in 10,100")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--hidden", type=int, default=100, help="of the network: its size")
    options = parser.parse_args()
    print(
        "| nodes, numbers of a model | rounds | seconds per round | SuperLink, MB | gate, MB | "
        "ServerApp, MB | MB down, up |\n| --- | --- | --- | --- | --- | --- | --- |",
        flush=True,
    )
    for nodes in map(int, options.nodes.split(",")):
        print(row(measure_load(nodes, options.hidden, options.minutes)), flush=True)


if __name__ == "__main__":
    main()
