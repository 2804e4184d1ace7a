"""The replication slot, and whether it still holds everything after the stored position.

https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import structlog

from laredo_fanout.errors import ServerUnfit
from laredo_fanout.postgres import wal_message
from laredo_fanout.postgres.errors import RightsMissing, SlotInUse
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection

_log = structlog.get_logger()

# As JSON, because each version of PostgreSQL adds columns: absent ones are None.
_STATE = """
SELECT to_jsonb(s) || jsonb_build_object('here', current_database(),
    'confirmed', s.confirmed_flush_lsn - '0/0'::pg_lsn,
    'wal_position', w.here - '0/0'::pg_lsn, 'retained', w.here - s.restart_lsn,
    'unconfirmed', w.here - s.confirmed_flush_lsn,
    'xmin_age', greatest(age(s.xmin), age(s.catalog_xmin)),
    'idle_s', extract(epoch FROM now() - (to_jsonb(s)->>'inactive_since')::timestamptz),
    'keep_mb', (SELECT setting FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
    'idle_timeout_s', (SELECT setting::int8 * CASE unit WHEN 'min' THEN 60 ELSE 1 END
        FROM pg_settings WHERE name = 'idle_replication_slot_timeout'),
    'freeze_age', current_setting('autovacuum_freeze_max_age'))
FROM pg_replication_slots s, (SELECT CASE WHEN pg_is_in_recovery() THEN NULL
    ELSE pg_current_wal_lsn() END AS here) w
WHERE s.slot_name = %s
"""

_INVALIDATED: Mapping[str | None, str] = defaultdict(
    lambda: "its WAL is gone (max_slot_wal_keep_size)",
    {
        "idle_timeout": "nobody streamed from it for longer than idle_replication_slot_timeout",
        "wal_level_insufficient": "wal_level was lowered for a while",
        "rows_removed": "catalog rows that it needs were removed",
        "conflict": "catalog rows that it needs were removed, or wal_level was lowered",
    },
)
"""By ``invalidation_reason``."""

_FAILOVER_SLOTS = 170000

_DROP = """
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
 WHERE slot_name = %s AND plugin = %s AND datoid = %s
   AND (confirmed_flush_lsn - '0/0'::pg_lsn) IS NOT DISTINCT FROM %s::numeric
"""
_OLDEST = """
SELECT pid, extract(epoch FROM clock_timestamp() - began)::float8 FROM (
    SELECT pid, xact_start AS began FROM pg_stat_activity WHERE backend_xid IS NOT NULL
    UNION ALL SELECT NULL, prepared FROM pg_prepared_xacts) t
ORDER BY began NULLS LAST LIMIT 1
"""


class Oldest(NamedTuple):
    """A transaction of the cluster that has written and isn't over: the slot keeps its WAL.

    ``pid`` is None for a prepared one; ``age_s`` None where the role may not see it
    (pg_read_all_stats).
    """

    pid: int | None
    age_s: float | None


class Slot(NamedTuple):
    """A slot as PostgreSQL shows it; sizes in bytes, times in seconds, xids' ages in transactions.

    ``wal_status`` is reserved, extended, unreserved or lost; ``safe_wal_size``
    is how much may be written before it is in danger (None: no limit set), of
    ``keep_bytes`` that may be kept at all (max_slot_wal_keep_size). ``retained`` is the WAL
    since restart_lsn, ``unconfirmed`` since confirmed_flush_lsn. ``idle_s`` is for how long
    nobody has streamed from it, and after ``idle_timeout_s`` it is invalidated
    (PostgreSQL 17 and 18 tell; None: not known, or no limit). ``invalidated`` is the reason,
    as PostgreSQL calls it. What a version doesn't have is None.
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
    unconfirmed: int | None = None
    xmin_age: int | None = None
    freeze_age: int | None = None
    idle_s: float | None = None
    idle_timeout_s: int | None = None
    keep_bytes: int | None = None
    invalidated: str | None = None
    failover: bool | None = None
    oldest: Oldest | None = None
    database_oid: int | None = None

    @property
    def is_of_this_database(self) -> bool:
        """Whether a server that follows this database may have made it."""
        return self.plugin == "pgoutput" and self.database == self.here

    def __str__(self) -> str:
        kind = "physical" if self.plugin is None else f"{self.plugin}, database {self.database}"
        used = "inactive" if self.active_pid is None else f"used by pid {self.active_pid}"
        at = "" if self.confirmed is None else f", confirmed {position_.text(self.confirmed)}"
        return f"slot {self.name} ({kind}, {used}{at})"


class Stored(NamedTuple):
    """What the store knows of its source."""

    slot: str
    publication: str
    position: int


def read(connection: Connection, name: str) -> Slot | None:
    """The slot of this name, if there is one."""
    row = connection.execute(_STATE, (name,)).fetchone()
    if row is None:
        return None
    told: dict[str, Any] = row[0]
    keep_mb = int(told["keep_mb"])
    return Slot(
        name=told["slot_name"],
        plugin=told["plugin"],
        database=told["database"],
        active_pid=told["active_pid"],
        confirmed=told["confirmed"],
        wal_status=told["wal_status"],
        safe_wal_size=told["safe_wal_size"],
        here=told["here"],
        wal_position=told["wal_position"],
        retained=told["retained"],
        unconfirmed=told["unconfirmed"],
        xmin_age=told["xmin_age"],
        freeze_age=int(told["freeze_age"]),
        idle_s=None if told["active_pid"] else told["idle_s"],
        idle_timeout_s=told["idle_timeout_s"] or None,
        keep_bytes=keep_mb << 20 if keep_mb >= 0 else None,
        invalidated=told.get("invalidation_reason") or ("conflict" if _conflicts(told) else None),
        failover=told.get("failover"),
        oldest=_oldest(connection),
        database_oid=None if told["datoid"] is None else int(told["datoid"]),
    )


def _conflicts(told: dict[str, Any]) -> bool:
    # Version 16 says so of every invalidated slot; one whose WAL is gone has no restart_lsn.
    return bool(told.get("conflicting")) and told["restart_lsn"] is not None


def _oldest(connection: Connection) -> Oldest | None:
    row = connection.execute(_OLDEST).fetchone()
    return None if row is None else Oldest(row[0], row[1])


def create(connection: Connection, name: str, token: str) -> int:
    """Make the slot; the position from which its stream is complete.

    Its stream begins with a message that only whoever knows ``token`` could have written, and
    that says where it begins: so it is known again if this process dies before it is stored.
    It waits for every transaction that is running. The call is cut short by
    ``connection.cancel_safe``. From PostgreSQL 17 on the slot is one that standbys may
    keep in step (sync_replication_slots), so that it survives a failover.

    :raises ServerUnfit: if there is no free slot.
    :raises RightsMissing: if the role may not.
    :raises SlotInUse: if somebody else has just made it.
    """
    failover = ", failover => true" if connection.info.server_version >= _FAILOVER_SLOTS else ""
    try:
        connection.execute("SET lock_timeout = 0")
        row = connection.execute(
            "SELECT begins, pg_logical_emit_message(true, %s, %s || begins)"
            " FROM (SELECT lsn - '0/0'::pg_lsn AS begins FROM"
            f" pg_create_logical_replication_slot(%s, 'pgoutput'{failover}) OFFSET 0) s".encode(),
            (wal_message.PREFIX, wal_message.made_payload(name, token, ""), name),
        ).fetchone()
    except psycopg.errors.DuplicateObject as made:
        raise SlotInUse(f"slot {name} was made by somebody else just now") from made
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


def drop(connection: Connection, found: Slot) -> None:
    """Drop the slot if it is still the one that was found to be ours (``ownership.py``).

    Another server may have made one of its name since: that isn't touched.

    :raises SlotInUse: if somebody streams from it.
    """
    try:
        dropped = connection.execute(
            _DROP, (found.name, found.plugin, found.database_oid, found.confirmed)
        ).rowcount
    except psycopg.errors.UndefinedObject:
        return
    except psycopg.errors.ObjectInUse as used:
        raise SlotInUse(
            f"slot {found.name} is in use: {used.diag.message_primary}; stop the other server,"
            " or give this one its own slot_name"
        ) from used
    if dropped:
        _log.warning("slot dropped", slot=found.name)


def gap(stored: Stored, slot: Slot | None, *, slot_name: str, publication: str) -> str | None:
    """Why changes after the stored position can't be had from this slot; None if they can.

    START_REPLICATION would begin at confirmed_flush_lsn in silence when asked
    for an earlier position.
    """
    return _other_names(stored, slot_name, publication) or _slot_gone(stored, slot, slot_name)


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
    if not slot.is_of_this_database:
        return f"slot {slot_name} is not a pgoutput slot of database {slot.here}"
    if slot.wal_status == "lost" or slot.confirmed is None:
        return f"slot {slot_name} was invalidated: {_INVALIDATED[slot.invalidated]}"
    if slot.confirmed > stored.position:
        return (
            f"slot {slot_name} was moved to {position_.text(slot.confirmed)}, beyond the stored"
            f" position {position_.text(stored.position)}"
        )
    return None
