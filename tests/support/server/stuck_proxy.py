"""A proxy that can stop forwarding without closing anything, as a host that is gone does, or cut
every connection."""

import socket
import threading
from contextlib import suppress
from pathlib import Path


class Proxy:
    """Between ingest and server; it can stop forwarding without closing anything.

    Both ends are sockets of PostgreSQL, or (``port``) of the loopback interface.

    With ``stuck`` nothing more passes in connections that there are by then, not even
    their end; the next one that is opened is well again. With ``stuck_after`` that of
    one connection alone, once its client has sent these bytes.
    """

    def __init__(self, upstream: str | int, path: Path | None = None, port: int = 0) -> None:
        self.directory = path
        self._upstream = upstream if isinstance(upstream, str) else ("127.0.0.1", upstream)
        self._family = socket.AF_UNIX if path is not None else socket.AF_INET
        self.stuck = threading.Event()
        self.stuck_after: bytes | None = None
        self._silenced: set[int] = set()
        self._opened = self._dead = 0
        self._sockets: list[socket.socket] = []
        self._listener = socket.socket(self._family)
        self._listener.bind(("127.0.0.1", port) if path is None else str(path / ".s.PGSQL.5432"))
        self._listener.listen(20)
        self.port = port if path is not None else int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.stuck.is_set():
                    self._dead = self._opened
                    self.stuck.clear()
                self._opened += 1
                server = socket.socket(self._family)
                try:
                    server.connect(self._upstream)
                except OSError:
                    # Nobody is there just now, and the client is to know it.
                    client.close()
                    server.close()
                    continue
                self._sockets += (client, server)
                for source, target in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._forward, args=(self._opened, source, target), daemon=True
                    ).start()

    def _forward(self, number: int, source: socket.socket, target: socket.socket) -> None:
        try:
            while True:
                data = source.recv(65536)
                if self._is_stuck(number):
                    return
                if not data:
                    break
                wanted = self.stuck_after
                if wanted is not None and wanted in data:
                    self.stuck_after = None
                    self._silenced.add(number)
                target.sendall(self.passed(data))
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One end was reset, as a process that is killed does it: the other is to know.
            if not self._is_stuck(number):
                for each in (source, target):
                    with suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)

    def passed(self, data: bytes) -> bytes:
        """The bytes as they are passed on."""
        return data

    def _is_stuck(self, number: int) -> bool:
        return self.stuck.is_set() or number <= self._dead or number in self._silenced

    def lead_to(self, upstream: str | int) -> None:
        """Connections that are opened from now on go there."""
        self._upstream = upstream if isinstance(upstream, str) else ("127.0.0.1", upstream)

    def sever(self) -> None:
        """End every connection, and those that are opened until it is led somewhere."""
        self.lead_to(1 if self._family == socket.AF_INET else "/nowhere")
        self.cut()

    def cut(self) -> None:
        """End every connection that there is."""
        ended, self._sockets = self._sockets, []
        self._close(*ended)

    def close(self) -> None:
        self._close(self._listener)
        self._accepting.join()  # what it has just accepted is among the sockets then
        self._close(*self._sockets)

    def _close(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
