"""One command in this process, and what a fault suite has to say against how it ended."""

import contextlib
import io
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator

from coterie.cli.main import main

LONGEST = 300  # characters of a sentence
PATIENCE = 30  # seconds; what takes longer hangs


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

    def __init__(self, words: list[str], seconds: float = PATIENCE) -> None:
        out, err = io.StringIO(), io.StringIO()
        self.code: int | None = None
        self.fault = ""
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
        if not self.fault and self.code:
            self.fault = self.wrong_sentence()

    def wrong_sentence(self) -> str:
        """What is wrong with the sentence about a mistake."""
        told = [line for line in self.err.splitlines() if line.startswith("coterie: ")]
        told = [line for line in told if not line.startswith("coterie: warning: ")]
        if len(told) != 1:
            return f"NOT ONE SENTENCE {self.err!r}"
        if len(told[0]) > LONGEST + len("coterie: "):
            return f"TOO LONG ({len(told[0])}) {told[0][:400]!r}"
        if not told[0].isprintable():
            return f"NOT PRINTABLE {told[0]!r}"
        return ""
