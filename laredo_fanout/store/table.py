"""The record of a table in the store: its definition, figures and suspect ranges."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from struct import Struct
from typing import Any, NamedTuple

import orjson

from laredo_model import column
from laredo_model.column import Column


class Status(StrEnum):
    """State of a table's incarnation.

    COPYING   rows arrive from copy and stream; clients can't read it
    LIVE      consistent; every change enters the journal
    CLOSED    its schema changed: clients read it unchanged until the next
              incarnation, which is being copied, is live
    FAILED    ``error`` has the reason; clients can't read it
    """

    COPYING = "copying"
    LIVE = "live"
    CLOSED = "closed"
    FAILED = "failed"


class Leaf(NamedTuple):
    """A partition that brought rows, and that no catalog snapshot has accounted for yet."""

    #: The partition's oid.
    oid: int
    #: 32-bit xid of the transaction that first brought rows of it; 0 if only a copy has read it.
    xid: int
    #: The last position at which the partition is known to have existed.
    position: int
    #: The first such position.
    first: int = 0


class SuspectRange(NamedTuple):
    """Positions at which a partitioned table's rows may be wrong: some were lost with their
    partition, or are missing."""

    #: The last position before the range, at which the rows are right.
    start: int
    #: The reason for the suspicion.
    because: str
    #: The first of the journal entries that turn the rows of ``start`` into those of ``end``.
    first: int = 0
    #: The last of these entries.
    last: int = 0
    #: The position at which the differences were repaired; 0 until then.
    end: int = 0
    #: The commit time of ``end``, microseconds since 1970.
    end_time_us: int = 0
    #: True if rows moved during the re-copy, so that another one follows.
    again: bool = False
    #: In a relay: the rows between this position and ``end`` were never here; 0 if they were.
    unseen_after: int = 0

    @property
    def goes_on(self) -> bool:
        """True if the differences aren't repaired yet."""
        return not self.end

    def hides(self, position: int) -> bool:
        """True if the rows at this position may differ from the source's, for good."""
        return self.start < position < self.end

    def skips(self, position: int) -> bool:
        """True if the rows at this position were never here.

        The entries of the range can't be applied to them.
        """
        return 0 < self.unseen_after < position < self.end


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One incarnation of one table. Change it with ``dataclasses.replace`` and ``put_table``.

    The store alone changes the fields from ``sequence`` on.
    """

    #: A number that is never used again: a table that is copied again gets another one.
    id: int
    #: Number of the incarnation among those of one name.
    incarnation: int
    #: The table's schema.
    schema: str
    #: The table's name, without the schema.
    name: str
    #: The table's oid in PostgreSQL.
    oid: int
    #: The columns, in the order of the line.
    columns: tuple[Column, ...]
    #: State of the incarnation.
    status: Status = Status.COPYING
    #: The replica identity, in the source's words.
    identity: str = ""
    #: The reason if the incarnation FAILED.
    error: str = ""
    #: Known damage on disk to the stored rows; empty if none is known.
    damage: str = ""
    #: The last position of a CLOSED incarnation.
    closed_at: int = 0
    #: JSON values that the copy needs after a restart (finished ranges, barrier token).
    copy: Mapping[str, Any] = field(default_factory=dict)

    #: Sequence of the newest journal entry.
    sequence: int = 0
    #: Sequence of the oldest journal entry; sequence + 1 while there is none.
    oldest_sequence: int = 1
    #: Commit time of the oldest journal entry.
    oldest_time_us: int = 0
    #: The position from which the journal is complete.
    floor: int = 0
    #: Number of rows.
    rows: int = 0
    #: Number of TRUNCATEs so far.
    generation: int = 0
    #: The number that prefixes the keys of the rows.
    space: int = 0
    #: The sum of the rows' seals, modulo 2^64, with which the rows on disk are compared.
    checksum: int = 0
    #: The position up to which silent DDL is known to have rewritten no values.
    verified: int = 0
    #: In a relay: the position of the rows; 0 if it is the store's position.
    position: int = 0
    #: Of a partitioned table: partitions that no catalog snapshot has accounted for.
    leaves: tuple[Leaf, ...] = ()
    #: Of a partitioned table: positions at which its rows may be wrong. Only the newest may go on.
    suspect_ranges: tuple[SuspectRange, ...] = ()

    def same_definition(self, other: "TableRecord") -> bool:
        """True if only the figures differ, or nothing."""
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
        """True if changes enter the journal."""
        return self.status is Status.LIVE

    @property
    def shown(self) -> bool:
        """True if clients can read it."""
        return self.status in (Status.LIVE, Status.CLOSED)

    @property
    def suspect_range(self) -> SuspectRange | None:
        """The suspect range that goes on, whose differences are being repaired; None for none."""
        newest = self.suspect_ranges[-1] if self.suspect_ranges else None
        return newest if newest is not None and newest.goes_on else None

    @property
    def boundary(self) -> int:
        """Last position up to which the rows are known to be the source's."""
        suspect_range = self.suspect_range
        return self.verified if suspect_range is None else min(self.verified, suspect_range.start)

    @property
    def entries(self) -> int:
        """Number of the journal's entries."""
        return self.sequence + 1 - self.oldest_sequence


