"""The reader of one chunk of a table, and the partitions that the chunk may have read.

COPY (SELECT key, line) in binary: there are no escapes to decode
(https://www.postgresql.org/docs/current/sql-copy.html, Binary Format). The loop
that reads the stream calls it too, because threads that share the interpreter's
lock cost more than they save.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import orjson
import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

from laredo_fanout.pg_catalog import partitions
from laredo_fanout.postgres.replication_stream import FLUSH_S, SocketReader, flush
from laredo_model import value_sql

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.store.transaction import Transaction

# The partitions that a chunk of a copy may have read, named in a row before the chunk's own rows.
#
# A filled table may be attached and detached again between two catalog snapshots, without a change
# through the root. It is in neither the stream nor the catalog, but a chunk that reads the root in
# between has its rows. So each chunk names the leaves that it may read, before its rows. Leaves
# that the copy's catalog snapshot lacks are kept with the table's record, like leaves that brought
# rows in the stream (AnnouncedLeaves), before the chunk's first row is written: a chunk that is cut
# off leaves rows too.
#
# The SELECT is planned, and has locked each partition that it reads, before pg_partition_tree is
# called: DETACH and DROP need AccessExclusiveLock on a partition before it leaves pg_inherits, so
# none of them can be missing. pg_partition_tree reads the present pg_inherits, not that of the
# transaction's snapshot: it has a partition that is attached after the snapshot was taken and
# before the SELECT is planned. DETACH CONCURRENTLY hides a partition from both, by the SELECT's
# snapshot.


class ChunkLeaves(NamedTuple):
    """The leaf partitions that a chunk may read."""

    position: int
    """A WAL position that was reached when the chunk began to read."""
    leaves: Sequence[int]
    """The partitions' oids."""


_FRONT = b"\0\2\xff\xff\xff\xff"
"""Start of the row that names the leaves, in COPY's binary format: two fields, of which the first,
the key, is NULL. No row of a table has such a key."""
_LENGTH_BYTES = 4


def with_leaves(table: SourceTable, rows: str) -> str:
    """The SELECT ``rows`` of key and line, after the row that names its leaves.

    The rows of a UNION ALL come in order, unless parallel workers share it, which the CTE prevents.
    OFFSET lets workers share the second half.
    """
    return (
        "WITH tree AS MATERIALIZED (SELECT json_build_array("
        "(pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8,"
        " coalesce(json_agg(relid::oid::int8), '[]'::json)) AS leaves"
        f" FROM pg_partition_tree({table.oid}::oid::regclass) WHERE isleaf)"
        f" SELECT NULL::text AS key, leaves AS line FROM tree UNION ALL ({rows} OFFSET 0)"
    )


def parse(row: bytes) -> ChunkLeaves | None:
    """The leaves that this row of COPY's binary format names; None for a row of the table."""
    if not row.startswith(_FRONT):
        return None
    position, oids = orjson.loads(row[len(_FRONT) + _LENGTH_BYTES :])
    return ChunkLeaves(position, oids)


def keep(found: ChunkLeaves, known: Set[int], table_id: int, transaction: Transaction) -> None:
    """Keep leaves with the table's record until a catalog snapshot accounts for them.

    ``known`` are those of the copy's catalog snapshot, which aren't kept.
    """
    new = [
        partitions.read_by_a_chunk(oid, found.position) for oid in found.leaves if oid not in known
    ]
    if new:
        record = transaction.tables[table_id]
        transaction.set_leaves(record.id, partitions.merged(record.leaves, new))


_READ_BYTES = 1 << 20

_HEADER = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = 19
_TRAILER = b"\xff\xff"


class Progress(Enum):
    """Progress of the answer to one statement."""

    WAITING = auto()
    READING = auto()
    DONE = auto()


class ReadFailed(Exception):
    """PostgreSQL refused to read a chunk, or the connection was cut (``connection_lost``)."""

    def __init__(self, message: str, sqlstate: str, *, connection_lost: bool) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.connection_lost = connection_lost


def statement(table: SourceTable, condition: str) -> bytes:
    """SQL that reads the rows with ``condition``, in a transaction with a snapshot of its own.

    The lock is taken first, in a statement of its own: COPY takes its snapshot before
    it waits for a lock, and to a snapshot from before an ALTER TABLE that rewrites
    the table, the new file is empty.
    """
    filters = [f"({part})" for part in (condition, _row_filter(table)) if part]
    rows = value_sql.lines_sql(
        table.schema,
        table.name,
        table.selected,
        " AND ".join(filters),
        key=table.selected_key,
        only=not table.partitioned,
    )
    if table.partitioned:
        rows = with_leaves(table, rows)
    return (
        f"BEGIN READ ONLY; LOCK TABLE {table.rows_sql} IN ACCESS SHARE MODE;"
        f" COPY ({rows}) TO STDOUT (FORMAT binary); COMMIT"
    ).encode()


