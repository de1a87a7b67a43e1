"""Many light nodes in one process: they speak the real protocol of a SuperLink, without PyTorch.

    python benchmarks/light_nodes.py SPEC.json

A light node has a key, activates itself, sends heartbeats, fetches messages and their objects,
confirms them, and replies, all by Flower's own client; so the SuperLink, the gate and the ServerApp
have the same work with it as with a full node. It holds one client. It enrols as a node of coterie
does, and "trains" by sending back the model that it was sent, moved a little. It does not score:
such a message is answered with an error. Each has a thread of this process.

SPEC.json: {"superlink": "host:port", "ca": certificate, "keys": [private keys], "enrolment": header
of the reply of a full node, "samples": of each client}. `benchmarks/load.py` writes it.
"""

import contextlib
import json
import logging
import math
import sys
import threading
import time
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives import serialization
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.supercore.inflatable import inflatable_object, inflatable_utils
from flwr.supernode import fleet_http_connection

from coterie.deploy.flwr_supernode import HEARTBEAT_SECONDS, IDLE_SLEEP, AdaptiveSleep

RAW_BYTES = "coterie.raw"  # as in coterie/flower/wire.py, which imports PyTorch
STEP = 1e-4  # by which the "trained" model is moved


SMALL = 2**16


def content_of(header: dict, arrays: dict[str, np.ndarray]) -> RecordDict:
    """A packet as coterie sends it."""
    small, together, large = [], b"", {}
    for name, array in arrays.items():
        kind, data = str(array.dtype), array.tobytes()
        if len(together) + len(data) <= SMALL:
            small.append((name, kind, list(array.shape)))
            together += data
        else:
            large[name] = Array(dtype=kind, shape=array.shape, stype=RAW_BYTES, data=data)
    words = {"json": json.dumps(header), "small": json.dumps(small), "bytes": together}
    return RecordDict({"words": ConfigRecord(words), "arrays": ArrayRecord(large)})


def arrays_of(content: RecordDict) -> dict[str, np.ndarray]:
    """The arrays of a packet."""
    words, place = content["words"], 0
    found = {
        name: np.frombuffer(array.data, array.dtype).reshape(array.shape)
        for name, array in content["arrays"].items()
    }
    for name, kind, shape in json.loads(words["small"]):
        count = math.prod(shape)
        values = np.frombuffer(words["bytes"], kind, count, place)
        found[name], place = values.reshape(shape), place + values.nbytes
    return found


class LightNode:
    """A node that holds one client."""

    def __init__(self, spec: dict, number: int) -> None:
        self.spec, self.number = spec, number
        self.sizes = np.array([spec["samples"]])

    def reply(self, content: RecordDict) -> RecordDict | None:
        """What is replied to a message; None: an error."""
        header, arrays = json.loads(content["words"]["json"]), arrays_of(content)
        told = {"seconds": 0.0, "startup": 0.0, "lost": [], "kept": False}
        if header["do"] == "enrol":
            own = {"clients": [f"light-{self.number:04d}"], "cluster": [0], "startup": 0.0}
            return content_of({**self.spec["enrolment"], **own}, {"sizes": self.sizes})
        if header["do"] == "step":
            model = arrays["all.model"]
            sent = {
                "cluster": np.zeros(1, np.int64),
                "model": (model + np.float32(STEP * (self.number % 2 * 2 - 1)))[None],
                "size": self.sizes,
            }
            return content_of({**told, "fields": list(sent)}, sent)
        return content_of({}, {}) if header["do"] == "finish" else None

    def work(self, stop: threading.Event) -> None:
        """Fetch and answer messages until told to stop."""
        private = serialization.load_ssh_private_key(
            Path(self.spec["keys"][self.number]).read_bytes(), None
        )
        certificate = Path(self.spec["ca"]).read_bytes()
        with fleet_http_connection.http_request_response(
            self.spec["superlink"], False, certificate, (private, private.public_key())
        ) as (_, receive, send, _run, _fab, pull, push, confirm):
            wait = AdaptiveSleep()  # as the SuperNode of coterie waits
            while not stop.is_set():
                # A run that has ended takes its messages with it.
                with contextlib.suppress(Exception):
                    if (found := receive()) is None:
                        wait.sleep(IDLE_SLEEP)
                    else:
                        wait.sleep(0)
                        self.answer(*found, send, pull, push, confirm)

    def answer(self, message, tree, send, pull, push, confirm) -> None:
        run, began = message.metadata.run_id, time.monotonic()
        ids = [each.object_id for each in inflatable_utils.iterate_object_tree(tree)]
        contents = inflatable_utils.pull_objects(ids, pull_object_fn=lambda one: pull(run, one))
        whole = inflatable_utils.inflate_object_from_contents(message.metadata.message_id, contents)
        confirm(run, message.metadata.message_id)
        content = self.reply(whole.content)
        if content is None:
            reply = Message(Error(code=0, reason="a light node does not score"), reply_to=message)
        else:
            reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = inflatable_object.get_all_nested_objects(reply)
        own = inflatable_object.get_object_tree(reply)
        wanted, session = send(reply, own, time.monotonic() - began)
        for one in wanted:
            push(run, session, one, objects[one].deflate())


def main(spec: dict) -> None:
    logging.disable(logging.INFO)
    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT_SECONDS
    inflatable_utils.pull_objects.__kwdefaults__.update(initial_backoff=0.05, backoff_cap=2.0)
    stop = threading.Event()
    nodes = [LightNode(spec, number) for number in range(len(spec["keys"]))]
    threads = [threading.Thread(target=node.work, args=(stop,), daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    print(f"{len(nodes)} light nodes", flush=True)
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(1)
    except KeyboardInterrupt:
        stop.set()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
