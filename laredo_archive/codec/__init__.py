"""Encodes rows and changes to files and decodes them, by format id."""

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Protocol

from laredo_archive.codec import jsonl, protobuf
from laredo_archive.codec.blocks import ByteSource
from laredo_archive.codec.errors import BadBytes, CodecError, PyarrowMissing, UnknownFormat
from laredo_archive.codec.narrowed import KeyBounds
from laredo_archive.codec.output import ByteSink, EncodedFile
from laredo_model import go_key
from laredo_model.change import Change
from laredo_model.column import Column, key_columns

JSONL = "jsonl"
PROTOBUF = "protobuf"
PARQUET = "parquet"
DIFF_FORMATS = frozenset({JSONL, PROTOBUF})
FORMATS = DIFF_FORMATS | {PARQUET}
"""Of snapshots; parquet needs pyarrow."""
EXACT_FORMATS = DIFF_FORMATS
"""Those whose files hold the lines; of another, a file's entry says ``exact: false``."""
DEFAULT_KEY = ("id",)
"""The key of a table whose archive names neither columns nor key_fields."""

__all__ = [
    "DEFAULT_KEY",
    "DIFF_FORMATS",
    "EXACT_FORMATS",
    "FORMATS",
    "BadBytes",
    "ByteSink",
    "ByteSource",
    "CodecError",
    "DiffEncoder",
    "EncodedFile",
    "PyarrowMissing",
    "SnapshotEncoder",
    "UnknownFormat",
    "check_diff_format",
    "check_format",
    "diff_encoder",
    "is_readable",
    "read_diff",
    "read_lines",
    "read_new_rows",
    "read_snapshot",
    "snapshot_encoder",
]


class SnapshotEncoder(Protocol):
    """Writes rows; sorted and splits come out right if they come in key order."""

    def write(self, keys: Sequence[bytes], lines: Sequence[bytes]) -> None: ...

    def close(self) -> EncodedFile: ...


class DiffEncoder(Protocol):
    """Writes net changes, sorted by key; ``truncate`` comes first if it comes at all."""

    def truncate(self) -> None: ...

    def write(self, changes: Iterable[Change]) -> None: ...

    def close(self) -> EncodedFile: ...


def check_format(format_id: str) -> None:
    """Whether snapshots can be written and read in it here.

    :raises UnknownFormat: if no codec here knows it.
    :raises PyarrowMissing: if it is parquet, and pyarrow isn't installed.
    """
    if format_id not in FORMATS:
        raise UnknownFormat(format_id, sorted(FORMATS))
    if format_id == PARQUET and not is_readable(format_id):
        raise PyarrowMissing


def is_readable(format_id: str) -> bool:
    """Whether check_format() passes it."""
    return format_id in FORMATS and (format_id != PARQUET or find_spec("pyarrow") is not None)


def check_diff_format(format_id: str) -> None:
    """:raises UnknownFormat: if there are no diffs of this format."""
    if format_id not in DIFF_FORMATS:
        raise UnknownFormat(format_id, sorted(DIFF_FORMATS))


def snapshot_encoder(format_id: str, columns: Sequence[Column], sink: ByteSink) -> SnapshotEncoder:
    """What writes a snapshot of this format into ``sink``.

    :raises UnknownFormat: if no codec here knows the format.
    :raises PyarrowMissing: if it is parquet, and pyarrow isn't installed.
    """
    check_format(format_id)
    if format_id == PARQUET:
        from laredo_archive.codec import parquet

        return parquet.ParquetSnapshotEncoder(sink, columns)
    if format_id == JSONL:
        return jsonl.JsonlSnapshotEncoder(sink, columns)
    return protobuf.ProtobufSnapshotEncoder(sink, columns)


def diff_encoder(
    format_id: str, columns: Sequence[Column], sink: ByteSink, *, go_keys: bool = False
) -> DiffEncoder:
    """What writes a diff of this format into ``sink``.

    ``go_keys``: a jsonl diff says each key as Go prints it too, where that differs.

    :raises UnknownFormat: if no codec here knows the format.
    """
    check_diff_format(format_id)
    if format_id == JSONL:
        key = [column.name for column in key_columns(columns)]
        go_key_of = partial(go_key.of_line, key_fields=key) if go_keys and key else None
        return jsonl.JsonlDiffEncoder(sink, go_key_of)
    return protobuf.ProtobufDiffEncoder(sink, columns)


def read_snapshot(
    format_id: str,
    columns: Sequence[Column] | None,
    stream: ByteSource,
    start: int | None = None,
    stop: int | None = None,
    *,
    key_fields: Sequence[str] | None = None,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """The rows of a snapshot, keys beside lines, a block at a time.

    ``start`` and ``stop`` are byte offsets, such as splits give; a ``start``
    needs a seekable stream. The key is ``key_fields`` (empty: the table has
    none), else what ``columns`` say, else ``id``.

    :raises UnknownFormat: if no codec here knows the format.
    :raises PyarrowMissing: if it is parquet, and pyarrow isn't installed.
    :raises BadBytes: where the file isn't of its format, while it is read.
    """
    check_format(format_id)
    key = _key_of(columns) if key_fields is None else key_fields
    if format_id == PARQUET:
        from laredo_archive.codec import parquet

        return parquet.read_snapshot(stream, columns, key, start, stop)
    read = jsonl.read_snapshot if format_id == JSONL else protobuf.read_snapshot
    return read(stream, columns, key, start, stop)


def read_lines(
    format_id: str, columns: Sequence[Column], stream: ByteSource, keys: KeyBounds
) -> Iterator[bytes]:
    """Of a sorted snapshot the lines whose keys are among ``keys``.

    Blocks of whole lines, each with its newline; some may be empty.

    :raises UnknownFormat: if the format isn't one that holds lines.
    :raises BadBytes: where the file isn't of its format, as far as it is checked.
    """
    check_diff_format(format_id)
    read = jsonl.read_lines if format_id == JSONL else protobuf.read_lines
    return read(stream, columns, _key_of(columns), keys)


def read_new_rows(
    format_id: str,
    columns: Sequence[Column],
    stream: ByteSource,
    keys: KeyBounds,
    known: Container[bytes],
) -> dict[bytes, bytes | None]:
    """Of a sorted diff the last row of each key that is among ``keys``; None: deleted.

    Without those that are ``known``. A TRUNCATE isn't among them.

    :raises UnknownFormat: if no codec here knows the format.
    :raises BadBytes: where the file isn't of its format, as far as it is checked.
    """
    check_diff_format(format_id)
    if format_id == JSONL:
        return jsonl.read_new_rows(stream, keys, known)
    return protobuf.read_new_rows(stream, columns, keys, known)


def read_diff(
    format_id: str,
    columns: Sequence[Column] | None,
    stream: ByteSource,
    start: int | None = None,
    stop: int | None = None,
) -> Iterator[Change]:
    """The changes of a diff, in its order; a TRUNCATE comes first.

    :raises UnknownFormat: if no codec here knows the format.
    :raises BadBytes: where the file isn't of its format, while it is read.
    """
    check_diff_format(format_id)
    if format_id == JSONL:
        return jsonl.read_diff(stream, start, stop)
    return protobuf.read_diff(stream, columns, start, stop)


def _key_of(columns: Sequence[Column] | None) -> Sequence[str]:
    return [column.name for column in key_columns(columns or ())] or DEFAULT_KEY
