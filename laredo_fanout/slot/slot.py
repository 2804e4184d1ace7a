"""The replication slot in the catalog: create, read, drop; and the walsender that uses it.

https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import structlog

from laredo_fanout.errors import SourceUnfit
from laredo_fanout.postgres import connections, pgoutput
from laredo_fanout.postgres.connections import RightsMissing, SlotInUse, SourceError
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions

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
        "idle_timeout": "it was unused for longer than idle_replication_slot_timeout",
        "wal_level_insufficient": "wal_level was lowered for a while",
        "rows_removed": "catalog rows that it needs were removed",
        "conflict": "catalog rows that it needs were removed, or wal_level was lowered",
    },
)
"""Explanations by ``invalidation_reason``."""

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
    """The cluster's oldest running transaction that has written: the slot keeps its WAL."""

    #: Pid of its process; None for a prepared transaction.
    pid: int | None
    #: Age in seconds; None if the role may not see it (pg_read_all_stats).
    age_s: float | None


class Slot(NamedTuple):
    """A replication slot in the catalog; None if a version of PostgreSQL lacks the value.

    Sizes are in bytes, times in seconds, xids' ages in transactions.
    """

    name: str
    plugin: str | None
    database: str | None
    #: Pid of the walsender that streams from the slot, or None.
    active_pid: int | None
    #: confirmed_flush_lsn.
    confirmed: int | None
    #: reserved, extended, unreserved or lost.
    wal_status: str | None
    #: WAL that may be written before the slot may be lost; None if there is no limit.
    safe_wal_size: int | None
    #: The database of the connection that read the slot.
    here: str
    #: pg_current_wal_lsn(); None on a standby.
    wal_position: int | None
    #: WAL since restart_lsn.
    retained: int | None
    #: WAL since confirmed_flush_lsn.
    unconfirmed: int | None = None
    #: Age of the oldest catalog rows that the slot keeps from VACUUM.
    xmin_age: int | None = None
    #: autovacuum_freeze_max_age.
    freeze_age: int | None = None
    #: Time since the slot was used last (from PostgreSQL 17 on).
    idle_s: float | None = None
    #: Idle time after which the slot is invalidated (from PostgreSQL 18 on); None for no limit.
    idle_timeout_s: int | None = None
    #: max_slot_wal_keep_size; None for no limit.
    keep_bytes: int | None = None
    #: PostgreSQL's name of the reason for an invalidation; None for a valid slot.
    invalidated: str | None = None
    #: True if standbys synchronize the slot (from PostgreSQL 17 on).
    failover: bool | None = None
    oldest: Oldest | None = None
    database_oid: int | None = None

    @property
    def restart(self) -> int | None:
        """restart_lsn, from which a new stream decodes everything again."""
        if self.wal_position is None or self.retained is None:
            return None
        return self.wal_position - self.retained

    @property
    def is_of_this_database(self) -> bool:
        """True if a server that follows this database may have created the slot."""
        return self.plugin == "pgoutput" and self.database == self.here

    def __str__(self) -> str:
        kind = "physical" if self.plugin is None else f"{self.plugin}, database {self.database}"
        used = "inactive" if self.active_pid is None else f"used by pid {self.active_pid}"
        at = "" if self.confirmed is None else f", confirmed {position_.text(self.confirmed)}"
        return f"slot {self.name} ({kind}, {used}{at})"


class StoredSlot(NamedTuple):
    """The slot, publication and position in a store."""

    slot: str
    #: The publication's name and oid.
    publication: str
    position: int


def read(connection: Connection, name: str) -> Slot | None:
    """The slot of this name, if there is one."""
    row = connection.execute(_STATE, (name,)).fetchone()
    if row is None:
        return None
    state: dict[str, Any] = row[0]
    keep_mb = int(state["keep_mb"])
    return Slot(
        name=state["slot_name"],
        plugin=state["plugin"],
        database=state["database"],
        active_pid=state["active_pid"],
        confirmed=state["confirmed"],
        wal_status=state["wal_status"],
        safe_wal_size=state["safe_wal_size"],
        here=state["here"],
        wal_position=state["wal_position"],
        retained=state["retained"],
        unconfirmed=state["unconfirmed"],
        xmin_age=state["xmin_age"],
        freeze_age=int(state["freeze_age"]),
        idle_s=None if state["active_pid"] else state["idle_s"],
        idle_timeout_s=state["idle_timeout_s"] or None,
        keep_bytes=keep_mb << 20 if keep_mb >= 0 else None,
        invalidated=state.get("invalidation_reason") or ("conflict" if _conflicts(state) else None),
        failover=state.get("failover"),
        oldest=_oldest(connection),
        database_oid=None if state["datoid"] is None else int(state["datoid"]),
    )


def _conflicts(state: dict[str, Any]) -> bool:
    # In version 16 it is set for every invalidated slot; one whose WAL is gone has no restart_lsn.
    return bool(state.get("conflicting")) and state["restart_lsn"] is not None


