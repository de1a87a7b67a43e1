"""A process that has imported coterie and forks for every run that a sweep asks for.

To import PyTorch takes longer than many a run. A run still has a process of its own: the child that
the server forks leaves the server's loop, and is then as any `coterie run` is. The server itself
computes nothing, so that there are no threads that a fork could lose.

Requests are lines of JSON on standard input; on standard output are such lines too, on which
process was started and which one has ended. When its standard input ends, as it does when the sweep
is killed, the server stops the runs, which leave a checkpoint, and ends. The other side is in
`experiment/forked_runs.py`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any, NamedTuple

ALSO_IMPORTED = ("jinja2", "pandas", "pyarrow.compute", "pyarrow.csv")  # safe to fork
LOOK_SECONDS = 0.05  # after which the server looks again who has ended


class RunRequest(NamedTuple):
    """A run that the server is asked for."""

    words: list[str]  # of `coterie`
    log: str  # the file for what it says


def main() -> None:
    # What every run imports, at once or where it reads a table and draws its page.
    import coterie.cli.main
    import coterie.cli.progress_bar
    import coterie.experiment.run
    import coterie.experiment.trackers
    import coterie.registry

    for name in ALSO_IMPORTED:
        importlib.import_module(name)

    # Children that leave all this alone share its memory; to look for garbage would copy it.
    gc.collect()
    gc.freeze()
    request = serve_requests()
    leave_server(request.log)
    code = 1
    try:
        code = coterie.cli.main.main(request.words)
    except BaseException:
        traceback.print_exc()
    # Not sys.exit, which would take apart, and so copy, everything that was imported.
    sys.stderr.flush()
    os._exit(code)


def serve_requests() -> RunRequest:
    """Fork for every request. This returns in the children only, with what each is to do."""
    unread, running = b"", set[int]()
    while True:
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            running.remove(ended[0])
            reply({"ended": ended[0], "code": os.waitstatus_to_exitcode(ended[1])})
        if not select.select([0], [], [], LOOK_SECONDS if running else None)[0]:
            continue
        found = os.read(0, 2**16)
        if not found:
            for pid in running:
                os.kill(pid, signal.SIGINT)
            sys.exit(0)
        *lines, unread = (unread + found).split(b"\n")
        for line in lines:
            pid = os.fork()
            if pid == 0:
                return RunRequest(**json.loads(line))
            running.add(pid)
            reply({"started": pid})


def reply(news: dict[str, Any]) -> None:
    """Write a line to the sweep, if that is still there."""
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(news).encode() + b"\n")


def leave_server(log: str) -> None:
    """Let go of the server's pipes."""
    nothing = os.open(os.devnull, os.O_RDWR)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for source, target in ((nothing, 0), (nothing, 1), (written, 2)):
        os.dup2(source, target)


if __name__ == "__main__":
    main()
