"""A TCP relay that cuts, resets, delays and loses, in front of a server that one node talks to.

It stands for a network where the machine cannot make a bad one (`tc` without `netem`). TCP hides
lost packets: what the two ends see of them is that bytes come later, after a retransmission. So
`loss` holds back the bytes of a read for as long as TCP waits before it sends again, and doubles
that for each time in a row that they are lost. `measure` shows by an echo what a relay does.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time

RETRANSMIT = 0.2  # seconds after which Linux sends a lost segment again
MOST = 65536


class Relay:
    """Passes on to `target` what comes to its port; `mode` says how.

    pass   as it comes          cut    nothing, and no word of it: a cable that is pulled
    reset  every connection is reset, as by a firewall that was started again
    delay  each read `amount` seconds later
    loss   each read is lost with probability `amount`
    """

    def __init__(self, target: tuple[str, int], seed: int) -> None:
        self.target, self.draw = target, random.Random(seed)
        self.mode, self.amount = "pass", 0.0
        self.counts = {"reads": 0, "held": 0, "seconds": 0.0, "reset": 0}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.closed = False
        self.open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, mode: str, amount: float = 0.0) -> None:
        """What happens from now on, to open connections too."""
        self.mode, self.amount = mode, amount
        if mode == "reset":
            for each in list(self.open):
                self._reset(each)

    def close(self) -> None:
        """End all connections."""
        self.closed = True
        for each in (self.listener, *self.open):
            end(each)

    def _reset(self, connection: socket.socket) -> None:
        self.counts["reset"] += 1
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # so that closing sends RST
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        end(connection)

    def _accept(self) -> None:
        while not self.closed:
            try:
                ours, _ = self.listener.accept()
            except OSError:
                return
            if self.mode == "reset":
                self._reset(ours)
                continue
            threading.Thread(target=self._join, args=[ours], daemon=True).start()

    def _join(self, ours: socket.socket) -> None:
        while self.mode == "cut" and not self.closed:
            time.sleep(0.05)
        if self.closed:
            end(ours)
            return
        try:
            theirs = socket.create_connection(self.target, timeout=10)
            theirs.settimeout(None)
        except OSError:
            end(ours)
            return
        self.open |= {ours, theirs}
        for source, sink in ((ours, theirs), (theirs, ours)):
            threading.Thread(target=self._pass_on, args=[source, sink], daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(MOST):
                self._hold()
                sink.sendall(data)
        for each in (source, sink):
            self.open.discard(each)
            end(each)

    def _hold(self) -> None:
        """Wait as the mode says before what was read is passed on."""
        self.counts["reads"] += 1
        began, pause = time.monotonic(), RETRANSMIT
        if self.mode == "delay":
            time.sleep(self.amount)
        while self.mode == "loss" and self.draw.random() < self.amount:
            time.sleep(pause)
            pause *= 2
        while self.mode == "cut" and not self.closed:
            time.sleep(0.05)
        held = time.monotonic() - began
        if held > 0.05:
            self.counts["held"] += 1
            self.counts["seconds"] += held


def end(connection: socket.socket) -> None:
    """Close a socket, also for a thread that waits for it and where the other side has gone."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def measure(
    mode: str, amount: float, echoes: int = 50, seed: int = 0, most: float = 5.0
) -> list[float]:
    """Seconds of echoes through a relay; infinite where none came back in so many."""
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=answer, args=[server], daemon=True).start()
    relay, found = Relay(server.getsockname(), seed), []
    client = socket.create_connection(("127.0.0.1", relay.port), timeout=most)
    try:
        client.sendall(b"x")
        client.recv(1)
        relay.set(mode, amount)
        for _ in range(echoes):
            began = time.monotonic()
            try:
                client.sendall(b"x")
                back = client.recv(1) == b"x"
            except OSError:
                back = False
            found.append(time.monotonic() - began if back else float("inf"))
            if not back:
                break
    finally:
        client.close()
        relay.close()
        server.close()
    return found


def answer(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(MOST):
                connection.sendall(data)
