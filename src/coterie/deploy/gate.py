"""The gate: a reverse proxy through which nodes reach the SuperLink's Fleet API, and nothing else.

A SuperLink has one port for its nodes, its users and its own processes, and only nodes have to
prove who they are: whoever else can reach that port may register nodes, start runs and fetch the
work of the server. So the SuperLink listens on its own machine only, and the gate listens to the
world. It ends TLS and passes on POST requests to `/v1/fleet/NAME`, each of which is signed with a
node's key. Everything else is refused.

A server that has nginx can use it instead (docs/deploy.md). The gate stays because `coterie deploy
superlink` must be safe without any other program; httpx, Starlette and uvicorn come with Flower.

    python -m coterie.deploy.gate HOST PORT SUPERLINK_PORT KEYS

KEYS is the folder of `coterie.deploy.keys.make_authority`.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.deploy.flwr_internals import FLEET_PATH, need_flower
from coterie.deploy.keys import Authority

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

METHOD = re.compile(r"[a-z-]+")  # nothing that could lead to another path
TIMEOUT_SECONDS = 300.0  # for the SuperLink to take or give a part of a message
CONNECTIONS = 1000  # to the SuperLink, at most
HOP_BY_HOP = {"host", "connection", "keep-alive", "transfer-encoding", "upgrade", "te"}


def make_gate(superlink: str, ca: Path) -> Starlette:
    """The gate as an ASGI app that passes requests of nodes on to `superlink` (host:port)."""
    need_flower()
    import httpx
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.requests import ClientDisconnect
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    trust = ssl.create_default_context(cafile=ca)
    # A connection is kept for as many nodes as ask at once: to make one takes longer than to ask.
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    client = httpx.AsyncClient(
        verify=trust, timeout=TIMEOUT_SECONDS, trust_env=False, limits=limits
    )

    async def forward(request: Request) -> Response:
        method = request.path_params["method"]
        if not METHOD.fullmatch(method):
            return Response(status_code=404)
        url = f"https://{superlink}{FLEET_PATH}{method}"
        headers = end_to_end_headers(request.headers)
        onward = client.build_request("POST", url, headers=headers, content=request.stream())
        try:
            answer = await client.send(onward, stream=True)
        except ClientDisconnect:
            return Response(status_code=400)  # to nobody: the node has given up
        except httpx.TransportError:
            return Response("the SuperLink does not answer", status_code=503)
        return StreamingResponse(
            answer.aiter_raw(),
            answer.status_code,
            end_to_end_headers(answer.headers),
            background=BackgroundTask(answer.aclose),
        )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    route = Route(FLEET_PATH + "{method}", forward, methods=["POST"])
    return Starlette(routes=[route], lifespan=lifespan)


def end_to_end_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are passed on: all but those that concern one connection."""
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


def main(host: str, port: int, superlink_port: int, keys: Path) -> None:
    """Serve until told to stop."""
    import uvicorn

    authority = Authority(keys)
    uvicorn.run(
        make_gate(f"127.0.0.1:{superlink_port}", authority.certificate),
        host=host,
        port=port,
        ssl_certfile=str(authority.server_certificate),
        ssl_keyfile=str(authority.server_key),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
