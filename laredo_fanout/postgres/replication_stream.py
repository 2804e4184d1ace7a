"""The replication connection: reads the slot's stream, and confirms positions.

https://www.postgresql.org/docs/current/protocol-replication.html, over psycopg's
pq layer. Messages are taken out of libpq's buffer one by one, but the socket is
read in big reads: the walsender is faster if its reader isn't woken for each
message.
"""

from __future__ import annotations

import fcntl
import math
import re
import select
import socket
import termios
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import structlog
from psycopg.pq import ExecStatus

from laredo_fanout.postgres import connections
from laredo_fanout.postgres.connections import (
    DecodingFailed,
    SlotInUse,
    SlotLost,
    SourceUnavailable,
)
from laredo_model import position as position_

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

    from laredo_fanout.postgres.connections import ConnectionOptions

# Big reads of a connection's socket into libpq's buffer, within a bound.
#
# libpq doesn't return the size of a read, and the bytes in the socket before it show little of it:
# PQconsumeInput reads until the socket is empty or the buffer is full, and a server that sends
# meanwhile keeps it reading (pqReadData in libpq's fe-misc.c). The buffer doubles when it is full,
# and never shrinks. So the bytes that may have arrived during the read count too.

_BYTES_A_NS = 1
"""Largest number of bytes that a nanosecond of this thread's CPU can read. The thread reads nothing
while it isn't scheduled, however much is sent."""


_SMALL_BUFFER = 256 << 10


class SocketReader:
    """Reads one connection's socket: at most about ``bound`` bytes before they are used up, or one
    message if that is larger.

    If nothing was read for ``patience_s``, :meth:`read_ahead` reads once more: PostgreSQL ends a
    connection whose reader stands still (tcp_user_timeout). From then on the socket's buffer is
    small, so that this stays below a megabyte after the first time.
    """

    def __init__(self, pgconn: PGconn, bound: int, patience_s: float = math.inf) -> None:
        self._pgconn = pgconn
        self._socket = pgconn.socket
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._pending = array("i", [0])
        self._bound = bound
        self._patience_s = patience_s
        self._taken = 0
        self._read_at = time.monotonic()

    def read(self) -> int:
        """Read what has arrived; call it when all earlier messages are used up.

        Returns about the number of bytes that were in the socket; 0 only if nothing was.

        :raises psycopg.OperationalError: if the connection was cut.
        """
        self._taken = 0
        return self.read_ahead()

    def read_ahead(self) -> int:
        """Read more from the socket while earlier messages are still in the buffer."""
        read = 0
        pending = self._in_socket()
        while self._may_read and (pending or (not read and self._poll.poll(0))):
            began = time.thread_time_ns()
            if self._taken >= self._bound:
                self._make_buffer_small()
            self._pgconn.consume_input()
            self._read_at = time.monotonic()
            self._taken += pending + _BYTES_A_NS * (time.thread_time_ns() - began)
            read += max(1, pending)
            pending = self._in_socket()
        return read

    def _make_buffer_small(self) -> None:
        with socket.fromfd(self._socket, socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)

    @property
    def _may_read(self) -> bool:
        return self._taken < self._bound or time.monotonic() - self._read_at > self._patience_s

    def _in_socket(self) -> int:
        fcntl.ioctl(self._socket, termios.FIONREAD, self._pending)
        return self._pending[0]


_log = structlog.get_logger()

_READ_BYTES = 8 << 20
"""Bytes to read before they are used: libpq's buffer never shrinks."""

FLUSH_S = 5.0
"""Seconds for which the server may read nothing."""

_STATUS = Struct(">cQQQqB").pack
_EPOCH_S = 946_684_800
_SWITCH = re.compile(rb"^(\d+)\s+([0-9A-F]+/[0-9A-F]+)", re.MULTILINE)


def flush(pgconn: PGconn) -> bool:
    """Send libpq's output buffer; False if the server has read nothing for FLUSH_S.

    :raises psycopg.OperationalError: if the connection was cut.
    """
    deadline = time.monotonic() + FLUSH_S
    poll: select.poll | None = None
    while pgconn.flush():
        if time.monotonic() > deadline:
            return False
        if poll is None:
            poll = select.poll()
            poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
        poll.poll(1000)
        pgconn.consume_input()
    return True


