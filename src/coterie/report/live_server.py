"""A page on this machine that renews itself while its runs go on."""

import json
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from coterie.report.run_files import files_stamp

HOME = "127.0.0.1"  # nobody else on the network sees the page
PORT = 8765


def page_server(
    folders: Sequence[Path], make: Callable[[], str], port: int = PORT
) -> ThreadingHTTPServer:
    """A server of the page that `make` gives, made anew whenever files in `folders` have changed.

    `/` is the page, `/page` the same for the script that renews it, and `/stamp` is a text that
    changes with the files. Port 0 takes any that is free.
    """

    def stamp() -> str:
        return json.dumps([files_stamp(folder) for folder in folders])

    @lru_cache(maxsize=1)
    def page(stamp: str) -> bytes:
        return make().encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of another site must not read this one under a name of its own.
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in (HOME, "localhost"):
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path in ("/", "/page"):
                self.answer("text/html; charset=utf-8", lambda: page(stamp()))
            elif self.path == "/stamp":
                self.answer("text/plain", lambda: stamp().encode())
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def answer(self, kind: str, content: Callable[[], bytes]) -> None:
            try:
                body = content()
            except (OSError, ValueError) as error:  # the folder has just been removed, say
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the page asks every other second."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET

        def handle_error(self, request: object, client_address: object) -> None:
            """A browser that goes away in the middle of an answer is no error."""

    return Server((HOME, port), Handler)