_FIGURES = Struct(">10Q")


def figures_to_bytes(record: TableRecord) -> bytes:
    """The part of a record that changes with nearly every transaction."""
    return _FIGURES.pack(
        record.sequence,
        record.oldest_sequence,
        record.oldest_time_us,
        record.floor,
        record.rows,
        record.generation,
        record.space,
        record.checksum,
        record.verified,
        record.position,
    )


def definition_to_bytes(record: TableRecord) -> bytes:
    """The part of a record that seldom changes, as JSON."""
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
            "damage": record.damage,
            "closed_at": record.closed_at,
            "copy": dict(record.copy),
            "leaves": [list(each) for each in record.leaves],
            "suspect_ranges": [list(each) for each in record.suspect_ranges],
        }
    )


def from_bytes(definition: bytes, figures: bytes) -> TableRecord:
    """Parse the two parts of a record."""
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
        damage=stored["damage"],
        closed_at=stored["closed_at"],
        copy=stored["copy"],
        leaves=tuple(Leaf(*each) for each in stored["leaves"]),
        suspect_ranges=tuple(SuspectRange(*each) for each in stored["suspect_ranges"]),
    )
    return with_figures(record, figures)


def with_figures(record: TableRecord, figures: bytes) -> TableRecord:
    """``record`` with newer figures."""
    sequence, oldest, oldest_time, floor, rows, *rest = _FIGURES.unpack(figures)
    generation, space, checksum, verified, position = rest
    return replace(
        record,
        sequence=sequence,
        oldest_sequence=oldest,
        oldest_time_us=oldest_time,
        floor=floor,
        rows=rows,
        generation=generation,
        space=space,
        checksum=checksum,
        verified=verified,
        position=position,
    )


# Suspect ranges: positions at which a partitioned table's rows may be wrong.
#
# If rows may have come or gone with a partition, a range begins at the last verified position. It
# ends at the barrier of a re-copy, where the differences enter the journal.

_KEPT = 8
"""Number of newest ranges that are kept however old: a session may be within one of them."""
_MOST = 64
"""Number of ranges from which on a new one is merged with the one before it."""


def begun(record: TableRecord, start: int, because: str, *, unseen_after: int = 0) -> TableRecord:
    """Begin a suspect range after ``start``; the rows after ``unseen_after`` were never here.

    A range that ended after ``start`` is merged with it: its repair may have been wrong.
    """
    kept = [each for each in record.suspect_ranges if each.end <= start]
    merged = record.suspect_ranges[len(kept) :]
    if len(kept) >= _MOST and kept[-1].end == start:
        merged = (kept.pop(), *merged)
    start = min([start, *(each.start for each in merged)])
    unseen = [each.unseen_after for each in merged if each.unseen_after]
    if unseen_after:
        unseen.append(unseen_after)
    begins = SuspectRange(start, because, unseen_after=min(unseen, default=0))
    return replace(record, suspect_ranges=(*kept, begins))


def once_more(record: TableRecord, because: str) -> TableRecord:
    """Note that rows moved during the re-copy that repairs the suspect range."""
    suspect_range = record.suspect_range
    assert suspect_range is not None
    return replace(
        record,
        suspect_ranges=(
            *record.suspect_ranges[:-1],
            suspect_range._replace(because=because, again=True),
        ),
    )


def ended(record: TableRecord, first: int, position: int, time_us: int) -> TableRecord:
    """End the suspect range at ``position``, where differences are repaired.

    If another repair must follow, the range goes on. ``first`` is the first entry after its start.
    """
    suspect_range = record.suspect_range
    assert suspect_range is not None
    if suspect_range.again:
        return replace(
            record,
            suspect_ranges=(*record.suspect_ranges[:-1], suspect_range._replace(again=False)),
        )
    over = suspect_range._replace(
        first=first, last=record.sequence, end=position, end_time_us=time_us
    )
    return replace(record, suspect_ranges=(*record.suspect_ranges[:-1], over))


def pruned(record: TableRecord) -> TableRecord:
    """Remove old suspect ranges whose entries the journal no longer has."""
    older, newest = record.suspect_ranges[:-_KEPT], record.suspect_ranges[-_KEPT:]
    kept = [each for each in older if each.last >= record.oldest_sequence]
    return replace(record, suspect_ranges=(*kept, *newest))
