"""Reports the transactions that creating a slot waits for, while it waits.

PostgreSQL can begin to decode only after every transaction that was running is over; one that
is left open, or prepared and forgotten, makes it wait without limit.
https://www.postgresql.org/docs/current/logicaldecoding-explanation.html (Snapshots)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import structlog

from laredo_fanout.postgres import connections
from laredo_fanout.postgres.errors import SourceError

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions

_log = structlog.get_logger()

_FIRST_POLL_S, _POLL_EVERY_S, _LOG_AGAIN_S = 0.5, 1.0, 60.0

# pg_blocking_pids names the one that is waited for now; those that began before it are next.
# 0 stands for a prepared transaction.
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
    options: SourceOptions, maker: Connection, report: Callable[[str], None]
) -> Iterator[None]:
    """While the block runs on the connection ``maker``, ``report`` which transactions it waits for.

    ``report`` is called in a thread of its own, with a sentence for people; a wait that is short
    isn't reported. The log has it when it changes, and once a minute. Where the server has long
    answered, or knows no such connection, ``maker`` is broken off: its answer is lost.
    """
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(options, maker, report, over), name="laredo-slot", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(
    options: SourceOptions, maker: Connection, report: Callable[[str], None], over: threading.Event
) -> None:
    if over.wait(_FIRST_POLL_S):
        return
    pid = maker.info.backend_pid
    logged, logged_at, answered = "", 0.0, 0
    while not over.is_set():
        try:
            with (
                connections.connect(options, role="watch") as connection,
                connections.TimeLimit(connection, options.receive_timeout) as patience,
            ):
                while not over.is_set():
                    # It may have answered just now; twice means that nothing comes through.
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
                        _log.warning("slot not created yet", slot=options.slot_name, why=waited_for)
                    with patience.suspended():
                        over.wait(_POLL_EVERY_S)
        except (SourceError, psycopg.Error) as failed:
            text = " ".join(str(failed).split())
            _log.warning("transactions that delay the slot not read", error=text)
            over.wait(_POLL_EVERY_S)


def _works(connection: Connection, pid: int) -> bool:
    """True if the backend ``pid`` is still working, or the role isn't allowed to see that."""
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
