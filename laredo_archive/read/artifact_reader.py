"""Reads artifacts and checks them against the manifest's entries.

Size and sha256 are compared, and rows counted, while the file is read, so a
reader learns of damage at its end at the latest.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import lt
from typing import BinaryIO, NoReturn, TypeVar

from laredo_archive import codec
from laredo_archive.codec import BadBytes, ByteSource
from laredo_archive.codec.ranged_file import ranged
from laredo_archive.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    FormatUnknown,
    PyarrowNeeded,
    ZstandardNeeded,
)
from laredo_archive.manifest.model import Artifact, FormatEntry
from laredo_archive.read import original
from laredo_archive.read.objects import (
    MISSING,
    UNWATCHED,
    Checked,
    Opened,
    ReadProgress,
    opener,
    wrong_size,
)
from laredo_archive.storage.destination import Destination
from laredo_model.column import Column, key_columns
from laredo_model.line import Action, Change

T = TypeVar("T")

PREFERRED_FORMATS = (
    codec.JSONL,
    codec.JSONL_ZST,
    codec.PROTOBUF,
    codec.PROTOBUF_ZST,
    codec.PARQUET,
)
SIZES_AT_ONCE = 16
_DRAIN_BYTES = 1 << 20
_NAME_THE_KEY = (
    ". (The manifest doesn't name the key column, so id was assumed; set it with --key, in"
    " Spark with key_fields)"
)


@dataclass(frozen=True)
class RowFields:
    """The columns and key of an epoch's rows."""

    columns: tuple[Column, ...] | None
    key_fields: tuple[str, ...]
    key_is_known: bool = True
    """True if manifest or reader named the key; else it is assumed to be ``id``."""

    @classmethod
    def of(cls, base: Artifact, key_fields: Sequence[str] | None = None) -> "RowFields":
        """The row fields of an epoch: as its base records them, else ``key_fields``, else ``id``.

        A base that records no key fields is of a table without a key.
        """
        if base.columns and base.key_fields == ():
            return cls(base.columns, ())
        named = [column.name for column in key_columns(base.columns or ())]
        chosen = base.key_fields or named or key_fields
        return cls(base.columns, tuple(chosen or codec.DEFAULT_KEY), bool(chosen))

    @property
    def advice(self) -> str:
        """The end of a message about keys, where the key is assumed."""
        return "" if self.key_is_known else _NAME_THE_KEY


