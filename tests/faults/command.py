"""One command, in this process or in a fork of it, and what is wrong with how it ended."""

import contextlib
import io
import os
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator

import psutil

from coterie.cli.main import main

LONGEST = 300  # characters of a sentence
PATIENCE = 30  # seconds; what takes longer hangs
MEMORY = 4 * 2**30  # bytes that a forked command may take: the machine is not ours alone
FAILED = 70  # exit code of a fork whose command ended with a traceback
IDLE = 0.02  # of the time, which is less than any work takes on a busy machine
LOOK = 0.005  # seconds between two looks at a fork


class Hang(BaseException):
    """A command that does not end."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """End what is done inside with `Hang` after so many seconds; it may wait for anything."""

    def stop(*_: object) -> None:
        raise Hang(f"no end after {seconds} s")

    before = signal.signal(signal.SIGUSR1, stop)
    here = threading.main_thread().ident
    assert here is not None
    timer = threading.Timer(seconds, lambda: signal.pthread_kill(here, signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR1, before)


class Ended:
    """How a command ended: its exit code, what it wrote, and what is wrong with that."""

    forked = False  # whether every command has a process of its own, as `make faults` has it

    def __init__(self, words: list[str], seconds: float = PATIENCE) -> None:
        self.code: int | None = None
        self.fault, self.out, self.err = "", "", ""
        (self._in_fork if self.forked else self._here)(words, seconds)
        self.fault = self.fault or judge(self.code, self.err)

    def _here(self, words: list[str], seconds: float) -> None:
        out, err = io.StringIO(), io.StringIO()
        shown = warnings.showwarning
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                with at_most(seconds), warnings.catch_warnings():
                    warnings.simplefilter("default")  # as in a process of its own, whoever tests
                    self.code = main(words)
            except SystemExit as error:
                self.code = error.code if isinstance(error.code, int) else 1
            except Hang as error:
                self.fault = f"HANG {error}"
            except BaseException:
                self.fault = "TRACEBACK " + traceback.format_exc()
            finally:
                warnings.showwarning = shown
        self.out, self.err = out.getvalue(), err.getvalue()

    def _in_fork(self, words: list[str], seconds: float) -> None:
        child = Fork(words)
        used = 0.0
        # On a machine with other work a command may get little of it in that time: it hangs if it
        # used all of the time, or next to nothing.
        while not child.wait(seconds):
            before, used = used, child.used()
            if used >= seconds or used - before < IDLE * seconds:
                self.fault = f"HANG no end after {seconds} s ({used:.1f} s of a core), killed"
                break
        self.code, self.out, self.err = child.end()


def judge(code: int | None, err: str) -> str:
    """What is wrong with an exit code and what was said to it."""
    if code is not None and code < 0:
        return f"KILLED by signal {-code}: {err[-1000:]!r}"
    if code == FAILED or "Traceback (most recent call last)" in err:
        return f"TRACEBACK {err}"
    if not code:
        return ""
    told = [line for line in err.splitlines() if line.startswith("coterie: ")]
    told = [line for line in told if not line.startswith("coterie: warning: ")]
    if len(told) != 1:
        return f"NOT ONE SENTENCE {err!r}"
    if len(told[0]) > LONGEST + len("coterie: "):
        return f"TOO LONG ({len(told[0])}) {told[0][:400]!r}"
    return "" if told[0].isprintable() else f"NOT PRINTABLE {told[0]!r}"


class Fork:
    """A command in a fork of this process, which has imported everything already.

    `prepare` is called in the fork before the command. What the command starts is of its process
    group, and ends with it.
    """

    def __init__(self, words: list[str], prepare: Callable[[], object] | None = None) -> None:
        # Pipes, for what the disk cannot take is told as well.
        self._pipes = [os.pipe() for _ in range(2)]
        self._read: list[list[bytes]] = [[], []]
        self.code: int | None = None  # while it runs
        self.seconds = 0.0  # that it took
        self._began = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(words, prepare)
        for reads, writes in self._pipes:
            os.close(writes)
            os.set_blocking(reads, False)

    def _become(self, words: list[str], prepare: Callable[[], object] | None) -> None:
        code = FAILED
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            nothing = os.open(os.devnull, os.O_RDONLY)
            out, err = (writes for _, writes in self._pipes)
            for source, target in ((nothing, 0), (out, 1), (err, 2)):
                os.dup2(source, target)
            # Whoever tests may have put others in their place.
            sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))  # noqa: SIM115
            warnings.resetwarnings()
            if prepare is not None:
                prepare()
            code = main(words)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; whether the command has ended."""
        last = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._take()
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                self.seconds = time.monotonic() - self._began
            elif time.monotonic() > last:
                return False
            else:
                time.sleep(LOOK)
        return True

    def used(self) -> float:
        """The seconds of a core that the command has used so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def kill(self) -> None:
        """Kill the command and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(PATIENCE)

    def end(self) -> tuple[int | None, str, str]:
        """The exit code, and what was written; what is left of it is killed."""
        self.kill()
        self._take()
        for reads, _ in self._pipes:
            os.close(reads)
        out, err = (b"".join(parts).decode("utf-8", "replace") for parts in self._read)
        return self.code, out, err

    def _take(self) -> None:
        """Read what was written so far."""
        for (reads, _), parts in zip(self._pipes, self._read, strict=True):
            with contextlib.suppress(BlockingIOError):
                while found := os.read(reads, 2**16):
                    parts.append(found)
