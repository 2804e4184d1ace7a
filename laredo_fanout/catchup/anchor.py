"""The anchor: the slot itself, moved on while segments are decoded by copies of it.

It keeps the WAL that a restart would need, and its own stream goes on where the segments end.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
import structlog

from laredo_model import position

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection

_log = structlog.get_logger()

_INTERVAL_S = 3.0
_SHARE = 10
"""Divisor of the time for it: it reads the WAL in between."""

_ADVANCE = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"
ADVANCE = "SELECT pg_replication_slot_advance('{slot}', '{position}')"
"""SQL that moves the slot, for a replication connection, which takes no parameters.

To be run twice. The first moves confirmed_flush_lsn, but restart_lsn only to the first place
that the server finds then; the second, from there, moves it close to ``position``. A stream
would otherwise decode everything from restart_lsn on before it sends anything."""


class Anchor:
    """Moves one slot; used by the side connection's thread."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._due_at = 0.0
        self._moved_to = 0
        self.tried = 0
        """Last position to which the slot was to be moved; segments don't wait for a slot that
        can't be."""

    def advance(self, connection: Connection, durable: int, *, at_once: bool) -> None:
        """Move it to what is durable, so that it keeps no WAL that nobody needs; ``at_once``, or
        when that is due.

        :raises psycopg.Error: if the connection broke.
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
