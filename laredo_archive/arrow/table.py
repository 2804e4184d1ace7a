"""``open_archive``: a table at any boundary, and its changes, as Arrow for Python."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from laredo_archive import codec
from laredo_archive.arrow import changes as changes_
from laredo_archive.arrow.changes import RowValues
from laredo_archive.arrow.columns import DEFAULT_INFER_ROWS, InferredRows, columns_at
from laredo_archive.arrow.ranges import Numbered, in_parallel
from laredo_archive.arrow.slices import SliceOpener
from laredo_archive.aws.clients import Addressing, AwsClients
from laredo_archive.codec.arrow import range_rows
from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.codec.arrow.types import MistypedValue, TypeChoice, UnrepresentableValue
from laredo_archive.errors import (
    ArtifactDamaged,
    ChangesLacking,
    NoSuchBoundary,
    NoSuchColumn,
    RowsUnfit,
)
from laredo_archive.manifest import key_ranges, merged, timeline
from laredo_archive.manifest.chain import NextArtifact, ReaderPosition, mark_now, up_to
from laredo_archive.manifest.key_ranges import ObjectSlice, RangeRead
from laredo_archive.manifest.model import Artifact, FormatEntry
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.read import original
from laredo_archive.read.objects import UNWATCHED
from laredo_archive.reader import Archive
from laredo_archive.storage.access import S3Access, profiles
from laredo_model import position as positions
from laredo_model.column import Column, key_columns
from laredo_model.errors import ModelError
from laredo_model.line import Change
from laredo_model.position import Position

AsOf = str | int | datetime | None
"""A position (``0/19F000``, or as a number) or a time (ISO 8601, or a datetime); None: the head."""

RANGE_BYTES = 32 << 20
"""Bytes of base and diffs in one range, about; the rows that its diffs insert are in memory."""
DIFF_BYTES = 160 << 20
"""The most bytes of diffs in one range; else the table is merged as a stream, by one thread."""
ALONE_BYTES = 4 << 20
"""A smaller table is one range."""
MOST_THREADS = 4


def open_archive(
    uri: str | os.PathLike[str],
    *,
    key_fields: Sequence[str] | None = None,
    prefer: str | None = None,
    numeric_as: str = "string",
    special_values: str = "error",
    array_dimensions: Mapping[str, int] | None = None,
    infer_rows: int = DEFAULT_INFER_ROWS,
    region: str | None = None,
    endpoint: str | None = None,
    addressing: Addressing = "auto",
    profile: str | None = None,
    role_arn: str | None = None,
    external_id: str | None = None,
    anonymous: bool = False,
    requester_pays: bool = False,
) -> "ArchivedTable":
    """Open the archive of one table: a directory, or a file:, s3:// or s3a:// URI of it.

    ``key_fields``: the key, for an archive that doesn't record it (default: ``id``). ``prefer``:
    the format to read where an artifact has several. Types, as in Spark: ``numeric_as`` "string"
    or "decimal(p,s)" for numeric columns without precision; ``special_values`` "error", "null" or
    "string" for infinity, BC and NaN in a decimal; ``array_dimensions`` by column, for arrays
    deeper than 1 (0: as JSON text). ``infer_rows``: rows that types are taken from, in archives
    that record no columns. The others are for S3, as far as the environment doesn't set it:
    ``anonymous`` reads a public bucket without credentials; with ``requester_pays`` the account of
    the credentials pays for the requests.

    :raises ArchiveMissing: if there is none.
    :raises ManifestError: if its manifest is damaged or newer than this program.
    :raises DestinationError: if the location can't be read.
    :raises TypeChoiceRefused: if an option about types can't be satisfied.
    :raises AwsError: if the options for S3 can't be used.
    """
    typing = TypeChoice.of(numeric_as, special_values, array_dimensions)
    known, credentials = profiles(profile, role_arn, external_id, region, anonymous=anonymous)
    access = S3Access(AwsClients(known), credentials, region, endpoint, addressing, requester_pays)
    archive = Archive.at(os.fspath(uri), key_fields, access)
    return ArchivedTable(archive, ReadAs(typing, prefer, infer_rows))


@dataclass(frozen=True)
class ReadAs:
    """Types and formats of a read."""

    #: The choice of types.
    typing: TypeChoice
    #: The format to read where an artifact has several.
    prefer: str | None
    #: The rows that types are inferred from.
    infer_rows: int


class ArchivedTable:
    """One table's archive, as its manifest was when it was opened."""

    def __init__(self, archive: Archive, read_as: ReadAs) -> None:
        self._archive = archive
        self._as = read_as

    def __repr__(self) -> str:
        return f"<ArchivedTable {self.name} in {self.uri}>"

    @property
    def uri(self) -> str:
        """URI of the manifest."""
        return self._archive.uri

    @property
    def name(self) -> str:
        """Name of the table: ``schema.table``."""
        return self._archive.manifest.table

    def refreshed(self) -> "ArchivedTable":
        """The archive with its manifest read again; raises like :func:`open_archive`."""
        return ArchivedTable(self._archive.refreshed(), self._as)

    def boundaries(self) -> "list[TableAtBoundary]":
        """Every boundary that the manifest lists, oldest first.

        Merged diffs hide boundaries, which :meth:`at` finds all the same.

        :raises ManifestDamaged: if the manifest contradicts itself.
        """
        return [TableAtBoundary(self._archive, each, self._as) for each in self._archive.boundaries]

    def at(
        self, as_of: AsOf = None, *, exact: bool = False, epoch: int | None = None
    ) -> "TableAtBoundary":
        """The table at the last boundary at or before ``as_of``; at the head if that is None.

        ``exact`` refuses an earlier boundary; ``epoch`` searches that epoch only.

        :raises NoSuchBoundary: if there is none.
        :raises ArtifactMissing, ArtifactDamaged: if a list of merged diffs can't be read.
        """
        archive = self._archive.watched(UNWATCHED)
        found = archive.boundary(self._moment(as_of), exact=exact, epoch=epoch)
        return TableAtBoundary(archive, found, self._as)

    @property
    def schema(self) -> pa.Schema:
        """Columns at the head; raises like TableAtBoundary.schema."""
        return self.at().schema

    def count(self) -> int:
        """Number of rows at the head; raises like TableAtBoundary.count."""
        return self.at().count()

    def changes(self, after: AsOf = None, until: AsOf = None) -> "ChangesBetween":
        """Changes after one boundary up to another; each is the last at or before the given one.

        Without ``after``: from the oldest boundary on; without ``until``: up to the head. The
        columns are those of :mod:`laredo_archive.arrow.changes`. A diff has the net change of each
        key in its window, whose end is ``position``; a TRUNCATE comes before the rest.

        :raises NoSuchBoundary: if there is none, or ``until`` is before ``after``.
        :raises ChangesLacking: if no diffs lead from one to the other.
        :raises ArtifactMissing, ArtifactDamaged: if a list of merged diffs can't be read.
        """
        archive = self._archive.watched(UNWATCHED)
        end = archive.boundary(self._moment(until))
        first = archive.boundaries[0] if after is None else archive.boundary(self._moment(after))
        archive.unfold(merged.between(first.position, end.position))
        epochs = archive.epochs
        start, goal = ReaderPosition.of(first), mark_now(epochs, ReaderPosition.of(end))
        steps: list[NextArtifact] = []
        if goal not in (start, mark_now(epochs, start)):
            for step in up_to(epochs, start, goal or start):
                if step.gap is not None:
                    raise ChangesLacking(archive.uri, str(first), str(end), step.gap)
                steps.append(step)
            if not steps or steps[-1].mark != goal:
                raise NoSuchBoundary(archive.uri, f"{end} is before {first}; exchange them")
        return ChangesBetween(TableAtBoundary(archive, end, self._as), steps)

    def _moment(self, as_of: AsOf) -> Position | datetime | None:
        if not isinstance(as_of, str):
            return Position(as_of) if isinstance(as_of, int) else as_of
        try:
            return timeline.moment(as_of)
        except ModelError as wrong:
            raise NoSuchBoundary(self.uri, str(wrong)) from None


