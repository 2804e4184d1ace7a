"""What the server says of itself: slots and walsenders that nobody uses, how far its WAL is, and
what it decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection

_INSERTED = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"

# A stream of ours that was just closed may be shown for a moment: it doesn't count.
_ROOM = """
SELECT current_setting('max_replication_slots')::int
        - (SELECT count(*) FROM pg_replication_slots),
    current_setting('max_wal_senders')::int
        - (SELECT count(*) FROM pg_stat_replication WHERE NOT
            coalesce(starts_with(application_name, %s) AND right(application_name, 7) = ' stream',
                false))
"""

_DECODED = """
SELECT total_bytes, stream_bytes FROM pg_stat_replication_slots WHERE slot_name = %s
"""


class Room(NamedTuple):
    """Free replication slots and walsenders."""

    slots: int
    walsenders: int


class Decoded(NamedTuple):
    """Bytes that PostgreSQL has decoded for a slot, and those of them that it sent in parts."""

    total: int
    in_parts: int

    def share_in_parts(self, before: Decoded) -> float:
        """What part of all since ``before`` was sent in parts."""
        total = self.total - before.total
        return (self.in_parts - before.in_parts) / total if total > 0 else 0.0


def inserted(connection: Connection) -> int:
    """How far the server's WAL is written, in its memory at least.

    :raises psycopg.Error: if the server can't be asked, or is a standby.
    """
    row = connection.execute(_INSERTED).fetchone()
    assert row is not None
    return int(row[0])


def free(connection: Connection, slot: str) -> Room:
    """What is free; the stream of this slot isn't counted.

    :raises psycopg.Error: if the server can't be asked.
    """
    row = connection.execute(_ROOM, (f"laredo-fanout {slot} ",)).fetchone()
    assert row is not None
    return Room(int(row[0]), int(row[1]))


def decoded(connection: Connection, slot: str) -> Decoded:
    """What was decoded for the slot, as its statistics say.

    :raises psycopg.Error: if the server can't be asked.
    """
    row = connection.execute(_DECODED, (slot,)).fetchone()
    return Decoded(0, 0) if row is None else Decoded(int(row[0]), int(row[1]))
