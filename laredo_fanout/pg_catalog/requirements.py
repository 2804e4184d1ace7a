"""Requirements for replication of a server and of its tables, each with the cure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from laredo_fanout.errors import (
    IdentityMissing,
    SelectDenied,
    SourceUnfit,
    TableLocked,
    TableMissing,
    TableRefused,
    TableUnfit,
)
from laredo_fanout.pg_catalog import shape
from laredo_fanout.postgres.connections import RightsMissing, SourceError
from laredo_fanout.store.table import Status
from laredo_model.value_sql import identifier

if TYPE_CHECKING:
    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions, SourceTableOptions
    from laredo_fanout.store.table import TableRecord

_OLDEST_VERSION = 140000

_SETTINGS = """
SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int,
    current_setting('max_wal_senders')::int, pg_is_in_recovery(),
    current_user::text, r.rolreplication OR r.rolsuper OR EXISTS (
        SELECT FROM pg_roles m WHERE m.rolname IN ('rds_replication', 'rds_superuser')
            AND pg_has_role(current_user, m.oid, 'member')),
    current_setting('server_encoding')
FROM pg_roles r WHERE r.rolname = current_user
"""

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "c": "a composite type",
    "t": "a TOAST table",
}


def server_problems(connection: Connection) -> list[SourceError]:
    """The problems of the server's version and settings, and of the role's rights.

    :raises psycopg.Error: if the settings can't be read.
    """
    problems: list[SourceError] = []
    version = connection.info.server_version
    if version < _OLDEST_VERSION:
        problems.append(
            SourceUnfit(f"PostgreSQL {version // 10000} is too old: 14 or later is needed")
        )
    row = connection.execute(_SETTINGS).fetchone()
    if row is None:
        return problems
    wal_level, slots, senders, standby, role, may_replicate, encoding = row
    if encoding != "UTF8":
        problems.append(
            SourceUnfit(
                f"the database is encoded in {encoding}, UTF8 is needed: create one WITH ENCODING"
                " 'UTF8' TEMPLATE template0, and move the data with pg_dump and pg_restore"
            )
        )
    if wal_level != "logical":
        problems.append(
            SourceUnfit(
                f"wal_level is {wal_level}, logical is needed: ALTER SYSTEM SET wal_level ="
                " 'logical'; then restart PostgreSQL"
            )
        )
    for name, number in (("max_replication_slots", slots), ("max_wal_senders", senders)):
        if number == 0:
            problems.append(
                SourceUnfit(f"{name} is 0: ALTER SYSTEM SET {name} = 10; then restart PostgreSQL")
            )
    if standby:
        problems.append(
            SourceUnfit(
                "the server is a standby, which can't write messages to the WAL: connect to the"
                " primary"
            )
        )
    if not may_replicate:
        problems.append(
            RightsMissing(
                f"role {role} may not replicate: ALTER ROLE {identifier(role)} REPLICATION;"
            )
        )
    return problems


def table_problem(
    wanted: SourceTableOptions, table: SourceTable | None, role: str
) -> TableRefused | None:
    """The reason why this table can't be replicated, or None.

    None also means that its membership in a publication makes no statement of the application fail.
    """
    name = wanted.qualified
    if table is None:
        return TableMissing(
            name,
            "it doesn't exist in the database",
            f"create it, or {_leave_out(wanted)} (names are case-sensitive)",
        )
    identity = _changes_published if wanted.append_only else _identity_missing
    return (
        _unfit(table, wanted)
        or identity(table, name)
        or locked(table, name)
        or _select_denied(table, name, role)
    )


def _leave_out(wanted: SourceTableOptions) -> str:
    """The cure for a table that can't be followed: leave it out."""
    if wanted.by_pattern:
        return f"exclude {wanted.qualified} from the pattern that matches it"
    return f"take {wanted.qualified} out of tables"


def _unfit(table: SourceTable, wanted: SourceTableOptions) -> TableRefused | None:  # noqa: PLR0911
    name = wanted.qualified
    if table.hidden_by is not None:
        cure = f"take {name} out of tables, and list {table.hidden_by}"
        if wanted.by_pattern:
            cure = (
                "patterns don't match partitions, so it is left out from the next check on; list"
                f" {table.hidden_by}, unless a pattern matches it"
            )
        return TableUnfit(
            name,
            f"it is a partition of {table.hidden_by}, which is published instead",
            cure,
        )
    if table.kind not in "rp":
        kind = _KINDS.get(table.kind, f"of kind {table.kind!r}")
        return TableUnfit(name, f"it is {kind}, not a table", _leave_out(wanted))
    if table.schema in ("pg_catalog", "information_schema"):
        return TableUnfit(name, "it is a system table", _leave_out(wanted))
    if table.persistence == "u":
        return TableUnfit(
            name,
            "it is unlogged, so its changes never reach the WAL",
            f"ALTER TABLE {table.sql_name} SET LOGGED;",
        )
    if table.persistence == "t":
        return TableUnfit(name, "it is temporary", _leave_out(wanted))
    if not table.columns:
        return TableUnfit(name, "it has no columns", f"ALTER TABLE {table.sql_name} ADD COLUMN ...")
    return _unfit_partition(table, name)


