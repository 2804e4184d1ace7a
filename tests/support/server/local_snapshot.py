"""A client's local snapshot of two rows."""

from pathlib import Path

from laredo_fanout.client import Filter
from laredo_fanout.client.table.local_snapshot import LocalSnapshot, SnapshotFile
from laredo_fanout.client.table.replica import ReplicaPosition
from laredo_model import position
from laredo_model.column import Column
from laredo_model.position import Position

PLACE = ReplicaPosition(Position(0x20), position.parse_history("1:2:3"), 77, 0x30, 4)

COLUMNS = (Column("id", "int8", ordinal=1, key_ordinal=1), Column("n", "text", ordinal=2))

SNAPSHOT = LocalSnapshot(PLACE, COLUMNS, [b"1", b"two\nlines"], [b'{"id":1}', b"{}"])


def at(path: Path, table: str = "public.users", filters: tuple[Filter, ...] = ()) -> SnapshotFile:
    return SnapshotFile(path / "cache", table, filters)
