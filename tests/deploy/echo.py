"""A Flower app that does nothing: what a round costs before anybody computes anything.

`write_echo(folder)` writes it. Its server waits for `nodes` nodes. In each of `rounds` rounds it
sends one small message to each node that is there, waits for the answers, and writes a line to
`out`/rounds.jsonl, as a run of ours does. A node that is lost is left out of the round. With
`rounds` = 0 it goes on until there is a file `out`/enough.

`worker()` is the code of a worker that answers, started as `coterie.deploy.worker` is.
"""

from pathlib import Path

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "echo"
version = "1.0.0"
description = "Messages that go there and back."
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
rounds = {rounds}
resume = false
"""

APP = """
import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from coterie.deploy.flwr_internals import shorten_fetch_waits

server = ServerApp()
client = ClientApp()  # the workers have their own
LOST = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE)


@server.main()
def main(grid: Grid, context: Context) -> None:
    shorten_fetch_waits(5.0)  # a node that is killed may have sent half of a reply
    settings = context.run_config
    out = Path(settings["out"])
    out.mkdir(parents=True, exist_ok=True)
    while len(list(grid.get_node_ids())) < settings["nodes"]:
        time.sleep(0.05)
    number = 0
    while number < settings["rounds"] or not (settings["rounds"] or (out / "enough").exists()):
        begin = time.time()
        content = RecordDict({"echo": ConfigRecord({"number": number})})
        nodes = list(grid.get_node_ids())
        messages = [Message(content, node, "query", ttl=60.0) for node in nodes]
        waiting, replies = set(grid.push_messages(messages)), []
        while waiting:
            time.sleep(0.05)
            found = list(grid.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            replies += found
        lost = [reply for reply in replies if reply.has_error()]
        for reply in lost:
            if reply.error.code not in LOST:
                raise RuntimeError(reply.error.reason)
        content = [dict(reply.content["echo"]) for reply in replies if reply.has_content()]
        assert all(one["number"] == number for one in content)
        line = {
            "round": number,
            "seconds": time.time() - begin,
            "nodes": sorted(one["node"] for one in content),
            "lost": len(lost),
        }
        with open(out / "rounds.jsonl", "a") as file:
            file.write(json.dumps(line) + "\\n")
        number += 1
"""

WORKER = """
import sys
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from coterie.deploy.flwr_worker import answer_messages

def echo(message, context):
    number = message.content["echo"]["number"]
    if number == %s:
        raise ValueError(f"{number} is too much")
    record = ConfigRecord({"number": number, "node": context.node_config["node"]})
    return Message(RecordDict({"echo": record}), reply_to=message)

supernode, secret, ready = sys.argv[2:]
answer_messages(echo, supernode, Path(secret).read_bytes(), Path(ready))
"""


def write_echo(folder: Path, rounds: int = 3) -> Path:
    """Write the app into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(rounds=rounds))
    (folder / "app.py").write_text(APP)
    return folder


def worker(fails_at: int = -1) -> str:
    """The code of a worker, whose step fails in one of the rounds."""
    return WORKER % fails_at
