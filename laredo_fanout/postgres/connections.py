"""SQL connections to the source: settings, time limits, and the errors of connections and slot."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, Self

import psycopg
import structlog
from psycopg import conninfo

from laredo_model import value_sql

# Errors of PostgreSQL: of connections, the slot and the stream.
#
# SourceError                PostgreSQL, or what we need of it
# ├── SourceUnavailable        can't connect, or the connection was cut: tried again
# ├── RightsMissing            the role lacks a right; names the GRANT
# ├── SlotLost                 the slot, its publication or its history isn't the stored one
# ├── SlotInUse                another process streams from the slot
# └── StreamFault              the reason is in the WAL: see ingest/session.py
#     ├── DecodingFailed         PostgreSQL can't decode a transaction
#     └── ReplicationStreamBroken  bytes that are not the protocol's
#
# Those of tables and of the server's settings are in laredo_fanout/errors.py.


class SourceError(Exception):
    """Root of the errors of PostgreSQL and of what the server needs there."""


class SourceUnavailable(SourceError):
    """PostgreSQL can't be connected to, or the connection was cut; retried with growing pauses."""


class RightsMissing(SourceError):
    """The role lacks a right; the message holds the statement that grants it."""


class SlotLost(SourceError):
    """Changes between the stored position and the slot can't be had any more.

    ``on_slot_lost = recreate`` makes a new slot and copies the tables again.
    """


class SlotInUse(SourceError):
    """Another process streams from the slot; retried with growing pauses."""


class StreamFault(SourceError):
    """The stream ended for a reason that is in the WAL, or in its decoding: an attempt from the
    same position meets it again."""


class DecodingFailed(StreamFault):
    """PostgreSQL ended the stream with an error of its decoding, or of its output plugin."""

    def __init__(self, sqlstate: str, text: str) -> None:
        super().__init__(f"PostgreSQL can't decode a transaction ({sqlstate}): {text}")
        self.sqlstate = sqlstate
        self.text = text


class ReplicationStreamBroken(StreamFault):
    """The stream sent what the protocol doesn't allow."""


_log = structlog.get_logger()

Connection = psycopg.Connection[Any]

