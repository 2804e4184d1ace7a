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

# Errors of PostgreSQL. Those of tables and of settings are in laredo_fanout/errors.py.


class SourceError(Exception):
    """Root of the errors of PostgreSQL's connections, slot and stream."""


class SourceUnavailable(SourceError):
    """PostgreSQL can't be connected to, or the connection was cut; retried with growing pauses."""


class RightsMissing(SourceError):
    """The role lacks a right; the message contains the statement that grants it."""


class SlotLost(SourceError):
    """The slot can't send the changes after the stored position any more.

    ``on_slot_lost = recreate`` creates a new slot and copies the tables again.
    """


class SlotInUse(SourceError):
    """Another process streams from the slot; retried with growing pauses."""


class StreamFault(SourceError):
    """The WAL or its decoding ended the stream: a retry from the same position fails again."""


class DecodingFailed(StreamFault):
    """PostgreSQL ended the stream with an error of its decoder or its output plugin."""

    def __init__(self, sqlstate: str, text: str) -> None:
        super().__init__(f"PostgreSQL can't decode a transaction ({sqlstate}): {text}")
        self.sqlstate = sqlstate
        self.text = text


class ReplicationStreamBroken(StreamFault):
    """The stream sent a message that the protocol doesn't allow."""


_log = structlog.get_logger()

Connection = psycopg.Connection[Any]

_EXTRA = {
    # With 'on', a role to which row-level security applies would silently copy a part of the rows.
    "row_security": "off",
    # 'on' hangs while a synchronous standby is unavailable; our own messages needn't wait for it.
    "synchronous_commit": "local",
    # The planner would run constant parts of a partition's CHECK, which the table's owner wrote.
    "constraint_exclusion": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
_TRANSACTION_TIMEOUT = 170000
CHECK_CLIENT = "10s"
"""A backend notices at this interval that its client is gone, also while it waits for a lock. By
default it stays until it has the lock, and takes up a connection."""
_LONGEST_NAME = 63
"""NAMEDATALEN - 1: PostgreSQL truncates a longer application_name."""


class ConnectionOptions(Protocol):
    """The settings of a connection: database, name in pg_stat_activity, timeouts in seconds."""

    @property
    def connection(self) -> str:
        """A libpq connection string or URI."""

    @property
    def slot_name(self) -> str:
        """The slot's name, a part of the connection's name in pg_stat_activity."""

    @property
    def run(self) -> str:
        """The session's random id, a part of the connection's name in pg_stat_activity."""

    @property
    def connect_timeout(self) -> float:
        """Longest time for connecting, in seconds."""

    @property
    def receive_timeout(self) -> float:
        """Longest pause of the stream, in seconds, before its connection counts as lost."""


def application_name(options: ConnectionOptions, role: str) -> str:
    """The connection's name in pg_stat_activity: ``laredo-fanout SLOT RUN ROLE``."""
    end = f" {options.run} {role}" if options.run else f" {role}"
    return f"laredo-fanout {options.slot_name}"[: _LONGEST_NAME - len(end)] + end


def connect(options: ConnectionOptions, *, role: str, replication: bool = False) -> Connection:
    """Open an autocommit connection with the session settings of :data:`value_sql.SESSION`.

    ``role`` names the connection's purpose in pg_stat_activity. With ``replication`` it uses the
    replication protocol (of this database), and PostgreSQL ends it if nothing was read from it for
    ``receive_timeout``: a walsender whose reader is frozen blocks the checkpointer, which waits
    until a slot that is to be invalidated is released. A unix socket has no such timeout.

    :raises SourceUnavailable: if the server can't be reached or refuses.
    """
    settings = {**value_sql.SESSION, **_EXTRA}
    given = conninfo.conninfo_to_dict(options.connection)
    session = " ".join(f"-c {name}={value}" for name, value in settings.items())
    parameters: dict[str, Any] = {
        **given,
        # Ours come last: the later of two settings with the same name applies.
        "options": f"{given.get('options') or ''} {session}".strip(),
        "application_name": application_name(options, role),
        "connect_timeout": given.get("connect_timeout") or max(2, round(options.connect_timeout)),
        "keepalives_idle": given.get("keepalives_idle") or 30,
        "keepalives_interval": given.get("keepalives_interval") or 10,
        "keepalives_count": given.get("keepalives_count") or 3,
    }
    if replication:
        parameters["replication"] = "database"
        # First, so that a tcp_user_timeout in the configured options applies.
        limit = f"-c tcp_user_timeout={round(options.receive_timeout * 1000)}"
        parameters["options"] = f"{limit} {parameters['options']}"
    try:
        connection = psycopg.connect(**parameters, autocommit=True)
    except psycopg.OperationalError as refused:
        raise refusal(refused, "connect") from refused
    connection.prepare_threshold = None
    with (
        closed_on_failure(connection),
        TimeLimit(connection, options.connect_timeout),
        translated("connect"),
    ):
        if connection.info.server_version >= _TRANSACTION_TIMEOUT:
            # A setting of the role or the database would end long chunks and CREATE SLOT.
            connection.execute("SET transaction_timeout = 0")
        if not replication:
            # Some systems can't check it, and refuse any value but 0.
            with suppress(psycopg.errors.InvalidParameterValue):
                connection.execute(f"SET client_connection_check_interval = '{CHECK_CLIENT}'")
    return connection


@contextmanager
def closed_on_failure(connection: Connection) -> Iterator[None]:
    """Close the connection if the block fails."""
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
"""Texts of refusals: a refused connection has no SQLSTATE on the client's side."""
CONNECTION_ENDED = ("08", "57")
"""Classes of SQLSTATE: the connection failed, or an administrator ended it."""


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate psycopg's errors into this package's."""
    try:
        yield
    except psycopg.Error as error:
        raise refusal(error, doing) from error


def sever(connection: Connection) -> None:
    """Break a connection for which another thread waits: the wait ends with an error."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as one:
        one.shutdown(socket.SHUT_RDWR)


class TimeLimit:
    """Time limit of a block: after ``seconds`` its ``connection`` is cut.

    A proxy that stopped forwarding sends neither an answer nor the connection's end.
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
        """Lift the limit during the block; afterwards the time starts from zero."""
        self.__exit__()
        yield
        self.__enter__()

    def _lost(self) -> None:
        _log.warning("connection closed: no answer", waited_s=self._seconds)
        sever(self._connection)


def cancel(connection: Connection) -> None:
    """Cancel the connection's running statement; may be called from any thread."""
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
    if error.sqlstate is not None and not error.sqlstate.startswith(CONNECTION_ENDED):
        return SourceUnavailable(f"PostgreSQL answered with an error ({doing}): {text}")
    return SourceUnavailable(f"PostgreSQL can't be reached ({doing}): {text}")
