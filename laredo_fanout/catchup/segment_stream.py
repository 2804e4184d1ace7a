"""Copies of the slot: the stream of each, and the anchor, from which they are copied.

https://www.postgresql.org/docs/current/functions-admin.html, pg_copy_logical_replication_slot.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
import structlog
from psycopg.pq import DiagnosticField, ExecStatus

from laredo_fanout.errors import SourceUnfit
from laredo_fanout.postgres import connections
from laredo_fanout.postgres.connections import SlotLost, SourceUnavailable
from laredo_fanout.postgres.replication_stream import ReplicationStream
from laredo_fanout.source_options import SourceOptions
from laredo_model import position

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection

# The anchor is the slot itself, which is advanced while copies of it decode the segments. It keeps
# the WAL that a restart needs, and its own stream resumes at the segments' end.

_log = structlog.get_logger()

_INTERVAL_S = 3.0
_SHARE = 10
"""Ratio of the pause between two advances to an advance's duration, which reads the WAL."""

_ADVANCE = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"
ADVANCE = "SELECT pg_replication_slot_advance('{slot}', '{position}')"
"""SQL that advances the slot, for a replication connection, which takes no parameters.

Run it twice. The first call moves confirmed_flush_lsn, but restart_lsn only to the first possible
position that PostgreSQL finds; the second call, from there, moves restart_lsn close to
``position``. Otherwise a stream would decode everything from restart_lsn on before it sends
anything."""


class Anchor:
    """The slot's advances; used by the side connection's thread."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._due_at = 0.0
        self._moved_to = 0
        self.tried = 0
        """Position of the last attempt; segments don't wait for a slot that can't be advanced."""

    def advance(self, connection: Connection, durable: int, *, at_once: bool) -> None:
        """Advance the slot to the durable position, ``at_once`` or when that is due.

        :raises psycopg.Error: if the connection was cut.
        """
        began = time.monotonic()
        if durable <= self._moved_to or not (at_once or began >= self._due_at):
            return
        try:
            for _ in range(2):
                connection.execute(_ADVANCE, (self._slot, position.text(durable)))
            self._moved_to = durable
        except psycopg.errors.DatabaseError as refused:
            if connection.broken:
                raise
            # A stream that was just ended may hold it for a moment.
            _log.info("slot not advanced", error=str(refused).strip())
        self.tried = durable
        ended = time.monotonic()
        self._due_at = ended + max(_INTERVAL_S, _SHARE * (ended - began))


_LIMITS = (
    "max_wal_senders",
    "connection slots are reserved",
    "too many clients",
    "too many connections for",  # a role's or a database's CONNECTION LIMIT
)
"""Texts of refusals: a refused connection has no SQLSTATE on the client's side."""
_WORTH_MOVING = 16 << 20
_FULL = b"53400"
_GONE = (b"42704", b"55000", b"0A000")


class SegmentStream(ReplicationStream):
    """A replication connection with a temporary copy of the slot."""

    @classmethod
    def connect(cls, options: SourceOptions, segment: int) -> SegmentStream:
        """Open the connection of this segment.

        :raises SourceUnfit: if there is no free walsender.
        :raises SourceUnavailable: if the server can't be reached.
        """
        try:
            connection = connections.connect(options, role=f"segment {segment}", replication=True)
        except SourceUnavailable as refused:
            if any(limit in str(refused) for limit in _LIMITS):
                raise SourceUnfit(f"no free walsender or connection: {refused}") from refused
            raise
        return cls(connection, options.receive_timeout)

    def copy_slot(self, slot: str, temporary: str, start: int) -> None:
        """Copy ``slot``; the copy streams everything from ``start`` on.

        The copy is advanced to ``start``, which reads the WAL in between without decoding rows.

        :raises SourceUnfit: if there is no free slot.
        :raises SlotLost: if the slot is gone, or after ``start``: the stream would begin there
            without an error.
        """
        result = self._execute(
            f"SELECT lsn FROM pg_copy_logical_replication_slot('{slot}', '{temporary}',"
            " true)".encode()
        )
        if result.status != ExecStatus.TUPLES_OK:
            text = " ".join(self.pgconn.get_error_message().split())
            state = result.error_field(DiagnosticField.SQLSTATE)
            if state == _FULL:
                raise SourceUnfit(f"slot {slot} can't be copied, no slot is free: {text}")
            if state in _GONE:
                raise SlotLost(f"slot {slot} can't be copied: {text}")
            raise SourceUnavailable(f"slot {slot} can't be copied just now: {text}")
        copied = position.parse((result.get_value(0, 0) or b"0/0").decode())
        if copied > start:
            raise SlotLost(
                f"slot {slot} was advanced to {position.text(copied)}, after"
                f" {position.text(start)}, where decoding must continue"
            )
        if start - copied > _WORTH_MOVING:
            self._move(temporary, start)

    def _move(self, temporary: str, start: int) -> None:
        command = ADVANCE.format(slot=temporary, position=position.text(start))
        for _ in range(2):
            self._run(command, temporary)

    def _run(self, command: str, temporary: str) -> None:
        try:
            self.pgconn.send_query(command.encode())
            self._flush()
            while self.pgconn.is_busy():
                self._poll.poll()
                self.pgconn.consume_input()
            failed = False
            while (result := self.pgconn.get_result()) is not None:
                failed = failed or result.status != ExecStatus.TUPLES_OK
        except psycopg.OperationalError as cut:
            raise connections.refusal(cut, command) from cut
        if failed:
            text = " ".join(self.pgconn.get_error_message().split())
            raise SourceUnavailable(f"slot {temporary} can't be advanced: {text}")