def _unfit_partition(table: SourceTable, name: str) -> TableRefused | None:
    for each in table.partitions:
        detach = f"detach it: ALTER TABLE {table.sql_name} DETACH PARTITION {each.name};"
        if each.kind not in "rp":
            kind = _KINDS.get(each.kind, f"of kind {each.kind!r}")
            return TableUnfit(name, f"its partition {each.name} is {kind}", detach)
        if each.persistence != "p":
            cure = f"ALTER TABLE {each.name} SET LOGGED;" if each.persistence == "u" else detach
            return TableUnfit(name, f"its partition {each.name} is unlogged or temporary", cure)
    return None


def _changes_published(table: SourceTable, name: str) -> TableRefused | None:
    if not table.changes_published:
        return None
    return IdentityMissing(
        name,
        "it is append_only, but its updates and deletes are published",
        "drop it from publication.name's publication (ALTER PUBLICATION ... DROP TABLE), which"
        " must not be FOR ALL TABLES",
    )


def locked(table: SourceTable, name: str) -> TableRefused | None:
    """The reason why nothing is known about the table for now, or None."""
    if table.published is None or not table.published.filter_locked:
        return None
    return TableLocked(
        name,
        "its row filter can't be read, because another session locks the table",
        "the next catalog check tries again",
    )


def _identity_missing(table: SourceTable, name: str) -> TableRefused | None:
    problem = "it has no usable replica identity, so UPDATE and DELETE would fail once published"
    if not table.key:
        if table.replica_identity == "f":
            problem = "with REPLICA IDENTITY FULL and no unique key its rows aren't distinguishable"
        elif table.replica_identity == "n":
            problem = f"REPLICA IDENTITY NOTHING: {problem}"
        return IdentityMissing(name, problem, _identity_cure(table))
    streamed = {column.name for column in table.columns}
    hidden = [column for column in table.key if column not in streamed]
    if hidden and table.generated.issuperset(hidden):
        return IdentityMissing(
            name,
            f"its key column {', '.join(hidden)} is generated, and the publication leaves it out",
            "on PostgreSQL 18 or later ALTER PUBLICATION ... SET (publish_generated_columns ="
            f" stored); or ALTER TABLE {table.sql_name} REPLICA IDENTITY USING INDEX with an index"
            " of columns that aren't generated",
        )
    if hidden:
        return IdentityMissing(
            name,
            f"the publication's column list lacks the key column {', '.join(hidden)}",
            "add it to the list, or publish all columns",
        )
    return _partition_without_identity(table, name)


def _partition_without_identity(table: SourceTable, name: str) -> TableRefused | None:
    """ALTER TABLE ... REPLICA IDENTITY of the root doesn't reach its partitions."""
    for each in table.partitions:
        if each.holds_rows and not each.identity.issuperset(table.key):
            return IdentityMissing(
                name,
                f"the replica identity of its partition {each.name} lacks its key"
                f" ({', '.join(table.key)})",
                f"ALTER TABLE {each.name} REPLICA IDENTITY"
                f" {'DEFAULT' if table.replica_identity == 'd' else 'FULL'};",
            )
    return None


def _identity_cure(table: SourceTable) -> str:
    usable = [index for index in table.indexes if index.whole and index.immediate]
    if table.replica_identity in "ni" and any(index.primary for index in usable):
        return f"ALTER TABLE {table.sql_name} REPLICA IDENTITY DEFAULT;"
    for index in usable:
        if table.not_null.issuperset(index.columns):
            return (
                f"ALTER TABLE {table.sql_name} REPLICA IDENTITY USING INDEX"
                f" {identifier(index.name)};"
            )
    return (
        f"ALTER TABLE {table.sql_name} ADD PRIMARY KEY (...); or, if rows are only ever inserted,"
        " set append_only = true for it"
    )


def _select_denied(table: SourceTable, name: str, role: str) -> TableRefused | None:
    if not table.may_select:
        return SelectDenied(
            name,
            f"role {role} may not read it",
            f"GRANT USAGE ON SCHEMA {identifier(table.schema)} TO {identifier(role)};"
            f" GRANT SELECT ON {table.sql_name} TO {identifier(role)};",
        )
    if table.row_security:
        return SelectDenied(
            name,
            f"row-level security hides rows from role {role}",
            f"ALTER ROLE {identifier(role)} BYPASSRLS;",
        )
    return None