def _oldest(connection: Connection) -> Oldest | None:
    row = connection.execute(_OLDEST).fetchone()
    return None if row is None else Oldest(row[0], row[1])


def create(connection: Connection, name: str, token: str) -> int:
    """Create the slot; returns the position from which its stream is complete.

    Its stream begins with a message that contains ``token`` and the start position, which identify
    the slot if this process dies before the store has it. PostgreSQL waits for every running
    transaction; ``connection.cancel_safe`` ends the call. From PostgreSQL 17 on standbys may
    synchronize the slot (sync_replication_slots), so that it survives a failover.

    :raises SourceUnfit: if there is no free slot.
    :raises RightsMissing: if the role may not create slots.
    :raises SlotInUse: if another server has just created the slot.
    """
    failover = ", failover => true" if connection.info.server_version >= _FAILOVER_SLOTS else ""
    try:
        connection.execute("SET lock_timeout = 0")
        row = connection.execute(
            "SELECT begins, pg_logical_emit_message(true, %s, %s || begins)"
            " FROM (SELECT lsn - '0/0'::pg_lsn AS begins FROM"
            f" pg_create_logical_replication_slot(%s, 'pgoutput'{failover}) OFFSET 0) s".encode(),
            (pgoutput.PREFIX, pgoutput.made_payload(name, token, ""), name),
        ).fetchone()
    except psycopg.errors.DuplicateObject as made:
        raise SlotInUse(
            f"another server has just created slot {name}; stop it, or give this one its own"
            " slot_name"
        ) from made
    except psycopg.errors.ConfigurationLimitExceeded as full:
        raise SourceUnfit(
            f"slot {name} can't be created: {full.diag.message_primary};"
            f" {full.diag.message_hint or 'raise max_replication_slots'}"
        ) from full
    except psycopg.errors.InsufficientPrivilege as denied:
        raise RightsMissing(
            f"slot {name} can't be created: {denied.diag.message_primary};"
            f" ALTER ROLE {connection.info.user} REPLICATION;"
        ) from denied
    start = 0 if row is None else int(row[0])
    _log.info("slot created", slot=name, position=position_.text(start))
    return start


def drop(connection: Connection, found: Slot) -> None:
    """Drop the slot if it is still the one that was ``found`` to be ours (``ownership.py``).

    Another server may have created a slot of this name since, which isn't dropped.

    :raises SlotInUse: if a process streams from it.
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


def gap(stored: StoredSlot, slot: Slot | None, *, slot_name: str, publication: str) -> str | None:
    """Reason why this slot can't send the changes after the stored position, or None.

    START_REPLICATION at an earlier position would begin at confirmed_flush_lsn without an error.
    """
    return _other_names(stored, slot_name, publication) or _slot_gone(stored, slot, slot_name)


def _other_names(stored: StoredSlot, slot_name: str, publication: str) -> str | None:
    if stored.slot != slot_name:
        return f"slot_name is {slot_name}, but the store's position is that of slot {stored.slot}"
    if stored.publication != publication:
        return (
            f"publication {publication.rpartition(':')[0]} isn't the stored one (it was dropped"
            " and created again, or publication.name was changed)"
        )
    return None


def _slot_gone(stored: StoredSlot, slot: Slot | None, slot_name: str) -> str | None:
    if slot is None:
        return f"slot {slot_name} doesn't exist any more"
    if not slot.is_of_this_database:
        return f"slot {slot_name} is not a pgoutput slot of database {slot.here}"
    if slot.wal_status == "lost" or slot.confirmed is None:
        return f"slot {slot_name} was invalidated: {_INVALIDATED[slot.invalidated]}"
    if slot.confirmed > stored.position:
        return (
            f"slot {slot_name} was advanced to {position_.text(slot.confirmed)}, after the stored"
            f" position {position_.text(stored.position)}"
        )
    return None


# Reports of the transactions for which the creation of a slot waits.
#
# PostgreSQL can't decode before every running transaction has ended; it waits without limit for one
# that is left open, or prepared and forgotten.
# https://www.postgresql.org/docs/current/logicaldecoding-explanation.html (Snapshots)

_FIRST_POLL_S, _POLL_EVERY_S, _LOG_AGAIN_S = 0.5, 1.0, 60.0

# pg_blocking_pids names the transaction that PostgreSQL waits for now; those that began before the
# slot's creation are next. 0 stands for a prepared transaction.
_WAITED_FOR = """
SELECT a.pid, coalesce(a.usename::text, '?'), coalesce(a.application_name, ''),
    a.xact_start::timestamptz(0)::text, coalesce(a.state, 'state hidden')
FROM pg_stat_activity a
WHERE a.backend_xid IS NOT NULL AND a.pid <> %(maker)s
    AND (a.pid = ANY (pg_blocking_pids(%(maker)s)) OR a.xact_start <= (
        SELECT coalesce(m.xact_start, m.query_start) FROM pg_stat_activity m
        WHERE m.pid = %(maker)s))
