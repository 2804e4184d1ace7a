"""A replica that is filled by hand, and the changes that it is given."""

from collections.abc import Iterator, Sequence

import grpc
from hypothesis import strategies as st

from laredo_fanout.client import Changes, Handshake, Mode, SnapshotEnd, SnapshotRows
from laredo_fanout.client.table.replica import Difference, Replica
from laredo_model.column import Column
from laredo_model.position import Position
from tests.support.server.scripted_server import End, line

COLUMNS = (
    Column("id", "int8", ordinal=1, key_ordinal=1),
    Column("name", "text", ordinal=2),
)


def greeting(mode: Mode, columns: tuple[Column, ...] = COLUMNS) -> Handshake:
    return Handshake(mode, None, None, columns, 0, 0, 0, "", True)


def filled(
    rows: dict[bytes, bytes],
    *,
    columns: tuple[Column, ...] = COLUMNS,
    lookup_fields: Sequence[str] | None = None,
    indexes: dict[str, tuple[str, ...]] | None = None,
    position: int = 0x10,
) -> Replica:
    replica = Replica(lookup_fields, indexes or {})
    done(replica.begin_stream(greeting(Mode.FULL_SNAPSHOT, columns)))
    load(replica, rows, position)
    return replica


def load(replica: Replica, rows: dict[bytes, bytes], position: int) -> list[Difference]:
    replica.begin_snapshot()
    done(replica.add_rows(SnapshotRows(list(rows), list(rows.values()))))
    end = SnapshotEnd(Position(position), 5, len(rows), None, None)
    found = list(replica.show(replica.end_snapshot(end)))
    done(replica.free())
    return found


def done(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def rows_of(replica: Replica) -> dict[bytes, bytes]:
    return {key: line for part in replica.parts for key, line in part.items()}


Row = tuple[int, bytes, bytes]

Transaction = tuple[int, list[Row]]  # position, changes


def as_changes(
    transactions: Sequence[Transaction], first: int = 6, *, goes_on: bool = False
) -> Changes:
    rows = [row for _, changes in transactions for row in changes]
    return Changes(
        first,
        bytes(row[0] for row in rows),
        [row[1] for row in rows],
        [row[2] for row in rows],
        None,
        [len(changes) for _, changes in transactions],
        [position for position, _ in transactions],
        [0] * len(transactions),
        goes_on,
    )


keys = st.sampled_from([b"1", b"2", b"3"])


CUT = End(grpc.StatusCode.UNAVAILABLE)


def insert(number: int) -> tuple[int, bytes, bytes]:
    return (1, str(number).encode(), line(number, "x"))