# Append-only tables, which need no key: rows are only inserted.
#
# One COPY with one snapshot copies the table, and only those transactions of the stream are applied
# that the snapshot doesn't show. These tables have a publication of their own, which publishes
# inserts and truncates alone: in the other one the application's UPDATE and DELETE would fail.

_EPOCH = 1 << 32
_BLOCK_BYTES = (1 << 16) // 8


class XidSnapshot(NamedTuple):
    """A snapshot, as pg_current_snapshot() describes it.

    https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT-PARTS
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    def shows(self, xid: int) -> bool:
        """True if the snapshot sees the changes of this committed transaction.

        ``xid`` is the lower 32 bits, as in the stream, of an id at most 2^31 from the snapshot.
        """
        whole = self.xmax - self.xmax % _EPOCH + xid
        if whole - self.xmax > _EPOCH // 2:
            whole -= _EPOCH
        elif self.xmax - whole > _EPOCH // 2:
            whole += _EPOCH
        return whole < self.xmin or (whole < self.xmax and whole not in self.running)


def snapshot(text: str) -> XidSnapshot:
    """Parse the output of pg_current_snapshot()."""
    xmin, xmax, running = text.split(":")
    return XidSnapshot(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))


class TransactionFilter:
    """Decision which streamed transactions are applied to an append-only table.

    No transaction is applied before the copy's snapshot is known, and the snapshot must show all of
    these. If it doesn't show one (its commit was streamed before it was visible), another snapshot
    is taken.
    """

    def __init__(self, *, live: bool) -> None:
        self.live = live
        """True once the copy is done, from which on every transaction is applied."""
        self._left_out: dict[int, bytearray] = {}
        """Transactions that were not applied, a bit each; by the upper 16 bits of their ids. A copy
        may wait for hours, and a set would grow by many bytes with each transaction."""
        self._newest: int | None = None
        """The newest of them."""
        self._snapshot: XidSnapshot | None = None

    def takes(self, xid: int) -> bool:
        """True if the changes of this transaction are applied."""
        if self.live:
            return True
        if self._snapshot is None:
            self._leave_out(xid)
            return False
        return not self._snapshot.shows(xid)

    def read_at(self, taken: XidSnapshot) -> bool:
        """Use this snapshot for the copy; False if it doesn't show a transaction that was left out:
        take another one."""
        if self._newest is not None and not taken.shows(self._newest):
            return False
        # It shows all that are older than one that it shows, but for those that run.
        if any(map(self._is_left_out, taken.running)):
            return False
        self._snapshot = taken
        self._left_out, self._newest = {}, None
        return True

    def _leave_out(self, xid: int) -> None:
        block = xid >> 16
        if block not in self._left_out:
            self._left_out[block] = bytearray(_BLOCK_BYTES)
        self._left_out[block][(xid >> 3) % _BLOCK_BYTES] |= 1 << xid % 8
        if self._newest is None or (xid - self._newest) % _EPOCH < _EPOCH // 2:
            self._newest = xid

    def _is_left_out(self, xid: int) -> bool:
        bits = self._left_out.get(xid % _EPOCH >> 16)
        return bits is not None and bool(bits[(xid >> 3) % _BLOCK_BYTES] >> xid % 8 & 1)

    def go_live(self) -> None:
        """Apply every transaction from here on: the stream has passed the copy's snapshot."""
        self.live = True


class PublicationGate:
    """Gate that opens when a new stream would find the append-only publication everywhere.

    The changes that a transaction made before the publication's creation are decoded without the
    publication, which is an error up to PostgreSQL 17. So every transaction that ran then must have
    ended.
    """

    def __init__(self) -> None:
        self._made_before: int | None = None

    def is_open(self, connection: Connection) -> bool:
        """True once the transactions that began before the publication have ended.

        The connection must see the publication.

        :raises psycopg.Error: if the connection is cut.
        """
        row = connection.execute(
            "SELECT pg_snapshot_xmin(s)::text, pg_snapshot_xmax(s)::text"
            " FROM pg_current_snapshot() s"
        ).fetchone()
        assert row is not None
        if self._made_before is None:
            self._made_before = int(row[1])
        return int(row[0]) >= self._made_before


def streamed(options: SourceOptions, records: Iterable[TableRecord]) -> str | None:
    """The name of the append-only publication, if a copying or live table needs it."""
    for record in records:
        kept = shape.from_json(record.copy)
        if (
            record.status in (Status.COPYING, Status.LIVE)
            and kept is not None
            and kept[0].append_only
        ):
            return options.publication.appends.name
    return None
