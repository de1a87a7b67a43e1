"""The door for nodes: of all that a SuperLink answers to, only what nodes need gets through.

A SuperLink of Flower 1.41 has one port for its nodes, its users and its own processes, and it asks
only nodes to prove themselves: whoever else can reach that port may register nodes, start runs and
fetch the work of the server. So the SuperLink listens on its own machine only, and this program
listens to the world: it ends TLS and passes on what goes to `/v1/fleet/`, where every request is
signed with a node's key. Everything else is answered with 404.

    python -m coterie.deploy.gate HOST PORT SUPERLINK_PORT KEYS

KEYS is the folder of `coterie.deploy.keys.make_authority`.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.deploy.keys import Authority, need_flower

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

FLEET = "/v1/fleet/{method}"
METHOD = re.compile(r"[a-z-]+")  # nothing that could lead elsewhere
SECONDS = 300.0  # for the SuperLink to take or give a part of a message
# Headers that concern one connection and are not passed on.
OF_A_CONNECTION = {"host", "connection", "keep-alive", "transfer-encoding", "upgrade", "te"}


def gate(superlink: str, ca: Path) -> Starlette:
    """The program as an ASGI app that passes requests of nodes on to `superlink` (host:port)."""
    need_flower()
    import httpx
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    trust = ssl.create_default_context(cafile=ca)
    client = httpx.AsyncClient(verify=trust, timeout=SECONDS, trust_env=False)

    async def forward(request: Request) -> Response:
        method = request.path_params["method"]
        if not METHOD.fullmatch(method):
            return Response(status_code=404)
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in OF_A_CONNECTION
        ]
        onward = client.build_request(
            "POST",
            f"https://{superlink}{FLEET.format(method=method)}",
            headers=headers,
            content=request.stream(),
        )
        try:
            answer = await client.send(onward, stream=True)
        except httpx.TransportError:
            return Response("the SuperLink does not answer", status_code=503)
        return StreamingResponse(
            answer.aiter_raw(),
            answer.status_code,
            {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in OF_A_CONNECTION
            },
            background=BackgroundTask(answer.aclose),
        )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return Starlette(routes=[Route(FLEET, forward, methods=["POST"])], lifespan=lifespan)


def main(host: str, port: int, superlink_port: int, keys: Path) -> None:
    """Serve until told to stop."""
    need_flower()
    import uvicorn

    authority = Authority(keys)
    uvicorn.run(
        gate(f"127.0.0.1:{superlink_port}", authority.certificate),
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
