"""A proxy that can stop forwarding without closing anything, as a host that is gone does."""

import socket
import threading
from contextlib import suppress
from pathlib import Path


class Proxy:
    """Between ingest and server; it can stop forwarding without closing anything.

    With ``stuck`` nothing more passes in connections that there are by then, not even
    their end; the next one that is opened is well again.
    """

    def __init__(self, upstream: str, path: Path) -> None:
        self.directory = path
        self._upstream = upstream
        self.stuck = threading.Event()
        self._opened = self._dead = 0
        self._sockets: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path / ".s.PGSQL.5432"))
        self._listener.listen(20)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.stuck.is_set():
                    self._dead = self._opened
                    self.stuck.clear()
                self._opened += 1
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                self._sockets += (client, server)
                for source, target in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._forward, args=(self._opened, source, target), daemon=True
                    ).start()

    def _forward(self, number: int, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while True:
                data = source.recv(65536)
                if self.stuck.is_set() or number <= self._dead:
                    return
                if not data:
                    break
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
