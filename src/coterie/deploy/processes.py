"""Processes that end together: whatever happens to us, nothing that we started lives on.

    with Processes(logs) as processes:
        link = processes.start("superlink", ["flower-superlink", ...])
        link.wait_for_port(port, seconds=60)
        ...
    # here none of them lives, nor anything that they have started

Flower's processes start others, some of them in sessions of their own, and a killed one leaves its
children behind. So every process carries a mark in its environment, which its children inherit,
and `stop` ends whatever carries the mark: first politely (SIGTERM), then not (SIGKILL).

Where the system has no /proc (macOS), only the processes that we started and their groups are
ended; Flower's own then end by themselves, because they watch their parents.

If we are killed ourselves (SIGKILL), Linux sends SIGKILL to the processes that we started, and
Flower's children end when they miss their parents. This holds for processes that were started by
the main thread, or by a thread that lives as long as they shall.
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
from types import FrameType, TracebackType
from typing import Self
from uuid import uuid4

from coterie.core.errors import CoterieError

MARK = "COTERIE_DEPLOYMENT"  # environment variable: the marks of all that it belongs to
PATIENCE_SECONDS = 8.0  # from SIGTERM to SIGKILL
POLL_SECONDS = 0.05
TAIL_LINES = 12  # of a log in an error sentence
# Flower's own settings, unless the user has set them: no telemetry, no look for updates, and a
# short wait before a task that has arrived is begun (1 s is Flower's default).
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
# A process asks to be killed with its parent, makes sure that the parent has not died before it
# asked, and becomes the command. It is a program of its own, since code between fork and exec is
# not safe in a process with threads.
WRAPPER = """
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
    """A process that we started, and where it writes what it says."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None  # None: where we write ourselves

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        code = self.process.poll()
        return code is not None and code < 0

    @property
    def last_words(self) -> str:
        """The last lines of its log."""
        if self.log is None:
            return "(see above)"
        try:
            text = self.log.read_bytes()[-20_000:].decode(errors="replace")
        except OSError:
            return "(no log)"
        lines = [line for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-TAIL_LINES:]) or "(it wrote nothing)"

    def obituary(self) -> CoterieError:
        """The error that says that and how it ended."""
        return CoterieError(f"{self.name} {self.ending}; its last lines:\n{self.last_words}")

    @property
    def ending(self) -> str:
        """How it ended, as in "ended with code 1"."""
        code = self.process.poll()
        if code is None:
            return "runs"
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def ends(self, seconds: float) -> bool:
        """Whether it has ended, or does so within `seconds`."""
        try:
            self.process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def wait_for(self, ready: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait until `ready()`; an error if the process ends before, or after `seconds`."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.alive:
                raise self.obituary()
            if time.monotonic() > deadline:
                raise CoterieError(
                    f"{self.name} did not {what} within {seconds:g} s; its last lines:\n"
                    f"{self.last_words}"
                )
            time.sleep(POLL_SECONDS)

    def wait_for_port(self, port: int, host: str = "127.0.0.1", seconds: float = 60.0) -> None:
        """Wait until it answers on a port."""
        self.wait_for(lambda: answers(host, port), f"answer on port {port}", seconds)

    def wait_for_file(self, path: Path, seconds: float = 60.0) -> None:
        """Wait until it has made a file, such as a socket."""
        self.wait_for(path.exists, f"make {path}", seconds)


class Processes:
    """Processes that are all ended when the `with` block is left, by whatever way.

    logs         folder for one file per process, `NAME.log`, made if it is not there; None: all
                 write to our standard error
    environment  added to ours for every process
    patience     seconds from SIGTERM to SIGKILL

    Inside the block SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does.
    """

    def __init__(
        self,
        logs: Path | None,
        environment: Mapping[str, str] | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.logs = logs
        self.patience = patience
        self.mark = uuid4().hex
        marks = [*os.environ.get(MARK, "").split(), self.mark]
        scripts = sysconfig.get_path("scripts")
        self.environment = {
            **QUIET,
            **os.environ,
            # Flower's processes start `flower-superexec` and others by name.
            "PATH": os.pathsep.join(filter(None, [scripts, os.environ.get("PATH", "")])),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
            MARK: " ".join(marks),
        }
        self.children: list[Child] = []
        self.handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` means what it says
                    self.handlers[number] = signal.signal(number, interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            for number, handler in self.handlers.items():
                signal.signal(number, handler)
            self.handlers.clear()

    def start(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a process; what it says is added to `NAME.log`."""
        log = None if self.logs is None else self.logs / f"{name}.log"
        words = [str(word) for word in command]
        if sys.platform == "linux":
            words = [sys.executable, "-I", "-S", "-c", WRAPPER, str(os.getpid()), *words]
        with contextlib.ExitStack() as stack:
            output = 2  # our standard error
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                output = stack.enter_context(open(log, "ab")).fileno()
            try:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**self.environment, **(environment or {})},
                    start_new_session=True,
                )
            except OSError as error:
                raise CoterieError(f"cannot start {words[0]}: {error.strerror}") from error
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def stop(self) -> None:
        """End all processes and everything that they have started. Can be called again."""
        with undisturbed():
            polite, last = time.monotonic() + self.patience, time.monotonic() + 3 * self.patience
            told: set[int] = set()
            while alive := self.alive():
                now = time.monotonic()
                for pid in alive:
                    if now > polite:
                        send(pid, signal.SIGKILL)
                    elif pid not in told:  # also one that was started just before its parent ended
                        send(pid, signal.SIGTERM)
                        told.add(pid)
                if now > last:
                    raise CoterieError(f"processes {sorted(alive)} could not be ended")
                time.sleep(POLL_SECONDS)

    def end(self, child: Child) -> None:
        """End one process, politely at first. What it started is left to itself, or to `stop`."""
        with undisturbed():
            send(child.process.pid, signal.SIGTERM)
            try:
                child.process.wait(self.patience)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def alive(self) -> set[int]:
        """Ids of all living processes that belong to this deployment."""
        ours = {child.process.pid for child in self.children if child.alive}
        return ours | set(marked(self.mark))


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Neither Ctrl-C nor SIGTERM interrupts what is done here; it is short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def marked(mark: str) -> Iterator[int]:
    """Ids of the living processes of this user whose environment has the mark."""
    wanted, found = mark.encode(), f"{MARK}=".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()  # empty for one that has ended
        except OSError:
            continue
        for item in environment.split(b"\0"):
            if item.startswith(found) and wanted in item.removeprefix(found).split():
                yield pid


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def answers(host: str, port: int) -> bool:
    """Whether somebody listens on a port."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports of this machine that nobody uses at the moment, all different."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(family)) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]
