"""Tables without a key, configured as append-only: rows are only ever added.

They are copied by one COPY with one snapshot, and of the stream only those transactions are
applied that the snapshot doesn't show. They are in a publication of their own, which publishes
inserts and truncates alone: in the other one the application's UPDATE and DELETE would fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from laredo_fanout.catalog import shape
from laredo_fanout.store.table import Status

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions
    from laredo_fanout.store.table import TableRecord

_EPOCH = 1 << 32


class XidSnapshot(NamedTuple):
    """A snapshot of PostgreSQL's, as pg_current_snapshot() describes it.

    https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT-PARTS
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    def shows(self, xid: int) -> bool:
        """True if the snapshot sees the changes of this committed transaction.

        ``xid`` is the stream's: the lower 32 bits of a transaction that is never further than 2^31
        from the snapshot.
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
    """Decides which streamed transactions are applied to an append-only table.

    Until the copy's snapshot is known none is, and each of them must be visible to that snapshot.
    Where one isn't (its commit was streamed before it was visible), another snapshot is taken.
    """

    def __init__(self, *, live: bool) -> None:
        self.live = live
        """True once the copy is done: every transaction is applied from here on."""
        self._left_out: set[int] = set()
        self._snapshot: XidSnapshot | None = None

    def takes(self, xid: int) -> bool:
        """True if the changes of this transaction are applied."""
        if self.live:
            return True
        if self._snapshot is None:
            self._left_out.add(xid)
            return False
        return not self._snapshot.shows(xid)

    def read_at(self, taken: XidSnapshot) -> bool:
        """Use this snapshot of the copy; False: it lacks a transaction left out, take another."""
        if not all(map(taken.shows, self._left_out)):
            return False
        self._snapshot = taken
        self._left_out.clear()
        return True

    def go_live(self) -> None:
        """Apply everything from here on: the stream has passed all that the copy saw."""
        self.live = True


class PublicationGate:
    """Waits until a new stream finds the append-only publication in every transaction it decodes.

    What a transaction did before the publication was made is decoded as if it weren't
    there, which fails the stream up to PostgreSQL 17. So every transaction that ran then must
    have ended.
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
    """The append-only publication, if a copying or live table needs the stream to have it."""
    for record in records:
        kept = shape.from_json(record.copy)
        if (
            record.status in (Status.COPYING, Status.LIVE)
            and kept is not None
            and kept[0].append_only
        ):
            return options.publication.appends.name
    return None
