"""Runs in processes that are forked, and need not import everything anew; on Linux only.

Elsewhere a library that was imported before a fork may not work after it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from coterie.core.errors import CoterieError

CAN_FORK = sys.platform == "linux"


class RunProcess(Protocol):
    """A run in a process of its own: what sweeps need of `subprocess.Popen`."""

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...


def python_command(module: str) -> list[str]:
    """How a module of coterie is run: the working directory is the last on its path (-P)."""
    return [sys.executable, "-P", "-m", module]


class ForkServer:
    """The process that forks (cli/fork_server.py), as a sweep sees it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            python_command("coterie.cli.fork_server"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C reaches the sweep alone, which passes it on to runs
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._unread = b""  # the beginning of a line
        self._new: list[int] = []  # processes that were started and not asked for yet
        self._codes: dict[int, int | None] = {}  # exit codes by process; None while it runs

    def start(self, words: Sequence[str], log: Path) -> ForkedRun:
        """Start `coterie` with these words; what it says goes to the file `log`."""
        line = json.dumps({"words": list(words), "log": str(log)})
        with suppress(BrokenPipeError):  # then the server has ended, which is seen next
            self._requests.write(line.encode() + b"\n")
            self._requests.flush()
        while not self._new:
            self.listen(None)
        return ForkedRun(self, self._new.pop(0))

    def listen(self, seconds: float | None) -> None:
        """Hear who was started and who has ended, after so long or as soon as there is news."""
        if not select.select([self._replies], [], [], seconds)[0]:
            return
        found = os.read(self._replies.fileno(), 2**16)
        if not found:
            self._stop_orphans()
            raise CoterieError("the process that starts the runs of the sweep was killed")
        *lines, self._unread = (self._unread + found).split(b"\n")
        for news in map(json.loads, lines):
            if "started" in news:
                self._new.append(news["started"])
                self._codes[news["started"]] = None
            else:
                self._codes[news["ended"]] = news["code"]

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a process; None while it runs."""
        return self._codes[pid]

    def _stop_orphans(self) -> None:
        """Let runs leave a checkpoint if nobody is there to say when they end."""
        for pid in [pid for pid, code in self._codes.items() if code is None]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
            self._codes[pid] = 1

    def close(self) -> None:
        """End the server."""
        with suppress(BrokenPipeError):
            self._requests.close()
        self._process.wait()
        self._replies.close()


class ForkedRun:
    """A `RunProcess` of a server."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server, self.pid = server, pid

    def poll(self) -> int | None:
        if self.server.exit_code(self.pid) is None:
            self.server.listen(0)
        return self.server.exit_code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if timeout is not None and left is not None and left <= 0:
                raise subprocess.TimeoutExpired("coterie", timeout)
            self.server.listen(left)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)
