"""Tables without a key, configured as append-only: rows are only ever added.

They are copied by one reading with one snapshot, and of the stream only those transactions count
that the snapshot doesn't show. They are in a publication of their own, which publishes inserts
and truncates alone: in the other one the application's UPDATE and DELETE would fail.
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


class Snapshot(NamedTuple):
    """What a reading could see.

    https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT-PARTS
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    def shows(self, xid: int) -> bool:
        """Whether it shows what this transaction, which was committed, did.

        ``xid`` is the stream's: its lower 32 bits, of a transaction that is never
        further than 2^31 from the snapshot.
        """
        whole = self.xmax - self.xmax % _EPOCH + xid
        if whole - self.xmax > _EPOCH // 2:
            whole -= _EPOCH
        elif self.xmax - whole > _EPOCH // 2:
            whole += _EPOCH
        return whole < self.xmin or (whole < self.xmax and whole not in self.running)


def snapshot(text: str) -> Snapshot:
    """What pg_current_snapshot() printed."""
    xmin, xmax, running = text.split(":")
    return Snapshot(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))


class Intake:
    """Which streamed transactions a table takes.

    Until the snapshot is known none is: each must be in the snapshot then. One that
    is streamed although not everybody sees it yet makes that another one is taken.
    """

    def __init__(self, *, live: bool) -> None:
        self.live = live
        """The copy is done: every transaction is taken from here on."""
        self._left_out: set[int] = set()
        self._snapshot: Snapshot | None = None

    def takes(self, xid: int) -> bool:
        """Whether the changes of this transaction are to be applied."""
        if self.live:
            return True
        if self._snapshot is None:
            self._left_out.add(xid)
            return False
        return not self._snapshot.shows(xid)

    def read_at(self, taken: Snapshot) -> bool:
        """The copy reads at this snapshot; False: it lacks what was left out, take another."""
        if not all(map(taken.shows, self._left_out)):
            return False
        self._snapshot = taken
        self._left_out.clear()
        return True

    def go_live(self) -> None:
        """The copy is done, and the stream beyond all that it saw."""
        self.live = True


class Gate:
    """Whether a stream that is begun now finds the publication wherever it decodes.

    What a transaction did before the publication was made is decoded as if it weren't
    there, which fails the stream up to PostgreSQL 17. So whoever ran then must be done.
    """

    def __init__(self) -> None:
        self._made_before: int | None = None

    def is_open(self, connection: Connection) -> bool:
        """Ask with a connection to which the publication is visible.

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
    """The publication that the stream must have as well; None while no table is taken from it."""
    for record in records:
        kept = shape.from_json(record.copy)
        if (
            record.status in (Status.COPYING, Status.LIVE)
            and kept is not None
            and kept[0].append_only
        ):
            return options.publication.appends.name
    return None
