"""Wake-ups of the serving processes: one byte over a socket pair for each durable commit.

The ingest thread sends by itself, so that a busy event loop in the main process
delays no client. A full socket needs no byte: a wake-up is waiting in it.
"""

from __future__ import annotations

import asyncio
import socket
import threading


class WakeUps:
    """The main process's side: wakes every serving process."""

    def __init__(self) -> None:
        self._ends: tuple[socket.socket, ...] = ()
        self._lock = threading.Lock()

    def add(self, end: socket.socket) -> None:
        """Notify this end from now on, and once at once, for what came before."""
        end.setblocking(False)
        with self._lock:
            self._ends = (*self._ends, end)
        self._send(end)

    def remove(self, end: socket.socket) -> None:
        """Stop notifying this end, and close it."""
        with self._lock:
            self._ends = tuple(each for each in self._ends if each is not end)
            end.close()

    def notify(self) -> None:
        """Wake all serving processes: something is durable. From any thread; never waits."""
        for end in self._ends:
            self._send(end)

    @staticmethod
    def _send(end: socket.socket) -> None:
        try:
            end.send(b"\1", socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            # The process is gone, or its end was closed meanwhile: the supervisor sees it too.
            return


class SocketWakeups:
    """The serving process's side: the ``Wakeups`` of ``serving.ports``."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._end, self._readable)

    def current(self) -> asyncio.Future[None]:
        """The future that the next durable commit resolves."""
        return self._future

    def _readable(self) -> None:
        try:
            data = self._end.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # The main process is gone; the control connection ends this one.
            self._loop.remove_reader(self._end)
            return
        future, self._future = self._future, self._loop.create_future()
        if not future.done():
            future.set_result(None)
