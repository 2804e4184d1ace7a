"""The replication slot, and whether it still holds everything after the stored position.

https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import psycopg
import structlog

from laredo_fanout.errors import RightsMissing, ServerUnfit, SlotInUse, SlotLost
from laredo_model import position as position_
from laredo_model.history import History

if TYPE_CHECKING:
    from laredo_fanout.source.session import Connection

_log = structlog.get_logger()

_STATE = """
SELECT slot_name::text, plugin::text, database::text, active_pid,
    confirmed_flush_lsn - '0/0'::pg_lsn, wal_status, safe_wal_size, current_database()::text,
    CASE WHEN pg_is_in_recovery() THEN NULL
         ELSE pg_current_wal_lsn() - '0/0'::pg_lsn END,
    pg_current_wal_lsn() - restart_lsn
FROM pg_replication_slots WHERE slot_name = %s
"""


class Slot(NamedTuple):
    """A slot as PostgreSQL shows it; sizes in bytes.

    ``wal_status`` is reserved, extended, unreserved or lost; ``safe_wal_size``
    is how much may be written before it is in danger (None: no limit set).
    """

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed: int | None
    wal_status: str | None
    safe_wal_size: int | None
    here: str
    wal_position: int | None
    retained: int | None


class Stored(NamedTuple):
    """What the store knows of its source."""

    history: History
    slot: str
    publication: str
    position: int


def read(connection: Connection, name: str) -> Slot | None:
    """The slot of this name, if there is one."""
    row = connection.execute(_STATE, (name,)).fetchone()
    if row is None:
        return None
    confirmed, wal_position, retained = (
        None if row[index] is None else int(row[index]) for index in (4, 8, 9)
    )
    return Slot(
        row[0], row[1], row[2], row[3], confirmed, row[5], row[6], row[7], wal_position, retained
    )


def create(connection: Connection, name: str) -> int:
    """Make the slot; the position from which its stream is complete.

    It waits for every transaction that is running. The call is cut short by
    ``connection.cancel_safe``.

    :raises ServerUnfit: if there is no free slot.
    :raises RightsMissing: if the role may not.
    """
    try:
        connection.execute("SET lock_timeout = 0")
        row = connection.execute(
            "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')",
            (name,),
        ).fetchone()
    except psycopg.errors.ConfigurationLimitExceeded as full:
        raise ServerUnfit(
            f"slot {name} can't be made: {full.diag.message_primary};"
            f" {full.diag.message_hint or 'raise max_replication_slots'}"
        ) from full
    except psycopg.errors.InsufficientPrivilege as denied:
        raise RightsMissing(
            f"slot {name} can't be made: {denied.diag.message_primary};"
            f" ALTER ROLE {connection.info.user} REPLICATION;"
        ) from denied
    start = 0 if row is None else int(row[0])
    _log.info("slot made", slot=name, position=position_.text(start))
    return start


def drop(connection: Connection, name: str) -> None:
    """Drop the slot if it exists.

    :raises SlotInUse: if somebody streams from it.
    """
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    except psycopg.errors.UndefinedObject:
        return
    except psycopg.errors.ObjectInUse as used:
        raise SlotInUse(
            f"slot {name} is in use: {used.diag.message_primary}; stop the other server,"
            " or give this one its own slot_name"
        ) from used
    _log.warning("slot dropped", slot=name)


def gap(
    stored: Stored,
    *,
    history: History,
    switch: int | None,
    slot: Slot | None,
    slot_name: str,
    publication: str,
) -> SlotLost | None:
    """Why changes after the stored position can't be had from this slot; None if they can.

    START_REPLICATION would begin at confirmed_flush_lsn in silence when asked
    for an earlier position. ``switch`` is where this server's timeline left the
    stored one; None if it never did.
    """
    reason = (
        _other_history(stored, history, switch)
        or _other_names(stored, slot_name, publication)
        or _slot_gone(stored, slot, slot_name)
    )
    return None if reason is None else SlotLost(reason)


def _other_history(stored: Stored, history: History, switch: int | None) -> str | None:
    before = stored.history
    if before.system_identifier != history.system_identifier:
        return (
            f"the server is another cluster: system identifier {history.system_identifier},"
            f" the store's is {before.system_identifier}"
        )
    if before.database_oid != history.database_oid:
        return (
            f"the database is another one: oid {history.database_oid},"
            f" the store's is {before.database_oid}"
        )
    if before.timeline == history.timeline:
        return None
    if switch is None or history.timeline < before.timeline:
        return (
            f"the server is on timeline {history.timeline}, which doesn't come from the store's"
            f" {before.timeline}"
        )
    if stored.position > switch:
        return (
            f"timeline {history.timeline} left the store's {before.timeline} at"
            f" {position_.text(switch)}, before the stored position"
            f" {position_.text(stored.position)}"
        )
    return None


def _other_names(stored: Stored, slot_name: str, publication: str) -> str | None:
    if stored.slot != slot_name:
        return f"slot_name is {slot_name}, the store's position is of slot {stored.slot}"
    if stored.publication != publication:
        return (
            f"publication {publication.rpartition(':')[0]} isn't the stored one (it was dropped"
            " and made again, or publication.name was changed)"
        )
    return None


def _slot_gone(stored: Stored, slot: Slot | None, slot_name: str) -> str | None:
    if slot is None:
        return f"slot {slot_name} doesn't exist any more"
    if slot.plugin != "pgoutput" or slot.database != slot.here:
        return f"slot {slot_name} is not a pgoutput slot of database {slot.here}"
    if slot.wal_status == "lost" or slot.confirmed is None:
        return f"slot {slot_name} was invalidated: its WAL is gone (max_slot_wal_keep_size)"
    if slot.confirmed > stored.position:
        return (
            f"slot {slot_name} was moved to {position_.text(slot.confirmed)}, beyond the stored"
            f" position {position_.text(stored.position)}"
        )
    return None
