"""Encodes rows and changes to files and decodes them, by format id."""

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Protocol

from laredo_archive.codec import jsonl, protobuf
from laredo_archive.codec.output import ByteSink, ByteSource, EncodedFile, FileWriter, Output
from laredo_archive.codec.row_keys import KeyBounds
from laredo_archive.codec.struct_reader import Projection
from laredo_archive.errors import (
    BadBytes,
    CodecError,
    PyarrowMissing,
    UnknownFormat,
    ZstandardMissing,
)
from laredo_model import key as key_
from laredo_model.column import Column, key_columns
from laredo_model.line import Change

JSONL = "jsonl"
PROTOBUF = "protobuf"
PARQUET = "parquet"
_FRAMES = ".zst"
"""End of the ids and file names of formats in zstd frames.

Such a file is a series of frames (RFC 8878), each of whole records. A frame begins at each split,
so that a range of keys is a range of whole frames, as it is a range of bytes in the plain formats.
"""
JSONL_ZST = JSONL + _FRAMES
PROTOBUF_ZST = PROTOBUF + _FRAMES
DIFF_FORMATS = frozenset({JSONL, PROTOBUF, JSONL_ZST, PROTOBUF_ZST})
FORMATS = DIFF_FORMATS | {PARQUET}
"""Formats of snapshots; parquet needs pyarrow, and .zst zstandard."""
EXACT_FORMATS = DIFF_FORMATS
"""Formats that contain the lines; in other formats a file's entry has ``exact: false``."""
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
    "ZstandardMissing",
    "check_diff_format",
    "check_format",
    "compressed_format",
    "diff_encoder",
    "is_readable",
    "plain_bytes",
    "plain_format",
    "read_diff",
    "read_lines",
    "read_new_rows",
    "read_snapshot",
    "snapshot_encoder",
]


class SnapshotEncoder(Protocol):
    """Writes rows; the file has ``sorted`` and splits if they come in key order."""

    def write(self, keys: Sequence[bytes], lines: Sequence[bytes]) -> None: ...

    def close(self) -> EncodedFile: ...


class DiffEncoder(Protocol):
    """Writes net changes, sorted by key; ``truncate`` comes first if it comes at all."""

    def truncate(self) -> None: ...

    def write(self, changes: Iterable[Change]) -> None: ...

    def close(self) -> EncodedFile: ...


def check_format(format_id: str) -> None:
    """Check that snapshots of this format can be written and read here.

    :raises UnknownFormat: if no codec here knows it.
    :raises PyarrowMissing: if it is parquet, and pyarrow isn't installed.
    :raises ZstandardMissing: if it is compressed, and zstandard isn't installed.
    """
    if format_id not in FORMATS:
        raise UnknownFormat(format_id, sorted(FORMATS))
    if is_readable(format_id):
        return
    raise PyarrowMissing if format_id == PARQUET else ZstandardMissing


def is_readable(format_id: str) -> bool:
    """True if check_format() accepts it."""
    if format_id == PARQUET:
        return find_spec("pyarrow") is not None
    if _is_compressed(format_id):
        return format_id in FORMATS and find_spec("zstandard") is not None
    return format_id in FORMATS


def check_diff_format(format_id: str) -> None:
    """Check that diffs of this format can be written and read here.

    :raises UnknownFormat: if there are no diffs of this format.
    :raises ZstandardMissing: if it is compressed, and zstandard isn't installed.
    """
    if format_id not in DIFF_FORMATS:
        raise UnknownFormat(format_id, sorted(DIFF_FORMATS))
    check_format(format_id)


def plain_format(format_id: str) -> str:
    """Format of the frames' content: ``jsonl.zst`` -> ``jsonl``; others stay."""
    return format_id.removesuffix(_FRAMES)


def _is_compressed(format_id: str) -> bool:
    return format_id.endswith(_FRAMES)


def compressed_format(format_id: str) -> str:
    """The compressed format of a plain one; parquet, which compresses itself, stays."""
    return format_id if format_id == PARQUET else format_id + _FRAMES


def plain_bytes(
    format_id: str, stream: ByteSource, start: int | None = None, stop: int | None = None
) -> ByteSource:
    """The bytes of the format's ``plain_format``.

    ``start`` and ``stop`` are for a compressed stream only: offsets at which frames begin.

    :raises ZstandardMissing: if it is compressed, and zstandard isn't installed.
    """
    if not _is_compressed(format_id):
        return stream
    check_format(format_id)
    from laredo_archive.codec.zstd_frames import PlainBytes

    return PlainBytes(stream, start, stop)


def _output(format_id: str) -> Output:
    if not _is_compressed(format_id):
        return FileWriter
    from laredo_archive.codec.zstd_frames import FrameWriter

    return FrameWriter


