"""A periodic snapshot's description: the small JSON file with its rows' file."""

from dataclasses import dataclass
from typing import Any

import orjson

from laredo_model import column
from laredo_model import position as position_
from laredo_model.column import Column

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """The description of one periodic snapshot: a table's rows at one position."""

    #: Its name among all tables' snapshots.
    snapshot_id: str
    table: str
    #: The incarnation of the table that its rows are of.
    table_id: int
    #: The newest journal entry in it.
    sequence: int
    position: int
    #: The history of its position; "" if the store didn't know.
    history: str
    rows: int
    #: The size of the file of rows.
    size_bytes: int
    #: That of the file of rows.
    sha256: str
    #: That of the rows (``laredo_model.checksum``).
    state_checksum: str
    #: Microseconds since 1970.
    created_at_us: int
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        """The name of its files, without extension."""
        return file_name(self.position, self.sequence)

    def to_bytes(self) -> bytes:
        """The bytes of the JSON file."""
        return orjson.dumps(
            {
                "format": FORMAT,
                "snapshot_id": self.snapshot_id,
                "table": self.table,
                "table_id": self.table_id,
                "sequence": self.sequence,
                "position": position_.text(self.position),
                "history": self.history,
                "rows": self.rows,
                "size_bytes": self.size_bytes,
                "sha256": self.sha256,
                "state_checksum": self.state_checksum,
                "created_at_us": self.created_at_us,
                "columns": [each.to_json() for each in self.columns],
            },
            option=orjson.OPT_INDENT_2,
        )


def from_bytes(stored: bytes) -> SnapshotInfo:
    """The info that ``to_bytes`` wrote.

    :raises ValueError: if it isn't one.
    """
    try:
        read: dict[str, Any] = orjson.loads(stored)
        if read["format"] != FORMAT:
            raise ValueError(f"format {read['format']}, this version knows {FORMAT}")
        return SnapshotInfo(
            snapshot_id=str(read["snapshot_id"]),
            table=str(read["table"]),
            table_id=int(read["table_id"]),
            sequence=int(read["sequence"]),
            position=position_.parse(read["position"]),
            history=str(read["history"]),
            rows=int(read["rows"]),
            size_bytes=int(read["size_bytes"]),
            sha256=str(read["sha256"]),
            state_checksum=str(read["state_checksum"]),
            created_at_us=int(read["created_at_us"]),
            columns=tuple(column.from_json(each) for each in read["columns"]),
        )
    except (KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(f"{type(wrong).__name__}: {wrong}") from wrong


def file_name(position: int, sequence: int) -> str:
    """The name of a snapshot's files, without extension."""
    return f"{position_.object_name(position)}-{sequence}"


def snapshot_id(table: str, position: int, sequence: int) -> str:
    """The id of a snapshot among all tables' snapshots."""
    return f"{table}@{file_name(position, sequence)}"


def table_of(snapshot_id: str) -> str:
    """The table whose snapshot this id names; "" if it names none."""
    return snapshot_id.rpartition("@")[0]
