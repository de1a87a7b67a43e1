"""Processes that end together: whatever happens to us, nothing that we started lives on.

    with Processes(logs) as processes:
        link = processes.start("superlink", ["flower-superlink", ...])
        link.wait_for_port(port)
        ...
    # here none of them lives, nor anything that they have started

Flower's processes start others, some of them in sessions of their own, and a killed one leaves its
children behind. So every process carries a mark in its environment, which its children inherit,
and `stop` ends whatever carries the mark: first with SIGTERM, then with SIGKILL. psutil finds the
processes; it cannot find the children of one that was killed by who their parent was.

One thing psutil has nothing for, and is done by hand: if we are killed ourselves (SIGKILL), Linux
kills the processes that we started, and Flower's children end when they miss their parents. This
holds for processes that were started by the main thread, or by a thread that lives as long as they.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from coterie.core.errors import CoterieError
from coterie.deploy.flwr_internals import ENVIRONMENT

HOST = "127.0.0.1"
MARK = "COTERIE_DEPLOYMENT"  # environment variable: the marks of all that a process belongs to
START_SECONDS = 120.0  # for a process to start; torch and data take a while on a busy machine
STOP_SECONDS = 8.0  # from SIGTERM to SIGKILL
POLL_SECONDS = 0.05
LOOK_SECONDS = 2.0  # the most that one look at a pulse may add to the silence
TAIL_LINES = 12  # of a log in an error sentence
# A program that asks Linux to be killed with its parent, makes sure that the parent has not died
# before, and becomes the command. It is a program of its own, since code between fork and exec is
# not safe in a process with threads.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that should watch over this one is gone")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot start {sys.argv[2]}: {error.strerror}")
"""


@dataclass
class Child:
    """A process that we started."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None  # where its output goes; None: to our standard error

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    @property
    def last_lines(self) -> str:
        """The last lines of its log."""
        if self.log is None:
            return "(see above)"
        try:
            text = self.log.read_bytes()[-20_000:].decode(errors="replace")
        except OSError:
            return "(no log)"
        lines = [line for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-TAIL_LINES:]) or "(it wrote nothing)"

    @property
    def ending(self) -> str:
        """How it ended, as in "ended with code 1"."""
        code = self.process.poll()
        if code is None:
            return "runs"
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def error(self, what: str = "") -> CoterieError:
        """The error that says what the process did (by default, how it ended), and its log."""
        text = f"{self.name} {what or self.ending}; its last lines:\n{self.last_lines}"
        return CoterieError(text)

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, or does so within `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return not self.alive

    def wait_for(
        self, ready: Callable[[], bool], what: str, seconds: float = START_SECONDS
    ) -> None:
        """Wait until `ready()`; an error if the process ends before, or after `seconds`."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.alive:
                raise self.error()
            if time.monotonic() > deadline:
                raise self.error(f"did not {what} within {seconds:g} s")
            time.sleep(POLL_SECONDS)

    def wait_for_port(self, port: int, host: str = HOST, seconds: float = START_SECONDS) -> None:
        """Wait until it answers on a port."""
        self.wait_for(lambda: is_listening(host, port), f"answer on port {port}", seconds)


class Pulse:
    """Whether a file is touched again and again, as a process that lives does it.

    Only the time between our own looks counts, so that neither a step of the clock nor a pause of
    the whole machine makes a process look dead.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen = self._touched()
        self.looked_at = time.monotonic()
        self.silence = 0.0  # seconds for which it was not touched

    def look(self) -> float:
        """For how many seconds it has not been touched; to be called often."""
        now, touched = time.monotonic(), self._touched()
        self.silence += min(now - self.looked_at, LOOK_SECONDS)
        if touched != self.seen:
            self.silence = 0.0
        self.seen, self.looked_at = touched, now
        return self.silence

    def _touched(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0


class Processes:
    """Processes that are all ended when the `with` block is left, in whatever way.

    logs          folder for one file per process, `NAME.log`, made if it does not exist; None: all
                  write to our standard error
    environment   added to ours for every process
    stop_seconds  from SIGTERM to SIGKILL

    Inside the block SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does.
    """

    def __init__(
        self,
        logs: Path | None,
        environment: Mapping[str, str] | None = None,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.logs = logs
        self.stop_seconds = stop_seconds
        self.mark = uuid4().hex
        marks = [*os.environ.get(MARK, "").split(), self.mark]
        scripts = sysconfig.get_path("scripts")
        self.environment = {
            **ENVIRONMENT,
            **os.environ,
            # Flower's processes start `flower-superexec` and others by name.
            "PATH": os.pathsep.join(filter(None, [scripts, os.environ.get("PATH", "")])),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
            MARK: " ".join(marks),
        }
        self.children: list[Child] = []
        self.exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        interrupt = signal.default_int_handler
        self.exits.enter_context(handle_signals(interrupt, signal.SIGTERM, signal.SIGHUP))
        self.exits.callback(self.stop)
        return self

    def __exit__(self, *error: object) -> None:
        self.exits.close()

    def start(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a process; its output is added to `NAME.log`."""
        log = None if self.logs is None else self.logs / f"{name}.log"
        argv = [str(part) for part in command]
        if sys.platform == "linux":
            argv = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *argv]
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        with open(2 if log is None else log, "ab", closefd=log is not None) as output:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**self.environment, **(environment or {})},
                    start_new_session=True,
                )
            except OSError as error:
                raise CoterieError(f"cannot start {argv[0]}: {error.strerror}") from error
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def stop(self) -> None:
        """End all processes and everything that they have started. Can be called again."""
        with ignore_signals():
            begin = time.monotonic()
            told: set[int] = set()
            while alive := self.alive():  # also one that was started just before its parent ended
                elapsed = time.monotonic() - begin
                kill = elapsed > self.stop_seconds
                for pid in alive if kill else alive - told:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
                        os.kill(pid, signal.SIGCONT)  # one that is stopped hears nothing
                told |= alive
                if elapsed > 3 * self.stop_seconds:
                    raise CoterieError(f"processes {sorted(alive)} could not be ended")
                time.sleep(POLL_SECONDS)

    def end(self, child: Child) -> None:
        """End one process, at first with SIGTERM. `stop` ends what it has started."""
        with ignore_signals():
            child.process.terminate()
            child.process.send_signal(signal.SIGCONT)  # one that is stopped hears nothing
            if not child.ends_within(self.stop_seconds):
                child.process.kill()
                child.process.wait()

    def alive(self) -> set[int]:
        """Ids of all living processes that belong to this deployment."""
        ours = {child.process.pid for child in self.children if child.alive}
        return ours | find_marked(self.mark)


@contextlib.contextmanager
def handle_signals(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Let signals be handled so inside; those that are ignored already, as under `nohup`, stay so.

    Only the main thread can set this; in others nothing is changed.
    """
    main = threading.current_thread() is threading.main_thread()
    changed = [n for n in numbers if main and signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in changed}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def ignore_signals() -> contextlib.AbstractContextManager[None]:
    """Neither Ctrl-C nor SIGTERM interrupts what is done inside; it must be short."""
    return handle_signals(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def find_marked(mark: str) -> set[int]:
    """Ids of the living processes of this user, without us, whose environment has the mark."""
    import psutil

    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # of another user, or just ended
            if mark in process.environ().get(MARK, "").split():
                found.add(process.pid)
    return found - {os.getpid()}


def is_listening(host: str, port: int) -> bool:
    """Whether a program answers on a port."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses at the moment, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