_EXTRA = {
    # With 'on' a role that row-level security applies to would silently copy a part of the rows.
    "row_security": "off",
    # 'on' hangs while a synchronous standby is unavailable; our own messages needn't wait for it.
    "synchronous_commit": "local",
    # Else the planner computes constant parts of a partition's CHECK, which its owner wrote.
    "constraint_exclusion": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
_TRANSACTION_TIMEOUT = 170000
_LONGEST_NAME = 63
"""NAMEDATALEN - 1: PostgreSQL cuts application_name there."""


class ConnectionOptions(Protocol):
    """The settings of a connection: database, name in pg_stat_activity, timeouts in seconds."""

    @property
    def connection(self) -> str:
        """A libpq connection string or URI."""

    @property
    def slot_name(self) -> str:
        """Part of the connection's name in pg_stat_activity."""

    @property
    def run(self) -> str:
        """The random id of the session that the connection belongs to: part of that name too."""

    @property
    def connect_timeout(self) -> float:
        """Longest time for connecting, in seconds."""

    @property
    def receive_timeout(self) -> float:
        """Longest silence of the stream, in seconds, before its connection counts as lost."""


def application_name(options: ConnectionOptions, role: str) -> str:
    """The connection's name in pg_stat_activity: ``laredo-fanout SLOT RUN ROLE``."""
    end = f" {options.run} {role}" if options.run else f" {role}"
    return f"laredo-fanout {options.slot_name}"[: _LONGEST_NAME - len(end)] + end


def connect(options: ConnectionOptions, *, role: str, replication: bool = False) -> Connection:
    """Open an autocommit connection with the session settings of :data:`select.SESSION`.

    ``role`` names the connection's purpose in pg_stat_activity. With ``replication`` it speaks the
    replication protocol (of this database), and PostgreSQL ends it if nothing was read from it for
    ``receive_timeout``: a walsender whose reader is frozen holds the checkpointer, which waits for
    it to let go of a slot that is to be invalidated. A unix socket has no such timeout.

    :raises SourceUnavailable: if the server can't be reached or refuses.
    """
    settings = {**value_sql.SESSION, **_EXTRA}
    given = conninfo.conninfo_to_dict(options.connection)
    session = " ".join(f"-c {name}={value}" for name, value in settings.items())
    parameters: dict[str, Any] = {
        **given,
        # Ours come last: of two settings of the same name the later one holds.
        "options": f"{given.get('options') or ''} {session}".strip(),
        "application_name": application_name(options, role),
        "connect_timeout": given.get("connect_timeout") or max(2, round(options.connect_timeout)),
        "keepalives_idle": given.get("keepalives_idle") or 30,
        "keepalives_interval": given.get("keepalives_interval") or 10,
        "keepalives_count": given.get("keepalives_count") or 3,
    }
    if replication:
        parameters["replication"] = "database"
        # Before the others: what the configuration sets holds.
        limit = f"-c tcp_user_timeout={round(options.receive_timeout * 1000)}"
        parameters["options"] = f"{limit} {parameters['options']}"
    try:
        connection = psycopg.connect(**parameters, autocommit=True)
    except psycopg.OperationalError as refused:
        raise refusal(refused, "connect") from refused
    connection.prepare_threshold = None
    if connection.info.server_version >= _TRANSACTION_TIMEOUT:
        # A setting of the role or the database would end long chunks and the slot's making.
        with (
            closed_on_failure(connection),
            TimeLimit(connection, options.connect_timeout),
            translated("connect"),
        ):
            connection.execute("SET transaction_timeout = 0")
    return connection


@contextmanager
def closed_on_failure(connection: Connection) -> Iterator[None]:
    """Close the connection if the block, which makes it ready for use, fails."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


_DENIALS = (
    "permission denied to start WAL sender",
    "must be superuser or replication role",
    "permission denied for database",
    "is not permitted to log in",
)
"""A refused connection has no SQLSTATE on the client's side."""
_ENDED = ("08", "57")
"""Classes of SQLSTATE: the connection failed, or an operator ended it."""


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate psycopg's errors into this package's."""
    try:
        yield
    except psycopg.Error as error:
        raise refusal(error, doing) from error


def sever(connection: Connection) -> None:
    """Break a connection that another thread waits on: the wait ends with an error."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as one:
        one.shutdown(socket.SHUT_RDWR)


class TimeLimit:
    """A time limit: the block's work over ``connection`` may take ``seconds``, then it is cut.

    A proxy that stopped forwarding sends neither the answer nor the connection's end.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        self._timer = threading.Timer(self._seconds, self._lost)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Lift the limit for work that may take long; the time begins again after it."""
        self.__exit__()
        yield
        self.__enter__()

    def _lost(self) -> None:
        _log.warning("connection closed: no answer", waited_s=self._seconds)
        sever(self._connection)


def cancel(connection: Connection) -> None:
    """Cancel the statement that this connection waits for; from any thread."""
    with suppress(psycopg.Error):
        connection.cancel_safe(timeout=2)


def refusal(error: psycopg.Error, doing: str) -> SourceUnavailable | RightsMissing:
    """The typed error for a failed connection or statement."""
    text = " ".join(str(error).split())
    denied = (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.InvalidAuthorizationSpecification,
    )
    if isinstance(error, denied) or any(phrase in text for phrase in _DENIALS):
        return RightsMissing(
            f"PostgreSQL refuses to {doing}: {text}; grant the right, or use another role"
            " (`laredo-fanout check` prints the statements)"
        )
    if error.sqlstate is not None and error.sqlstate[:2] not in _ENDED:
        return SourceUnavailable(f"PostgreSQL answered with an error ({doing}): {text}")
    return SourceUnavailable(f"PostgreSQL can't be reached ({doing}): {text}")
