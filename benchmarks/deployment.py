"""Seconds per round over a network: ours, beside Flower's own round in which nobody does anything.

    python benchmarks/deployment.py [--rounds 8] [--nodes 3]

Both run on this machine, one after the other, with TLS and node keys. Flower's is a ServerApp that
sends an empty message to every node (`send_and_receive`) and a ClientApp that sends it back, with
its SuperLink and SuperNodes as they come. Ours is IFCA on rotated digits, from `coterie deploy`.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from coterie.deploy.flwr_internals import ControlClient, build_bundle
from coterie.deploy.keys import make_authority, make_node_key
from coterie.deploy.local import run_local
from coterie.deploy.processes import HOST, Processes, free_ports
from coterie.deploy.services import flower_home, superlink_command, temporary_folder
from coterie.flower.app import write_app

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "nothing"
version = "1.0.0"
description = "Rounds in which nothing is done."
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
out = ""
nodes = 1
rounds = 1
"""
APP = """
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@client.query()
def echo(message, context):
    return Message(RecordDict({"nothing": ConfigRecord()}), reply_to=message)


@server.main()
def main(grid, context):
    settings = context.run_config
    while len(list(grid.get_node_ids())) < settings["nodes"]:
        time.sleep(0.1)
    for _ in range(settings["rounds"]):
        began = time.time()
        content = RecordDict({"nothing": ConfigRecord()})
        replies = list(
            grid.send_and_receive(
                [Message(content, node, "query") for node in grid.get_node_ids()]
            )
        )
        assert len(replies) == settings["nodes"] and not any(r.has_error() for r in replies)
        with open(settings["out"], "a") as file:
            file.write(f"{time.time() - began}\\n")
"""


def flower_seconds(home: Path, nodes: int, rounds: int) -> list[float]:
    """The rounds of the app that does nothing, on Flower as it comes."""
    app, out = home / "nothing", home / "seconds.txt"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "app.py").write_text(APP)
    authority = make_authority(home / "keys")
    keys = [make_node_key(home / "keys", f"node-{i}") for i in range(nodes)]
    port, *ports = free_ports(1 + nodes)
    superlink = f"{HOST}:{port}"
    as_it_comes = {**flower_home(home), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1"}
    with Processes(home / "logs", as_it_comes) as processes:
        link = processes.start("superlink", superlink_command(authority, port))
        link.wait_for_port(port)
        with ControlClient(superlink, authority.certificate) as control:
            for number, (key, own) in enumerate(zip(keys, ports, strict=True)):
                control.register_node(key.public)
                processes.start(
                    f"node-{number}",
                    [
                        *("flower-supernode", "--superlink", superlink),
                        *("--root-certificates", str(authority.certificate)),
                        *("--auth-supernode-private-key", str(key.private)),
                        *("--host", HOST, "--port", str(own)),
                    ],
                )
            settings = {"out": str(out), "nodes": nodes, "rounds": rounds}
            run = control.start_run(build_bundle(app), settings)
            while not (status := control.run_status(run)).finished:
                time.sleep(0.5)
            assert status.completed, status.details
    return [float(line) for line in out.read_text().split()]


def our_seconds(home: Path, nodes: int, rounds: int) -> list[float]:
    """Rounds of IFCA with the same number of nodes; the last, which is evaluated, left out."""
    words = f"ifca rotated-digits clients=12 k=4 start=random rounds={rounds + 1}"
    write_app(home / "app", [*words.split(), f"evaluate={rounds + 1}"])
    files = []
    for number in range(1, nodes + 1):
        path = home / f"node{number}" / "node.toml"
        path.parent.mkdir()
        path.write_text(f'share = "{number}/{nodes}"\n')
        files.append(path)
    assert run_local(home / "app", files, out=home / "run", show=lambda line: None) == 0
    lines = (home / "run" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines[:-1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    medians = []
    for name, measure in (("Flower, nothing done", flower_seconds), ("coterie, IFCA", our_seconds)):
        with temporary_folder() as home:
            seconds = measure(home, options.nodes, options.rounds)[1:]  # the first loads the app
        medians.append(statistics.median(seconds))
        print(
            f"{name:22} {medians[-1]:5.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})",
            flush=True,
        )
    print(f"ratio {medians[1] / medians[0]:.2f}")


if __name__ == "__main__":
    main()