ORDER BY a.xact_start, a.pid
"""
_WORKS = "SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s"
_PREPARED = """
SELECT gid, owner::text, prepared::timestamptz(0)::text FROM pg_prepared_xacts ORDER BY prepared
"""


@contextmanager
def waits_reported(
    options: SourceOptions,
    maker: Connection,
    report: Callable[[str], None],
    stopping: threading.Event,
) -> Iterator[None]:
    """Report the transactions for which the block, on the connection ``maker``, waits.

    ``report`` is called in a thread of its own, with a sentence for people, but not for a short
    wait. The sentence is logged when it changes, and once a minute. If PostgreSQL has answered, or
    has no such connection any more, the answer is lost, and ``maker`` is cut. Its statement is
    cancelled after ``stopping``.
    """
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch,
        args=(options, maker, report, stopping, over),
        name="laredo-slot",
        daemon=True,
    )
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(
    options: SourceOptions,
    maker: Connection,
    report: Callable[[str], None],
    stopping: threading.Event,
    over: threading.Event,
) -> None:
    def pause(seconds: float) -> None:
        if not over.wait(seconds) and stopping.is_set():
            # Each time, because the stop may have cancelled before the statement began.
            connections.cancel(maker)

    pause(_FIRST_POLL_S)
    pid = maker.info.backend_pid
    logged, logged_at, answered = "", 0.0, 0
    while not over.is_set():
        try:
            with (
                connections.connect(options, role="watch") as connection,
                connections.TimeLimit(connection, options.receive_timeout) as patience,
            ):
                while not over.is_set():
                    # The answer may be on its way; if it isn't there at the next check, it is lost.
                    answered = 0 if _works(connection, pid) else answered + 1
                    if answered > 1:
                        _log.warning("slot created; answer lost")
                        connections.sever(maker)
                        return
                    waited_for = _sentence(connection, pid)
                    report(waited_for)
                    now = time.monotonic()
                    if waited_for != logged or now - logged_at >= _LOG_AGAIN_S:
                        logged, logged_at = waited_for, now
                        _log.warning(
                            "slot not created yet", slot=options.slot_name, reason=waited_for
                        )
                    with patience.suspended():
                        pause(_POLL_EVERY_S)
        except (SourceError, psycopg.Error) as failed:
            text = " ".join(str(failed).split())
            _log.warning("transactions that delay the slot not read", error=text)
            pause(_POLL_EVERY_S)


def _works(connection: Connection, pid: int) -> bool:
    """True if the backend ``pid`` is still working, or the role may not see its state."""
    row = connection.execute(_WORKS, (pid,)).fetchone()
    return row is not None and row[0] is not False


def _sentence(connection: Connection, maker_pid: int) -> str:
    running = connection.execute(_WAITED_FOR, {"maker": maker_pid}).fetchall()
    parts = [
        f"pid {pid} (role {role}, {name or 'no name'}, {state}, since {since or '?'})"
        for pid, role, name, since, state in running
    ]
    parts += [
        f"prepared transaction {gid!r} (role {role}, since {since}; COMMIT or ROLLBACK PREPARED)"
        for gid, role, since in connection.execute(_PREPARED).fetchall()
    ]
    if not parts:
        return "creating the slot"
    return f"creating the slot waits for transactions to end: {', '.join(parts)}"


# The process that streams from the slot, which is ended if it is an orphan of our own.
#
# If a proxy or a host is lost without closing its connection, the walsender holds the slot until
# wal_sender_timeout, or for ever if that is 0.

_PATIENCE_MS = 5000

_HOLDER = """
SELECT a.pid, a.application_name, a.usename::text, a.client_addr::text, a.backend_start
FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
WHERE s.slot_name = %s
"""
_OURSELVES = "SELECT session_user::text"
# All that distinguishes a process from a later one with the same pid is compared.
_END = """
SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity
WHERE pid = %s AND application_name = %s AND backend_start IS NOT DISTINCT FROM %s
"""


class SlotHolder(NamedTuple):
    """The process that holds the slot; None if the role may not see a value."""

    pid: int
    application_name: str
    role: str | None
    address: str | None
    #: Start of the process (backend_start).
    since: object

    def __str__(self) -> str:
        where = f" at {self.address}" if self.address else ""
        since = f" since {self.since:%Y-%m-%d %H:%M:%S}" if self.since else ""
        return (
            f"pid {self.pid} ({self.application_name or 'no name'}, role {self.role}{where}{since})"
        )


def holder(connection: Connection, slot: str) -> SlotHolder | None:
    """The process that streams from the slot now, or None."""
    row = connection.execute(_HOLDER, (slot,)).fetchone()
    return None if row is None else SlotHolder(*row)


def free(connection: Connection, slot: str, ours: Sequence[str]) -> bool:
    """End an orphaned connection of ours that holds the slot; True if there was one.

    ``ours`` are the names (application_name) of replication connections that this store
    opened and that aren't used any more. They are random, and were stored before they were
    used, and only one process has the store open, so no other server has such a name. Any
    role can read these names, so the connection's role is compared too.

    :raises SlotInUse: if the connection is another server's, or can't be ended.
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
