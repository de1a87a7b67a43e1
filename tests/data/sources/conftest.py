"""A cache of the test's own, and a web server with the manners that a test asks for."""

import http.server
import threading

import pytest

from coterie.data.sources import cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder, with nothing to be found anywhere else."""
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "ELSEWHERE", {})
    return tmp_path / "data"


class Shelf(http.server.ThreadingHTTPServer):
    """Serves `files`; notes the Range of every request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.ranges, self.cuts = {}, [], []
        self.honours_range, self.over = True, threading.Event()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        shelf, name = self.server, self.path.lstrip("/")
        asked = self.headers.get("Range")
        shelf.ranges.append(asked)
        if name == "hangs":
            shelf.over.wait(20)
            return
        if name not in shelf.files:
            self.send_error(404)
            return
        data, start = shelf.files[name], 0
        if asked and shelf.honours_range:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start : start + shelf.cuts.pop(0)] if shelf.cuts else data[start:])

    def log_message(self, *_):
        pass


@pytest.fixture
def shelf(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Shelf()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()
