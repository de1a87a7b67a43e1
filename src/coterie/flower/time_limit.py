"""A limit on how long something may take, in whichever thread it is done."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coterie.core.errors import CoterieError


class TookTooLong(CoterieError):
    """Something was ended because its time was up."""


class TimeIsUp(BaseException):
    """Ends what is done, whichever exceptions it handles itself."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End what is done inside with `TookTooLong` when it has taken so many seconds.

    It ends between two instructions of Python: a single product of matrices is not interrupted.
    """
    thread, lock = threading.get_ident(), threading.Lock()
    begun, over = threading.Event(), threading.Event()

    def stop() -> None:
        begun.wait()  # never while the timer itself is started, which cannot be ended half-way
        with lock:
            if not over.is_set():
                kind = ctypes.py_object(TimeIsUp)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), stop)
    timer.daemon = True
    try:
        try:
            timer.start()
            begun.set()
            yield
        finally:  # time may be up even here
            with lock:
                over.set()
            timer.cancel()
    except TimeIsUp:
        raise TookTooLong(f"it took more than {seconds:g} s") from None