class SystemIdentity(NamedTuple):
    """The answer to IDENTIFY_SYSTEM."""

    system_identifier: int
    timeline: int
    #: End of the server's WAL.
    position: int


class Switch(NamedTuple):
    """The end of a timeline, at a switch to the next."""

    #: The timeline that ended.
    timeline: int
    #: The switch point.
    position: int


class ReplicationStream:
    """A replication connection. Every method may raise SourceUnavailable."""

    def __init__(self, connection: connections.Connection, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self.pgconn = connection.pgconn
        self.pgconn.nonblocking = 1
        self.get = self.pgconn.get_copy_data
        self._socket = self.pgconn.socket
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._confirmed = 0
        self._reader = SocketReader(self.pgconn, _READ_BYTES, timeout / 2)
        self.local = self.pgconn.host.startswith(b"/")
        """True for a unix socket: its buffer is small, so a reader that naps slows it down."""
        self.ended = False

    @classmethod
    def open(cls, options: ConnectionOptions) -> ReplicationStream:
        """Connect; nothing is streamed before :meth:`start`."""
        connection = connections.connect(options, role="stream", replication=True)
        return cls(connection, options.receive_timeout)

    def fileno(self) -> int:
        """The socket's descriptor, to wait for."""
        return self._socket

    def identify(self) -> SystemIdentity:
        """Run IDENTIFY_SYSTEM."""
        row = self._row(b"IDENTIFY_SYSTEM")
        return SystemIdentity(int(row[0]), int(row[1]), position_.parse(row[2].decode()))

    def switches(self, timeline: int) -> tuple[Switch, ...]:
        """The ends of the timelines before ``timeline``, oldest first (TIMELINE_HISTORY)."""
        if timeline == 1:
            return ()
        history = self._row(b"TIMELINE_HISTORY %d" % timeline)[1]
        return tuple(
            Switch(int(parent), position_.parse(left.decode()))
            for parent, left in _SWITCH.findall(history)
        )

    def start(
        self,
        slot: str,
        publication: str,
        position: int,
        *,
        appends: str | None = None,
        in_parts: bool = False,
    ) -> None:
        """Run START_REPLICATION at ``position``, of whole transactions (protocol version 1).

        With ``in_parts`` (version 2) transactions that outgrow the server's
        logical_decoding_work_mem are sent before their commit.

        :raises SlotInUse: if another process streams from the slot.
        :raises SlotLost: if it doesn't exist or was invalidated.
        """
        names = ", ".join(
            '"' + name.replace('"', '""').replace("'", "''") + '"'
            for name in (publication, appends)
            if name is not None
        )
        protocol = "proto_version '2', streaming 'on'" if in_parts else "proto_version '1'"
        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {position_.text(position)}'
            f" ({protocol}, publication_names '{names}', messages 'true')"
        )
        result = self._execute(command.encode())
        if result.status == ExecStatus.COPY_BOTH:
            self._confirmed = position
            return
        text = " ".join(self.pgconn.get_error_message().split())
        state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
        if state == b"55006":  # object_in_use
            raise SlotInUse(
                f"slot {slot} is in use: {text}; stop the other server, or give this one its"
                " own slot_name"
            )
        if state in (b"42704", b"55000"):  # undefined_object; invalidated
            raise SlotLost(f"slot {slot} can't be streamed from: {text}")
        raise SourceUnavailable(f"the stream of slot {slot} can't be started: {text}")

    def read_available(self) -> int:
        """Read the socket into libpq's buffer; returns about the number of bytes in it."""
        return self._take(self._reader.read)

    def read_ahead(self) -> int:
        """Read more while messages of the last read are still in the buffer, within one bound."""
        return self._take(self._reader.read_ahead)

    def _take(self, read: Callable[[], int]) -> int:
        try:
            return read()
        except psycopg.OperationalError as cut:
            raise connections.refusal(cut, "stream") from cut

    def end(self) -> SourceUnavailable | DecodingFailed:
        """The error of a stream that ended (get_copy_data returned -1)."""
        self.ended = True
        try:
            result = self._next_result("the end of the stream", time.monotonic() + self._timeout)
        except SourceUnavailable as silent:
            return silent
        except psycopg.OperationalError as cut:
            return end_of_stream("", " ".join(str(cut).split()))
        state = result and result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
        text = " ".join(self.pgconn.get_error_message().split())
        return end_of_stream((state or b"").decode(), text)

    def confirm(self, position: int, *, reply: bool = False) -> None:
        """Confirm to the slot that everything up to ``position`` is durable here.

        A commit of the store with this position must have returned. ``reply`` asks the
        server for a keepalive.
        """
        self._confirmed = max(self._confirmed, position)
        now_us = int((time.time() - _EPOCH_S) * 1_000_000)
        durable = self._confirmed
        message = _STATUS(b"r", durable, durable, durable, now_us, reply)
        try:
            while self.pgconn.put_copy_data(message) == 0:
                self._flush()
            self._flush()
        except psycopg.OperationalError as cut:
            raise connections.refusal(cut, "confirm") from cut

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _flush(self) -> None:
        if not flush(self.pgconn):
            raise SourceUnavailable(
                f"PostgreSQL read nothing from the replication connection for {FLUSH_S:.0f} s"
            )

    def _execute(self, command: bytes) -> psycopg.pq.abc.PGresult:
        """Run a command of the replication protocol, within ``receive_timeout``."""
        deadline = time.monotonic() + self._timeout
        try:
            self.pgconn.send_query(command)
            self._flush()
            result = self._next_result(command.decode(), deadline)
            if result is None:
                raise SourceUnavailable(f"PostgreSQL didn't answer {command.decode()}")
            if result.status != ExecStatus.COPY_BOTH:
                while self._next_result(command.decode(), deadline) is not None:
                    continue
        except psycopg.OperationalError as cut:
            raise connections.refusal(cut, command.decode()) from cut
        return result

    def _next_result(self, of: str, deadline: float) -> psycopg.pq.abc.PGresult | None:
        """The next result of ``of``; None after the last one.

        :raises SourceUnavailable: if it doesn't come by the ``deadline``.
        """
        while self.pgconn.is_busy():
            if time.monotonic() > deadline:
                raise SourceUnavailable(
                    f"PostgreSQL didn't finish its answer to {of} within {self._timeout:.0f} s"
                )
            self._poll.poll(1000)
            self.pgconn.consume_input()
        return self.pgconn.get_result()

    def _row(self, command: bytes) -> list[bytes]:
        result = self._execute(command)
        if result.status != ExecStatus.TUPLES_OK or not result.ntuples:
            text = " ".join(self.pgconn.get_error_message().split())
            raise SourceUnavailable(f"{command.decode()} failed: {text}")
        return [result.get_value(0, column) or b"" for column in range(result.nfields)]


