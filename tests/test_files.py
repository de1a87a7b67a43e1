import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from coterie.files import (
    LOCK,
    FolderLock,
    append_line,
    changed_files,
    lock_owner,
    read_checked_lines,
    remove_checksums,
    write_checksums,
    write_lines,
)


def test_a_locked_folder_is_refused_until_it_is_released(tmp_path):
    lock = FolderLock(tmp_path)
    assert lock_owner(tmp_path) == str(os.getpid())
    with pytest.raises(BlockingIOError):
        FolderLock(tmp_path)
    lock.release()
    assert list(tmp_path.iterdir()) == []
    again = FolderLock(tmp_path)
    lock.release()  # a second time: it is another's now
    with pytest.raises(BlockingIOError):
        FolderLock(tmp_path)
    again.release()


HOLDER = """
import os, sys, time
from pathlib import Path
from coterie.files import FolderLock
lock = FolderLock(Path(sys.argv[1]))
{then}
print("locked", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("then", ["", "if not os.fork(): time.sleep(20), os._exit(0)"])
def test_a_lock_ends_with_its_owner_however_that_ends(tmp_path, then):
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(then=then), str(tmp_path)], stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout.readline() == b"locked\n"
        time.sleep(0.2)
        with pytest.raises(BlockingIOError):
            FolderLock(tmp_path)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert (tmp_path / LOCK).exists()
        FolderLock(tmp_path).release()  # also while a child of the owner lives on
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_checksums_of_a_folder_know_each_file_of_it(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    write_checksums(tmp_path, ("a", "b", "never there"))
    assert changed_files(tmp_path) == []
    (tmp_path / "a").write_text("c")
    (tmp_path / "b").unlink()
    assert changed_files(tmp_path) == ["a", "b"]
    assert changed_files(tmp_path, ["b"]) == ["b"]
    remove_checksums(tmp_path)
    assert changed_files(tmp_path) == []


def test_a_reader_never_finds_lines_damaged_that_are_being_written(tmp_path):
    path, done = tmp_path / "rounds.jsonl", threading.Event()

    def write():
        for _ in range(20):
            for number in range(30):
                append_line(path, f"line {number}")
            write_lines(path, ["line 0"])
        done.set()

    writer = threading.Thread(target=write)
    write_lines(path, [])
    writer.start()
    looks = 0
    while not done.is_set():
        assert read_checked_lines(path)[1] == []
        looks += 1
    writer.join()
    assert looks > 20
