"""Downloads against a server on this machine that breaks off, hangs, and sends other things."""

import gzip
import hashlib
import os
import socket
import time

import pytest

from coterie.core.errors import DataError
from coterie.data.sources import download as module
from coterie.data.sources.download import download

DATA = os.urandom(300_000)
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    """Between two tries pooch sleeps for a second or two."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.fixture
def fetch(shelf, tmp_path):
    """Downloads `name`, which should be DATA, and returns the folder's contents."""
    shelf.files["file"] = DATA

    def fetch(name="file", **settings):
        said = []
        download(f"{shelf.address}{name}", tmp_path / "file", DIGEST, said.append, **settings)
        assert said == ["file: 0.3 MiB"]
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    return fetch


def test_a_file_arrives_whole_and_alone(fetch, shelf, capfd):
    assert fetch() == {"file": DATA}
    assert len(shelf.requests) == 1
    assert capfd.readouterr() == ("", "")  # no bar where there is no terminal


def test_a_transfer_that_breaks_off_is_begun_again(fetch, shelf):
    shelf.cuts = [1000, 70_000]
    assert fetch() == {"file": DATA}
    assert len(shelf.requests) == 3


def test_a_transfer_that_never_ends_well_is_given_up_and_leaves_nothing(fetch, shelf, tmp_path):
    shelf.cuts = [1000] * 50
    with pytest.raises(DataError, match=r"^it broke off$"):
        fetch()
    assert len(shelf.requests) == 1 + module.RETRIES
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_nothing(fetch, monkeypatch, tmp_path):
    def stop(self, count):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.DownloadBar, "update", stop)
    with pytest.raises(KeyboardInterrupt):
        fetch()
    assert list(tmp_path.iterdir()) == []


def test_what_is_compressed_in_a_file_may_be_what_was_published(fetch, shelf, tmp_path):
    shelf.files["file.gz"] = gzip.compress(DATA)
    found = fetch("file.gz", compressed=True)
    assert gzip.decompress(found["file"]) == DATA
    shelf.files["file.gz"] = shelf.files["file.gz"][:-30]
    with pytest.raises(DataError, match="file is not the published file: its SHA-256 differs"):
        fetch("file.gz", compressed=True)


def test_a_compressed_file_is_asked_for_as_it_is(fetch, shelf):
    fetch()
    assert shelf.requests[0]["Accept-Encoding"] == "identity"


def test_another_file_is_refused_and_removed(fetch, shelf, tmp_path):
    shelf.files["file"] = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with pytest.raises(DataError, match="file is not the published file: its SHA-256 differs"):
        fetch()
    assert list(tmp_path.iterdir()) == []


def test_an_old_target_stays_when_the_new_one_is_refused_and_is_replaced_by_a_right_one(
    fetch, shelf, tmp_path
):
    (tmp_path / "file").write_bytes(b"old")
    shelf.files["file"] = b"other"
    with pytest.raises(DataError):
        fetch()
    assert (tmp_path / "file").read_bytes() == b"old"
    shelf.files["file"] = DATA
    assert fetch() == {"file": DATA}


def test_a_missing_file_is_told_with_the_servers_words(fetch, tmp_path):
    with pytest.raises(DataError, match=r"^HTTP 404 Not Found$"):
        fetch("nothing")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_hangs_is_given_up(fetch, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"^no answer within 0.2 s$"):
        fetch("hangs")
    assert time.monotonic() - began < 5


def test_a_server_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound but not listening: nobody else can answer here
        address = f"http://127.0.0.1:{free.getsockname()[1]}/file"
        with pytest.raises(DataError, match=r"^\[Errno \d+\] Connection refused$"):
            download(address, tmp_path / "file", DIGEST, print)


def test_a_terminal_gets_a_bar(fetch, monkeypatch, capfd):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert fetch() == {"file": DATA}
    out, err = capfd.readouterr()
    assert out == ""
    assert "300.0" in err
