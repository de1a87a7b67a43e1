"""Downloads against a server on this machine that breaks off, hangs, and sends other things."""

import hashlib
import os
import socket
import time

import pytest

from coterie.core.errors import DataError
from coterie.data.sources import download as module
from coterie.data.sources.download import accept_digest, download

DATA = os.urandom(300_000)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def fetch(shelf, tmp_path):
    """Downloads `name`, which should be DATA, and returns the folder's contents."""
    shelf.files["file"] = DATA

    def fetch(name="file", **settings):
        accept = accept_digest("file", sha256(DATA))
        said = []
        download(f"{shelf.address}{name}", tmp_path / "file", accept, said.append, **settings)
        assert said == ["file: 0.3 MiB"]
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    return fetch


def test_a_file_arrives_whole_and_alone(fetch, shelf, capfd):
    assert fetch() == {"file": DATA}
    assert shelf.ranges == [None]
    assert capfd.readouterr() == ("", "")  # no bar where there is no terminal


def test_a_transfer_that_breaks_off_is_taken_up_where_it_ended(fetch, shelf):
    shelf.cuts = [1000, 70_000]
    assert fetch() == {"file": DATA}
    assert shelf.ranges == [None, "bytes=1000-", "bytes=71000-"]


def test_what_an_interrupted_process_left_is_used(fetch, shelf, tmp_path):
    (tmp_path / "file.part").write_bytes(DATA[:1234])
    assert fetch() == {"file": DATA}
    assert shelf.ranges == ["bytes=1234-"]


def test_an_interruption_leaves_the_part_that_has_arrived(fetch, shelf, tmp_path):
    def stop(done, total):
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(watch=stop)
    left = (tmp_path / "file.part").read_bytes()
    assert 0 < len(left) <= len(DATA)
    assert left == DATA[: len(left)]
    assert fetch() == {"file": DATA}


def test_a_server_without_ranges_starts_again(fetch, shelf, tmp_path):
    shelf.honours_range = False
    (tmp_path / "file.part").write_bytes(DATA[:1234])
    assert fetch() == {"file": DATA}
    assert shelf.ranges == ["bytes=1234-"]


def test_a_part_that_is_already_whole_is_placed(fetch, shelf, tmp_path):
    (tmp_path / "file.part").write_bytes(DATA)
    assert fetch() == {"file": DATA}
    assert shelf.ranges == [f"bytes={len(DATA)}-"]


def test_a_part_that_is_longer_than_the_file_is_thrown_away(fetch, shelf, tmp_path):
    (tmp_path / "file.part").write_bytes(DATA + b"more")
    assert fetch() == {"file": DATA}
    assert shelf.ranges == [f"bytes={len(DATA) + 4}-", None]


def test_a_part_of_another_file_is_thrown_away(fetch, shelf, tmp_path):
    (tmp_path / "file.part").write_bytes(b"?" * 1000)
    assert fetch() == {"file": DATA}
    assert shelf.ranges == ["bytes=1000-", None]


@pytest.mark.parametrize("left", [b"", b"?" * 10])
def test_another_file_is_refused_and_removed(fetch, shelf, tmp_path, left):
    shelf.files["file"] = DATA[:-1] + bytes([DATA[-1] ^ 1])
    if left:
        (tmp_path / "file.part").write_bytes(left)
    with pytest.raises(DataError, match="file is not the published file: its SHA-256 differs"):
        fetch()
    assert list(tmp_path.iterdir()) == []


def test_an_old_target_stays_when_the_new_one_is_refused(fetch, shelf, tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    shelf.files["file"] = b"other"
    with pytest.raises(DataError):
        fetch()
    assert (tmp_path / "file").read_bytes() == b"old"


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
        with pytest.raises(DataError, match="refused"):
            download(address, tmp_path / "file", print, print)


def test_a_transfer_that_never_ends_well_is_given_up(fetch, shelf, tmp_path):
    shelf.cuts = [1000] * 50
    with pytest.raises(DataError, match="it broke off after 5000 of 300000 bytes"):
        fetch()
    assert (tmp_path / "file.part").read_bytes() == DATA[:5000]


def test_a_file_without_end_is_cut_short(fetch, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "LARGEST", 100_000)
    with pytest.raises(DataError, match="it is larger than 100000 bytes"):
        fetch()
    assert (tmp_path / "file.part").read_bytes() == b""


def test_a_watch_sees_every_byte(fetch):
    seen = []
    fetch(watch=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, len(DATA))
    assert seen[-1] == (len(DATA), len(DATA))


def test_a_terminal_gets_a_bar(fetch, monkeypatch, capfd):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert fetch() == {"file": DATA}
    out, err = capfd.readouterr()
    assert out == ""
    assert "300.0" in err
