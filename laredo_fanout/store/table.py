"""What the store knows of each table: its definition, and the figures that change with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from struct import Struct
from typing import Any, NamedTuple

import orjson

from laredo_model import column
from laredo_model.column import Column


class Status(StrEnum):
    """Where a table's incarnation stands.

    COPYING   rows arrive from copy and stream; nothing is shown to clients
    LIVE      consistent; every change enters the journal
    CLOSED    its schema changed: shown as it was, until the incarnation that
              is copied beside it is published
    FAILED    ``error`` says why; nothing is shown
    """

    COPYING = "copying"
    LIVE = "live"
    CLOSED = "closed"
    FAILED = "failed"


class Leaf(NamedTuple):
    """A partition that brought rows, and of which no look at the catalog has said yet whether it
    still has them: ``oid``, the transaction that it was first shown with (32 bits; 0: only a copy
    has read it), and the last and the first position at which it is known to have been there."""

    oid: int
    xid: int
    position: int
    first: int = 0


class SuspectRange(NamedTuple):
    """Beyond ``start``, rows may be there that went with their partition, or lack: ``because``.

    It ends at ``end``, of ``end_time_us``, where what differed was put right. Until then ``end`` is
    0. Journal entries ``first`` to ``last`` turn the rows of ``start`` into those of ``end``; at
    the positions in between the rows aren't known to be the source's. ``again``: rows moved while
    what differs was looked for, so that it goes on after that.
    """

    start: int
    because: str
    first: int = 0
    last: int = 0
    end: int = 0
    end_time_us: int = 0
    again: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether what differs isn't put right yet."""
        return not self.end

    def hides(self, position: int) -> bool:
        """Whether the rows of this position aren't known to be the source's, and never will be."""
        return self.start < position < self.end


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One incarnation of one table. Change it with ``dataclasses.replace`` and ``put_table``.

    ``id`` is never used twice: a table that is copied anew gets another one,
    and ``incarnation`` counts them per name. ``identity`` is what the source
    calls the table's replica identity. ``copy`` holds whatever the source
    wants back after a restart (finished ranges, barrier token): JSON values.

    The store alone changes the rest. ``sequence`` is the newest entry's,
    ``oldest_sequence`` the oldest kept one's (sequence + 1 while there is
    none), ``oldest_time_us`` its commit time, ``floor`` the position from
    which the journal is complete; ``rows`` counts rows, ``generation``
    TRUNCATEs; ``space`` is where the rows lie; ``closed_at`` the position at
    which a CLOSED table stopped; up to ``verified`` the source is known not to
    have rewritten values in silence. ``leaves`` and ``doubts`` are of a
    partitioned table: partitions that no look has accounted for, and the stretches
    in which its rows may be wrong, of which only the newest may go on.
    """

    id: int
    incarnation: int
    schema: str
    name: str
    oid: int
    columns: tuple[Column, ...]
    status: Status = Status.COPYING
    identity: str = ""
    error: str = ""
    closed_at: int = 0
    copy: Mapping[str, Any] = field(default_factory=dict)

    sequence: int = 0
    oldest_sequence: int = 1
    oldest_time_us: int = 0
    floor: int = 0
    rows: int = 0
    generation: int = 0
    space: int = 0
    verified: int = 0
    leaves: tuple[Leaf, ...] = ()
    suspect_ranges: tuple[SuspectRange, ...] = ()

    def same_definition(self, other: "TableRecord") -> bool:
        """Whether at most the figures differ."""
        return with_figures(self, figures_to_bytes(other)) == other

    @property
    def qualified(self) -> str:
        """``schema.name``."""
        return f"{self.schema}.{self.name}"

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The names of the key's columns, in the key's order."""
        return tuple(each.name for each in column.key_columns(self.columns))

    @property
    def live(self) -> bool:
        """Whether changes enter the journal."""
        return self.status is Status.LIVE

    @property
    def shown(self) -> bool:
        """Whether clients see it."""
        return self.status in (Status.LIVE, Status.CLOSED)

    @property
    def suspect_range(self) -> SuspectRange | None:
        """The one that goes on: what differs is being put right."""
        newest = self.suspect_ranges[-1] if self.suspect_ranges else None
        return newest if newest is not None and newest.goes_on else None

    @property
    def boundary(self) -> int:
        """Up to where the rows are known to be the source's."""
        suspect_range = self.suspect_range
        return self.verified if suspect_range is None else min(self.verified, suspect_range.start)

    @property
    def entries(self) -> int:
        """How many entries the journal has."""
        return self.sequence + 1 - self.oldest_sequence


_FIGURES = Struct(">8Q")
_FIGURES_BEFORE_VERIFIED = 7 * 8


def figures_to_bytes(record: TableRecord) -> bytes:
    """The part that changes with nearly every transaction."""
    return _FIGURES.pack(
        record.sequence,
        record.oldest_sequence,
        record.oldest_time_us,
        record.floor,
        record.rows,
        record.generation,
        record.space,
        record.verified,
    )


def definition_to_bytes(record: TableRecord) -> bytes:
    """The part that seldom changes, as JSON."""
    return orjson.dumps(
        {
            "id": record.id,
            "incarnation": record.incarnation,
            "schema": record.schema,
            "name": record.name,
            "oid": record.oid,
            "columns": [each.to_json() for each in record.columns],
            "status": record.status.value,
            "identity": record.identity,
            "error": record.error,
            "closed_at": record.closed_at,
            "copy": dict(record.copy),
            "leaves": [list(each) for each in record.leaves],
            "doubts": [list(each) for each in record.suspect_ranges],
        }
    )


def from_bytes(definition: bytes, figures: bytes) -> TableRecord:
    """The record that the two parts make."""
    stored = orjson.loads(definition)
    record = TableRecord(
        id=stored["id"],
        incarnation=stored["incarnation"],
        schema=stored["schema"],
        name=stored["name"],
        oid=stored["oid"],
        columns=tuple(column.from_json(each) for each in stored["columns"]),
        status=Status(stored["status"]),
        identity=stored["identity"],
        error=stored["error"],
        closed_at=stored["closed_at"],
        copy=stored["copy"],
        # Absent from what older versions wrote.
        leaves=tuple(Leaf(*each) for each in stored.get("leaves", ())),
        suspect_ranges=tuple(SuspectRange(*each) for each in stored.get("doubts", ())),
    )
    return with_figures(record, figures)


def with_figures(record: TableRecord, figures: bytes) -> TableRecord:
    """``record`` with newer figures; those of an earlier release lack the last one."""
    if len(figures) == _FIGURES_BEFORE_VERIFIED:
        figures = figures + bytes(8)
    sequence, oldest, oldest_time, floor, rows, generation, space, verified = _FIGURES.unpack(
        figures
    )
    return replace(
        record,
        sequence=sequence,
        oldest_sequence=oldest,
        oldest_time_us=oldest_time,
        floor=floor,
        rows=rows,
        generation=generation,
        space=space,
        verified=verified,
    )
