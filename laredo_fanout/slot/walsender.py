"""The process that streams from the slot, and how to end it where it is a left-over of our own.

A proxy or a host that is lost without closing its connection leaves a walsender that holds the
slot until wal_sender_timeout, or for ever where that is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import structlog

from laredo_fanout.postgres.errors import SlotInUse

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection

_log = structlog.get_logger()

_PATIENCE_MS = 5000

_HOLDER = """
SELECT a.pid, a.application_name, a.usename::text, a.client_addr::text, a.backend_start
FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
WHERE s.slot_name = %s
"""
_OURSELVES = "SELECT session_user::text"
# By all that distinguishes a process from a later one with the same pid.
_END = """
SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity
WHERE pid = %s AND application_name = %s AND backend_start IS NOT DISTINCT FROM %s
"""


class SlotHolder(NamedTuple):
    """The process that holds the slot; None is what the role may not see."""

    pid: int
    application_name: str
    role: str | None
    address: str | None
    #: When the process began (backend_start).
    since: object

    def __str__(self) -> str:
        where = f" at {self.address}" if self.address else ""
        since = f" since {self.since:%Y-%m-%d %H:%M:%S}" if self.since else ""
        return (
            f"pid {self.pid} ({self.application_name or 'no name'}, role {self.role}{where}{since})"
        )


def holder(connection: Connection, slot: str) -> SlotHolder | None:
    """The process that streams from the slot now, if one does."""
    row = connection.execute(_HOLDER, (slot,)).fetchone()
    return None if row is None else SlotHolder(*row)


def free(connection: Connection, slot: str, ours: Sequence[str]) -> bool:
    """Free the slot of a left-over connection of ours; returns whether one was ended.

    ``ours`` are the names (application_name) of replication connections that this store
    opened and that aren't used any more: they are random, and were stored before they were
    used, and a store is open in one process only, so no other server's is among them. A program
    that takes such a name, which all may read, has a connection of another role.

    :raises SlotInUse: if it is another server's, or can't be ended.
    """
    found = holder(connection, slot)
    if found is None:
        return False
    row = connection.execute(_OURSELVES).fetchone()
    if found.application_name not in ours or row is None or found.role != row[0]:
        raise _in_use(slot, found, "stop that server, or give this one its own slot_name")
    try:
        row = connection.execute(
            _END, (_PATIENCE_MS, found.pid, found.application_name, found.since)
        ).fetchone()
    except psycopg.errors.InsufficientPrivilege as denied:
        why = f"it is a connection that this server lost, and {denied.diag.message_primary}"
        raise _in_use(slot, found, why) from denied
    if row is not None and not row[0]:
        why = f"it was terminated and hasn't ended in {_PATIENCE_MS // 1000} s"
        raise _in_use(slot, found, why)
    _log.warning("orphaned walsender terminated", slot=slot, pid=found.pid)
    return True


def _in_use(slot: str, found: SlotHolder, why: str) -> SlotInUse:
    return SlotInUse(
        f"slot {slot} is in use by {found}; {why}."
        f" To end it: SELECT pg_terminate_backend({found.pid});"
    )