def end_of_stream(sqlstate: str, text: str) -> SourceUnavailable | DecodingFailed:
    """The error of a stream that the server ended with this SQLSTATE, or with none.

    PostgreSQL reports errors of decoding under many SQLSTATEs (XX000 for most, XX001, 22012 for a
    row filter, 42704, 53200), so every class but those of connections and administrators counts.
    """
    if sqlstate and not sqlstate.startswith(connections.CONNECTION_ENDED):
        return DecodingFailed(sqlstate, text)
    return SourceUnavailable(f"the server ended the stream: {text or 'it shuts down'}")


# A thread that empties the stream's socket while the ingest's thread waits for the disk.

_PAUSE_S = 0.001
"""Pause between reads: a unix socket is full after about as long, and then the walsender sleeps."""


class BackgroundReading:
    """A thread that calls ``read_available`` repeatedly, but only within :meth:`meanwhile`.

    The caller must not use the stream there: only one thread at a time may use a connection.
    """

    def __init__(self, read_available: Callable[[], None]) -> None:
        self._read_available = read_available
        self._thread = ThreadPoolExecutor(1, "laredo-reading")

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Let the thread read during the block; its error is raised at the block's end."""
        done = threading.Event()
        working = self._thread.submit(self._until, done)
        try:
            yield
        finally:
            done.set()
            # Also after an error: the connection may be closed only when no thread uses it.
            failed = working.exception()
        if failed is not None:
            raise failed

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _until(self, done: threading.Event) -> None:
        while not done.wait(_PAUSE_S):
            self._read_available()