class TableAtBoundary:
    """The table at one boundary, whatever is committed later."""

    def __init__(self, archive: Archive, boundary: Boundary, read_as: ReadAs) -> None:
        self._archive = archive
        self._boundary = boundary
        self._as = read_as

    def __repr__(self) -> str:
        return f"<TableAtBoundary {self._archive.manifest.table} at {self._boundary}>"

    @property
    def position(self) -> str:
        """Position of the boundary: ``0/19F000``. Every transaction up to it is in the rows."""
        return positions.text(self._boundary.position)

    @property
    def time(self) -> datetime:
        """PostgreSQL's commit time of the last transaction; the writer's clock where that isn't
        recorded."""
        return self._boundary.time

    @property
    def epoch(self) -> int:
        """Number of the boundary's epoch."""
        return self._boundary.epoch

    @property
    def history(self) -> str | None:
        """History of the position: ``system_identifier:timeline:database_oid``; None: unknown."""
        history = self._boundary.history
        return None if history is None else str(history)

    @property
    def schema(self) -> pa.Schema:
        """Columns with their Arrow types, all nullable, as those of the Spark table.

        :raises TypeChoiceRefused: if ``array_dimensions`` names a column that isn't an array.
        :raises ArtifactDamaged: if columns are inferred from rows, and a row has no key.
        """
        return _nullable(self._reader(*self._columns(), None).schema)

    def count(self) -> int:
        """Number of rows: as the manifest records it, else counted."""
        recorded = self._recorded_rows
        if recorded is not None:
            return recorded
        return sum(len(keys) for keys, _ in self._archive.rows(self._boundary))

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows, or these columns of them; base and diffs are merged.

        Rows of a boundary without diffs are in key order. Raises like :meth:`batches`.
        """
        schema, found = self._batches(columns)
        ordered = sorted(found, key=lambda numbered: numbered[0])
        return pa.Table.from_batches([batch for _, batch in ordered], schema)

    def batches(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The rows in batches of some thousand, in no particular order.

        Several threads read a key range each. Memory doesn't grow with the table: batches wait
        until they are taken.

        :raises NoSuchColumn: if the table lacks one of the columns.
        :raises ArtifactMissing, ArtifactDamaged: if an object isn't there, or differs from its
            entry; while the batches are read, at the latest after the last.
        :raises UnrepresentableValue: if a value has no place in its column's Arrow type.
        """
        schema, found = self._batches(columns)
        return pa.RecordBatchReader.from_batches(schema, (batch for _, batch in found))

    def _batches(self, names: Sequence[str] | None) -> tuple[pa.Schema, Iterator[Numbered]]:
        columns, inferred = self._columns()
        for name in names or ():
            if name not in {column.name for column in columns}:
                known = [column.name for column in columns]
                raise NoSuchColumn(self._archive.uri, name, known)
        schema = _nullable(self._reader(columns, inferred, names).schema)
        return schema, self._counted(self._read(columns, inferred, names), schema)

    def _counted(self, found: Iterator[Numbered], schema: pa.Schema) -> Iterator[Numbered]:
        rows, expected = 0, self._recorded_rows
        for number, batch in found:
            rows += batch.num_rows
            yield number, _with_schema(batch, schema)
        if expected not in (None, rows):
            raise ArtifactDamaged(
                self._archive.uri,
                f"at {self._boundary} its files give {rows} rows, the manifest has {expected}; see"
                " laredo-archive verify",
            )

    def _read(
        self, columns: Sequence[Column], inferred: bool, names: Sequence[str] | None
    ) -> Iterator[Numbered]:
        reads = [] if inferred or not key_columns(columns) else self._ranges()
        if not reads:
            reader = self._reader(columns, inferred, names)
            return ((0, batch) for batch in self._streamed(reader, inferred))

        def read(part: RangeRead) -> Iterator[pa.RecordBatch]:
            return self._folded(part, self._reader(columns, inferred, names), columns)

        return in_parallel(reads, read, _threads())

    def _ranges(self) -> list[RangeRead]:
        """Key ranges that are read apart; none if the table has to be merged as a stream."""
        if not key_ranges.is_sorted(self._boundary, self._choose):
            return []
        size = sum(self._choose(each)[1].size_bytes for each in self._boundary.artifacts)
        least = 1 if size <= ALONE_BYTES else _threads()
        parts = max(least, -(-size // RANGE_BYTES))
        reads = key_ranges.plan(self._boundary, self._choose, parts)
        most = max(sum(part.size_bytes for part in read.diffs) for read in reads)
        return reads if most <= DIFF_BYTES else []

    def _folded(
        self, read: RangeRead, reader: RowReader, columns: Sequence[Column]
    ) -> Iterator[pa.RecordBatch]:
        base = None if read.base is None or not read.base.size_bytes else read.base
        wanted = RangeRead(read.keys, base, tuple(part for part in read.diffs if part.size_bytes))
        opener = _opener(self._archive)
        opener.expect(range_rows.order(wanted))
        try:
            yield from range_rows.batches(wanted, reader, columns, opener)
        except UnrepresentableValue as lacking:
            # A row that several diffs made belongs to no single file.
            raise lacking.with_location(self._where) from None
        except ModelError as wrong:
            raise ArtifactDamaged(self._where, str(wrong)) from wrong

    def _streamed(self, reader: RowReader, inferred: bool) -> Iterator[pa.RecordBatch]:
        for _, lines in self._archive.rows(self._boundary):
            try:
                yield reader.batch(b"\n".join([*lines, b""]))
            except UnrepresentableValue as lacking:
                raise lacking.with_location(self._where) from None
            except (ValueError, MistypedValue) as wrong:
                if inferred:
                    raise RowsUnfit(self._where, str(wrong), self._as.infer_rows) from None
                raise ArtifactDamaged(self._where, str(wrong)) from wrong

    @property
    def _where(self) -> str:
        return f"{self._archive.uri} at {self._boundary}"

    @property
    def _recorded_rows(self) -> int | None:
        last = self._boundary.last
        return last.row_count if last.rows is None and last.is_snapshot else last.rows

    def _columns(self) -> tuple[tuple[Column, ...], bool]:
        return columns_at(self._archive, self._boundary, self._as.infer_rows)

    def _reader(
        self, columns: Sequence[Column], inferred: bool, names: Sequence[str] | None
    ) -> RowReader:
        return (InferredRows if inferred else RowReader)(columns, self._as.typing, names)

    def _choose(self, artifact: Artifact) -> tuple[str, FormatEntry]:
        preferred = self._as.prefer if self._as.prefer in artifact.formats else None
        return self._archive.files.choose(artifact, preferred)


class ChangesBetween:
    """Changes between two boundaries, in the order of their diffs."""

    def __init__(self, end: TableAtBoundary, steps: Sequence[NextArtifact]) -> None:
        self._end = end
        self._steps = steps

    @property
    def schema(self) -> pa.Schema:
        """Columns: action, position, key, and structs of the table's columns, old and new."""
        return pa.schema(changes_.fields(pa.struct(list(self._end.schema))))

    def to_arrow(self) -> pa.Table:
        """All changes; raises like :meth:`batches`."""
        return self.batches().read_all()

    def batches(self) -> pa.RecordBatchReader:
        """The changes in batches of some thousand, or of some megabytes; in order.

        :raises ArtifactMissing, ArtifactDamaged: while they are read, if an object isn't there, or
            differs from its entry.
        :raises UnrepresentableValue: if a value has no place in its column's Arrow type.
        """
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        end, schema = self._end, self.schema
        columns, inferred = end._columns()
        values = RowValues(schema.field("new").type, end._reader(columns, inferred, None))
        parts = [
            (step, _whole(*end._choose(step.artifact))) for step in self._steps if step.has_rows
        ]
        opener = _opener(end._archive)
        opener.expect([part for _, part in parts])
        for step, part in parts:
            with opener(part) as source:
                found = codec.read_diff(part.format_id, step.epoch.base.columns, source)
                for some in changes_.at_once(self._resolved(found, part, columns)):
                    arrays = changes_.arrays(some, step.artifact.to_position, values)
                    yield pa.record_batch(arrays, schema=schema)

    @staticmethod
    def _resolved(
        found: Iterator[Change], part: ObjectSlice, columns: Sequence[Column]
    ) -> Iterator[Change]:
        if not part.entry.by_original:
            return found
        return original.resolved(found, [column.name for column in key_columns(columns)])


def _whole(format_id: str, entry: FormatEntry) -> ObjectSlice:
    return ObjectSlice(format_id, replace(entry, splits=(), blocks=(), source={}))


def _opener(archive: Archive) -> SliceOpener:
    found = archive.found
    return SliceOpener(found.destination, found.locate, lambda: archive.refreshed().found)


def _threads() -> int:
    return min(MOST_THREADS, os.cpu_count() or 1)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch(batch.columns, schema=schema) if schema.names else batch