class ArtifactFiles:
    """The objects of one archive. ``locate`` turns a manifest's key into the destination's.

    ``progress`` is called with what is read from beginning to end.
    """

    def __init__(
        self,
        destination: Destination,
        locate: Callable[[str], str],
        progress: ReadProgress = UNWATCHED,
    ) -> None:
        self._destination = destination
        self._locate = locate
        self._progress = progress
        self._opener = opener(destination)

    def uri(self, entry: FormatEntry) -> str:
        """URI of the object."""
        return self._destination.uri_of(self._locate(entry.key))

    def choose(self, artifact: Artifact, format_id: str | None = None) -> tuple[str, FormatEntry]:
        """The format to read an artifact in, and its entry.

        :raises FormatUnknown: if it is there in none that is known here.
        :raises PyarrowNeeded: if it is there as parquet, and that can't be read here.
        :raises ZstandardNeeded: if it is there compressed, and that can't be read here.
        """
        readable = _readable(artifact, format_id)
        if readable:
            return readable[0], artifact.formats[readable[0]]
        for id_ in (codec.JSONL_ZST, codec.PROTOBUF_ZST):
            if id_ in artifact.formats and format_id in (None, id_):
                raise ZstandardNeeded(self.uri(artifact.formats[id_]))
        if codec.PARQUET in artifact.formats and format_id in (None, codec.PARQUET):
            raise PyarrowNeeded(self.uri(artifact.formats[codec.PARQUET]))
        entries = list(artifact.formats.values())
        uri = self.uri(entries[0]) if entries else self._destination.uri
        raise FormatUnknown(uri, sorted(artifact.formats), list(PREFERRED_FORMATS))

    def size_to_read(self, artifact: Artifact) -> int:
        """Bytes of the format that it is read in; 0 if it can't be read."""
        readable = _readable(artifact)
        return artifact.formats[readable[0]].size_bytes if readable else 0

    def check_size(self, entry: FormatEntry) -> None:
        """Compare the object's size with its entry's, without reading it.

        :raises ArtifactMissing: if it isn't there.
        :raises ArtifactDamaged: if it has another size than in its entry.
        """
        found = self._destination.head(self._locate(entry.key))
        if found is None:
            raise self._missing(entry)
        if found.size_bytes != entry.size_bytes:
            raise ArtifactDamaged(self.uri(entry), wrong_size(found.size_bytes, entry))

    def check_sizes(self, entries: Iterable[FormatEntry]) -> None:
        """Check the sizes of several objects at a time; raises like check_size()."""
        with ThreadPoolExecutor(SIZES_AT_ONCE, thread_name_prefix="sizes") as pool:
            for _ in pool.map(self.check_size, entries):
                pass

    def expect(self, entries: Iterable[FormatEntry]) -> None:
        """Announce the objects that are read next, in this order."""
        self._opener.expect(self._locate(entry.key) for entry in entries)

    def _open(self, entry: FormatEntry) -> Opened:
        try:
            return self._opener.open(self._locate(entry.key))
        except ArtifactMissing as missing:
            raise self._missing(entry) from missing

    def _missing(self, entry: FormatEntry) -> ArtifactMissing:
        return ArtifactMissing(self.uri(entry), MISSING)

    def check_bytes(self, entry: FormatEntry) -> None:
        """Read the object, whatever is in it.

        :raises ArtifactDamaged: if size or sha256 aren't those of its entry.
        """
        with closing(self._open(entry)) as opened:
            checked = Checked(opened, entry, self.uri(entry), self._progress)
            while checked.read(_DRAIN_BYTES):
                pass

    def key_at(
        self, artifact: Artifact, shape: RowFields, format_id: str, offset: int
    ) -> bytes | None:
        """The key of the row or change at a byte offset; None if none begins there."""
        entry = artifact.formats[format_id]
        columns = shape.columns
        with closing(self._opened_at(entry, format_id, offset)) as source:
            try:
                if artifact.is_snapshot:
                    begin = offset if format_id == codec.PARQUET else None
                    rows = codec.read_snapshot(
                        format_id, columns, source, begin, key_fields=shape.key_fields
                    )
                    keys, _ = next(rows, ([], []))
                    return keys[0] if keys else None
                change = next(codec.read_diff(format_id, columns, source), None)
                return None if change is None else change.key
            except ValueError:
                return None

    def _opened_at(self, entry: FormatEntry, format_id: str, offset: int) -> BinaryIO:
        def opened(at: int) -> BinaryIO:
            return self._destination.open(self._locate(entry.key), at)

        # What parquet's bytes mean is written at the file's end.
        return ranged(opened, entry.size_bytes) if format_id == codec.PARQUET else opened(offset)

    def gives_lines(self, artifact: Artifact, format_id: str | None = None) -> bool:
        """True if this format returns a snapshot's lines byte for byte.

        :raises ArtifactDamaged: if that can't be determined.
        """
        id_, entry = self.choose(artifact, format_id)
        if entry.exact or id_ != codec.PARQUET:
            return entry.exact
        from laredo_archive.codec.arrow.parquet_file import ParquetSnapshot

        with closing(self._opened_at(entry, id_, 0)) as file:
            try:
                return ParquetSnapshot(file, None).restorable
            except BadBytes as wrong:
                raise ArtifactDamaged(self.uri(entry), str(wrong)) from wrong

    def refuse(self, entry: FormatEntry, reason: str) -> NoReturn:
        """:raises ArtifactDamaged: with the object's name."""
        raise ArtifactDamaged(self.uri(entry), reason)

    def rows(
        self, artifact: Artifact, shape: RowFields, format_id: str | None = None
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """A snapshot's rows as keys and lines, a block at a time.

        :raises ArtifactDamaged: where the file differs from its entry.
        """
        id_, entry = self.choose(artifact, format_id)

        def read(source: ByteSource) -> Iterator[tuple[list[bytes], list[bytes]]]:
            return codec.read_snapshot(id_, shape.columns, source, key_fields=shape.key_fields)

        rows = self._rows(entry, artifact.row_count, read)
        if entry.by_original:
            rows = self._of_the_original(entry, rows, shape.key_fields)
        return rows if shape.key_is_known else _with_advice(rows)

    def _rows(
        self,
        entry: FormatEntry,
        expected: int | None,
        read: Callable[[ByteSource], Iterator[tuple[list[bytes], list[bytes]]]],
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        uri = self.uri(entry)
        count, last = 0, None
        for keys, lines in self._guarded(entry, read):
            if entry.sorted:
                _check_order(uri, last, keys)
            count += len(keys)
            last = keys[-1]
            if expected is not None and count > expected:
                # Some kilobytes of parquet can have rows without an end.
                self.refuse(entry, f"it has more rows than the {expected} in the manifest")
            yield keys, lines
        self._check_count(entry, count, expected, "rows")

    def _of_the_original(
        self,
        entry: FormatEntry,
        rows: Iterator[tuple[list[bytes], list[bytes]]],
        key_fields: Sequence[str],
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        for _, lines in rows:
            plain = list(map(original.plain, lines))
            try:
                yield original.keys_of(plain, key_fields), plain
            except ValueError as wrong:
                self.refuse(entry, str(wrong))

    def changes(
        self, artifact: Artifact, shape: RowFields, format_id: str | None = None
    ) -> Iterator[Change]:
        """A diff's changes; a TRUNCATE comes first.

        :raises ArtifactDamaged: where the file differs from its entry.
        """
        id_, entry = self.choose(artifact, format_id)

        def read(source: ByteSource) -> Iterator[Change]:
            return codec.read_diff(id_, shape.columns, source)

        changes = self._changes(entry, artifact.change_count, read)
        return self._resolved(entry, changes, shape) if entry.by_original else changes

    def _resolved(
        self, entry: FormatEntry, changes: Iterator[Change], shape: RowFields
    ) -> Iterator[Change]:
        try:
            yield from original.resolved(changes, shape.key_fields)
        except ValueError as wrong:
            self.refuse(entry, str(wrong))

    def _changes(
        self,
        entry: FormatEntry,
        expected: int | None,
        read: Callable[[ByteSource], Iterator[Change]],
    ) -> Iterator[Change]:
        uri, is_sorted = self.uri(entry), entry.sorted
        count, last = 0, None
        truncated = False
        for change in self._guarded(entry, read):
            if change.action is Action.TRUNCATE:
                truncated = True
            else:
                if change.new is None and change.action is not Action.DELETE:
                    self.refuse(entry, f"{change.action.name} of {change.key!r} without a new row")
                if is_sorted and last is not None and last >= change.key:
                    _refuse_order(uri, last, change.key)
                count += 1
                last = change.key
            yield change
        # Whether others count the TRUNCATE line as a change isn't laid down.
        if not (truncated and expected == count + 1):
            self._check_count(entry, count, expected, "changes")

    def _guarded(
        self, entry: FormatEntry, read: Callable[[ByteSource], Iterator[T]]
    ) -> Iterator[T]:
        uri = self.uri(entry)
        with closing(self._open(entry)) as opened:
            checked = Checked(opened, entry, uri, self._progress)
            try:
                yield from read(checked)
            except ValueError as wrong:  # whatever in the bytes isn't what it should be
                # A damaged file is reported by its sha256, not by the first parse error.
                while checked.read(_DRAIN_BYTES):
                    pass
                raise ArtifactDamaged(uri, str(wrong)) from wrong

    def _check_count(self, entry: FormatEntry, count: int, expected: int | None, what: str) -> None:
        if expected is not None and count != expected:
            self.refuse(entry, f"it has {count} {what}, the manifest has {expected}")


def _readable(artifact: Artifact, format_id: str | None = None) -> list[str]:
    """The formats that it can be read in here, the preferred one first."""
    wanted = PREFERRED_FORMATS if format_id is None else (format_id,)
    there = [id_ for id_ in wanted if id_ in artifact.formats and codec.is_readable(id_)]
    return sorted(there, key=lambda id_: not artifact.formats[id_].exact)


def _with_advice(rows: Iterator[T]) -> Iterator[T]:
    try:
        yield from rows
    except ArtifactDamaged as failure:
        raise ArtifactDamaged(failure.uri, f"{failure.reason}{_NAME_THE_KEY}") from failure


def _check_order(uri: str, last: bytes | None, keys: list[bytes]) -> None:
    if last is not None and last >= keys[0]:
        _refuse_order(uri, last, keys[0])
    if not all(map(lt, keys, islice(keys, 1, None))):
        for before, after in pairwise(keys):
            if before >= after:
                _refuse_order(uri, before, after)


def _refuse_order(uri: str, before: bytes, after: bytes) -> NoReturn:
    raise ArtifactDamaged(
        uri,
        f"the manifest declares it sorted, but the key {after.decode(errors='replace')!r} comes"
        f" after {before.decode(errors='replace')!r}",
    )
