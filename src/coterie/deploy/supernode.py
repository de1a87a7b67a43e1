"""Flower's SuperNode, with shorter waits; and how to sign off one that was killed.

    python -m coterie.deploy.supernode ...      # the options of `flower-supernode`

Three waits are fixed in Flower 1.41, and we change them for this process:

- A SuperNode promises a heartbeat every 30 s, and is taken for alive until it has missed two: for
  up to a minute the server waits for the replies of one that died, and does not let it in again,
  since a node is its key and it is there already. We promise one every 10 s, the least that a
  SuperLink takes: 20 s.
- Where there was no message, it asks again after 3 s, and rounds are no shorter. We ask sooner
  while messages come, and less and less often while none do.
- It looks for the worker's reply every 0.5 s. That costs next to nothing, so we look more often.
"""

from __future__ import annotations

import time
from pathlib import Path

from coterie.core.errors import SettingError
from coterie.deploy.keys import need_flower
from coterie.deploy.waits import fetch_promptly

HEARTBEAT_SECONDS = 10.0  # the least that a SuperLink takes
LEAST_SECONDS, MOST_SECONDS = 0.1, 3.0  # between questions for messages
PATIENCE = 0.1  # of the time without messages, after which it asks again
REPLY_SECONDS = 0.02  # between looks for the worker's reply
IDLE = 3  # what Flower's loop sleeps where there was no message


class Pauses:
    """Stands in for the module `time` in Flower's loop, which only sleeps."""

    def __init__(self) -> None:
        self.since = time.monotonic()  # when we last had something to do

    def sleep(self, seconds: float) -> None:
        """Wait for as long as we find right; Flower's wish tells what it waits for."""
        now = time.monotonic()
        if seconds < IDLE:
            self.since = now
            time.sleep(REPLY_SECONDS)
        else:
            time.sleep(min(max(PATIENCE * (now - self.since), LEAST_SECONDS), MOST_SECONDS))


def main() -> None:
    """Be a SuperNode until told to stop."""
    need_flower()
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection, start_client_internal
    from flwr.supernode.cli import flower_supernode

    for module, name, value in (
        (heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_SECONDS),  # here only of the node
        (fleet_http_connection, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_SECONDS),
        (start_client_internal, "time", Pauses()),
    ):
        assert hasattr(module, name), f"this Flower has no {module.__name__}.{name}"
        setattr(module, name, value)
    fetch_promptly()
    flower_supernode()


def sign_off(superlink: str, ca: Path, key: Path, node: int) -> bool:
    """Say for a SuperNode that was killed that it has gone, as it does itself where it can.

    The server then waits no more for its replies, and lets it in again at once. False if it was
    not taken for alive, or the SuperLink does not answer.

    superlink  host:port
    ca         the authority's certificate
    key        the node's private key
    node       the id that the SuperLink gave it
    """
    need_flower()
    import httpx
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private = serialization.load_ssh_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise SettingError(f"{key} is not the private key of a node")
    with FleetHttpClient.from_server_address(
        superlink,
        False,
        ca.read_bytes(),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(private, private.public_key()),
        ],
    ) as client:
        try:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
        except httpx.HTTPError:
            return False
    return True


if __name__ == "__main__":
    main()
