"""A cache of the test's own, and a web server with the manners that a test asks for."""

import http.server
import threading

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder, with nothing to be found anywhere else."""
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("coterie.data.sources.source.SYSTEM_FOLDERS", {})
    return tmp_path / "data"


class Shelf(http.server.ThreadingHTTPServer):
    """Serves `files`; notes the headers of every request, and cuts replies short by `cuts`."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests, self.cuts = {}, [], []
        self.over = threading.Event()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        shelf, name = self.server, self.path.lstrip("/")
        shelf.requests.append(self.headers)
        if name == "hangs":
            shelf.over.wait(20)
            return
        if name not in shelf.files:
            self.send_error(404)
            return
        data = shelf.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: shelf.cuts.pop(0)] if shelf.cuts else data)

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