def append_only_statement(table: SourceTable) -> bytes:
    """SQL that reads all rows of a table without a key, and sends its snapshot first.

    The keys are empty.
    """
    rows = value_sql.lines_sql(
        table.schema,
        table.name,
        table.selected,
        _row_filter(table),
        only=not table.partitioned,
    )
    rows = f"SELECT ''::text AS key, line FROM ({rows}) q"
    if table.partitioned:
        rows = with_leaves(table, rows)
    return (
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
        f" LOCK TABLE {table.rows_sql} IN ACCESS SHARE MODE;"
        " SELECT pg_current_snapshot()::text;"
        f" COPY ({rows}) TO STDOUT (FORMAT binary); COMMIT"
    ).encode()


class CopyReader:
    """A connection that reads one chunk after another, about ``read_bytes`` at a time."""

    def __init__(self, connection: Connection, read_bytes: int = _READ_BYTES) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self._socket_reader = SocketReader(self._pgconn, min(_READ_BYTES, read_bytes))
        self._copying = False
        self._awaits_leaves = False
        self._failure: ReadFailed | None = None
        self.snapshot: str | None = None
        """The snapshot with which an append-only table is read, once it has arrived."""
        self.leaves: ChunkLeaves | None = None
        """The leaves of a partitioned table's chunk, which arrive before its first row."""
        self.progress = Progress.DONE

    def fileno(self) -> int:
        """The socket's descriptor, to wait for."""
        return self._pgconn.socket

    def begin(self, command: bytes, *, with_leaves: bool = False) -> None:
        """Send a result of :func:`statement`, with ``with_leaves`` for a partitioned table.

        :raises ReadFailed: if the connection was cut, or PostgreSQL doesn't read it.
        """
        self._copying = False
        self._awaits_leaves = with_leaves
        self._failure = None
        self.snapshot = self.leaves = None
        self.progress = Progress.WAITING
        try:
            self._pgconn.send_query(command)
            is_sent = flush(self._pgconn)
        except psycopg.OperationalError as cut:
            raise self._lost(str(cut)) from cut
        if not is_sent:
            raise self._lost(f"PostgreSQL read nothing for {FLUSH_S:.0f} s")

    def read(self) -> tuple[list[bytes], list[bytes]]:
        """Return the keys and lines that have arrived, and set ``progress``.

        libpq's buffer is emptied: no socket would wake the loop for rows that stay in it.

        :raises ReadFailed: if PostgreSQL refused; the reader can be used again unless the
            connection is lost.
        """
        keys: list[bytes] = []
        lines: list[bytes] = []
        try:
            self._socket_reader.read()
            if not self._copying:
                self._next_result()
            if self._copying and self._awaits_leaves:
                self._take_leaves()
            if self._copying and not self._awaits_leaves:
                self._take(keys, lines)
        except psycopg.OperationalError as cut:
            raise self._lost(str(cut)) from cut
        if self.progress is Progress.DONE and self._failure is not None:
            raise self._failure
        return keys, lines

    def close(self) -> None:
        """Close the connection, which ends the chunk."""
        self._connection.close()

    def _take_leaves(self) -> None:
        """Take the row that names the leaves, if it has arrived."""
        while True:
            size, data = self._pgconn.get_copy_data(1)
            if size == -1:
                self._copying = False
                self._next_result()
            if size <= 0:
                return
            row = _without_header(data.tobytes())
            if not row:
                continue
            self.leaves = parse(row)
            if self.leaves is None:
                raise ReadFailed(
                    "a row arrived before the row that names its partitions",
                    "XX000",
                    connection_lost=False,
                )
            self._awaits_leaves = False
            return

    def _take(self, keys: list[bytes], lines: list[bytes]) -> None:
        get = self._pgconn.get_copy_data
        add_key, add_line = keys.append, lines.append
        from_bytes = int.from_bytes
        while True:
            size, data = get(1)
            if size <= 0:
                break
            row = data.tobytes()
            if row[0]:
                row = _without_header(row)
                if not row:
                    continue
            end = 6 + from_bytes(row[2:6], "big")
            add_key(row[6:end])
            add_line(row[end + 4 :])
        if size == -1:
            self._copying = False
            self._next_result()

    def _next_result(self) -> None:
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                self.progress = Progress.DONE
                return
            if result.status == ExecStatus.TUPLES_OK and result.ntuples:
                self.snapshot = (result.get_value(0, 0) or b"").decode()
            if result.status == ExecStatus.COPY_OUT:
                self._copying = True
                self.progress = Progress.READING
                return
            if result.status == ExecStatus.FATAL_ERROR and self._failure is None:
                self._failure = self._refused(result)

    def _refused(self, result: psycopg.pq.abc.PGresult) -> ReadFailed:
        state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        text = (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
        return ReadFailed(text, state, connection_lost=self._is_lost() or state[:2] == "57")

    def _lost(self, text: str) -> ReadFailed:
        self.progress = Progress.DONE
        return ReadFailed(" ".join(text.split()), "08006", connection_lost=True)

    def _is_lost(self) -> bool:
        return self._pgconn.status != ConnStatus.OK


def _without_header(row: bytes) -> bytes:
    """The row without COPY's header; b"" for the trailer, which has no row."""
    if row.startswith(_HEADER):
        row = row[_HEADER_BYTES:]
    return b"" if row[:2] == _TRAILER else row


def _row_filter(table: SourceTable) -> str:
    return (table.published and table.published.row_filter) or ""
