"""The reader of a connection's socket into libpq's buffer: in big reads, within a bound.

libpq doesn't return how much a read took, and the socket's earlier content shows little of it:
PQconsumeInput goes on until the socket is empty or the buffer is full, and a server that sends
meanwhile keeps it reading (pqReadData in libpq's fe-misc.c). The buffer doubles when it is full,
and never gets smaller. So what may have come meanwhile counts.
"""

from __future__ import annotations

import fcntl
import select
import termios
import time
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

_BYTES_A_NS = 1
"""No server sends faster: as much as memory is copied, it had to be decoded too."""


class SocketReader:
    """Reads one connection's socket. At most about ``bound`` bytes are read before they are used
    up, or one message if that is larger."""

    def __init__(self, pgconn: PGconn, bound: int) -> None:
        self._pgconn = pgconn
        self._socket = pgconn.socket
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._pending = array("i", [0])
        self._bound = bound
        self._taken = 0

    def read(self) -> int:
        """Take what has come, when all messages that came before are used up.

        Returns how many bytes there were when it began, about; 0 only without any message.

        :raises psycopg.OperationalError: if the connection was cut.
        """
        self._taken = 0
        return self.read_ahead()

    def read_ahead(self) -> int:
        """Read more from the socket while earlier messages are still in the buffer."""
        read = 0
        pending = self._in_socket()
        while self._taken < self._bound and (pending or (not read and self._poll.poll(0))):
            began = time.perf_counter_ns()
            self._pgconn.consume_input()
            self._taken += pending + _BYTES_A_NS * (time.perf_counter_ns() - began)
            read += max(1, pending)
            pending = self._in_socket()
        return read

    def _in_socket(self) -> int:
        fcntl.ioctl(self._socket, termios.FIONREAD, self._pending)
        return self._pending[0]