def snapshot_encoder(format_id: str, columns: Sequence[Column], sink: ByteSink) -> SnapshotEncoder:
    """Encoder that writes a snapshot of this format into ``sink``.

    :raises UnknownFormat: if no codec here knows the format.
    :raises PyarrowMissing: if it is parquet, and pyarrow isn't installed.
    """
    check_format(format_id)
    if format_id == PARQUET:
        from laredo_archive.codec import parquet

        return parquet.ParquetSnapshotEncoder(sink, columns)
    output = _output(format_id)
    if plain_format(format_id) == JSONL:
        return jsonl.JsonlSnapshotEncoder(sink, columns, output)
    return protobuf.ProtobufSnapshotEncoder(sink, columns, output)


def diff_encoder(
    format_id: str, columns: Sequence[Column], sink: ByteSink, *, go_keys: bool = False
) -> DiffEncoder:
    """Encoder that writes a diff of this format into ``sink``.

    ``go_keys``: a jsonl diff contains each key as Go prints it too, where that differs.

    :raises UnknownFormat: if no codec here knows the format.
    """
    check_diff_format(format_id)
    output = _output(format_id)
    if plain_format(format_id) == JSONL:
        key = [column.name for column in key_columns(columns)]
        go_key_of = partial(key_.go_key_of_line, key_fields=key) if go_keys and key else None
        return jsonl.JsonlDiffEncoder(sink, go_key_of, output)
    return protobuf.ProtobufDiffEncoder(sink, columns, output)


def read_snapshot(
    format_id: str,
    columns: Sequence[Column] | None,
    stream: ByteSource,
    start: int | None = None,
    stop: int | None = None,
    *,
    key_fields: Sequence[str] | None = None,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """The rows of a snapshot as keys and lines, a block at a time.

    ``start`` and ``stop`` are byte offsets, such as splits give; a ``start``
    needs a seekable stream. The key is ``key_fields`` (empty: the table has
    none), else the key of ``columns``, else ``id``.

    :raises UnknownFormat: if no codec here knows the format.
    :raises PyarrowMissing: if it is parquet, and pyarrow isn't installed.
    :raises BadBytes: where the file isn't of its format, while it is read.
    """
    check_format(format_id)
    key = _key_of(columns) if key_fields is None else key_fields
    if format_id == PARQUET:
        from laredo_archive.codec import parquet

        return parquet.read_snapshot(stream, columns, key, start, stop)
    read = jsonl.read_snapshot if plain_format(format_id) == JSONL else protobuf.read_snapshot
    if _is_compressed(format_id):
        stream, start, stop = plain_bytes(format_id, stream, start, stop), None, None
    return read(stream, columns, key, start, stop)


def read_lines(
    format_id: str, columns: Sequence[Column], stream: ByteSource, keys: KeyBounds
) -> Iterator[bytes]:
    """The lines of a sorted snapshot whose keys are among ``keys``.

    Blocks of whole lines, each with its newline; some may be empty.

    :raises UnknownFormat: if the format isn't one that holds lines.
    :raises BadBytes: where the file isn't of its format, as far as it is checked.
    """
    check_diff_format(format_id)
    read = jsonl.read_lines if plain_format(format_id) == JSONL else protobuf.read_lines
    return read(plain_bytes(format_id, stream), columns, _key_of(columns), keys)


def read_new_rows(
    format_id: str,
    columns: Sequence[Column],
    stream: ByteSource,
    keys: KeyBounds,
    known: Container[bytes],
    *,
    projection: Projection | None = None,
) -> dict[bytes, bytes | None]:
    """The last row of each key of a sorted diff that is among ``keys``; None: deleted.

    Keys that are ``known`` are left out, and so is a TRUNCATE. A row is a line, or a SnapshotRow
    message, as the diff has it; if there is a ``projection``, with its columns only.

    :raises UnknownFormat: if no codec here knows the format.
    :raises BadBytes: where the file isn't of its format, as far as it is checked.
    :raises BadLine: at a row without the columns of the ``projection``.
    """
    check_diff_format(format_id)
    stream = plain_bytes(format_id, stream)
    if plain_format(format_id) == JSONL:
        return jsonl.read_new_rows(stream, keys, known, projection)
    return protobuf.read_new_rows(stream, columns, keys, known, projection)


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
    if _is_compressed(format_id):
        stream, start, stop = plain_bytes(format_id, stream, start, stop), None, None
    if plain_format(format_id) == JSONL:
        return jsonl.read_diff(stream, start, stop)
    return protobuf.read_diff(stream, columns, start, stop)


def _key_of(columns: Sequence[Column] | None) -> Sequence[str]:
    return [column.name for column in key_columns(columns or ())] or DEFAULT_KEY
