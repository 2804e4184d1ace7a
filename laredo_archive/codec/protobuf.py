"""protobuf: SnapshotRow or DiffChange messages, each with its length in front.

See proto/laredo/snapshotter/v1/artifact.proto for the messages, ``struct_rows``
for the rows in them.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice

from laredo_archive.codec import output as output_
from laredo_archive.codec import row_keys, struct_reader, struct_rows
from laredo_archive.codec.output import (
    DIFF_BLOCK,
    SNAPSHOT_BLOCK,
    ByteSink,
    ByteSource,
    EncodedFile,
    FileWriter,
    Output,
)
from laredo_archive.codec.row_keys import KeyBounds
from laredo_archive.codec.struct_reader import Projection, StructRowReader
from laredo_archive.codec.struct_rows import varint as length
from laredo_archive.errors import BadBytes
from laredo_model.column import Column
from laredo_model.line import TRUNCATION, Action, Change

LINES_BLOCK = 4 << 20
_CHANGES_AT_ONCE = 1000
_ROW = 0x0A
_ACTION, _KEY, _OLD, _NEW = 0x0A, 0x12, 0x1A, 0x22
_HEADS = {
    action: bytes([_ACTION, len(action.name)]) + action.name.encode() + bytes([_KEY])
    for action in (Action.INSERT, Action.UPDATE, Action.DELETE)
}
_TRUNCATE = bytes([_ACTION, 8]) + b"TRUNCATE"
_ACTIONS = {action.name.encode(): action for action in Action}


class ProtobufSnapshotEncoder:
    """Rows into a protobuf snapshot."""

    def __init__(
        self, sink: ByteSink, columns: Sequence[Column], output: Output = FileWriter
    ) -> None:
        self._output = output(sink, SNAPSHOT_BLOCK, columns)
        self._encode = struct_rows.encoder(columns)

    def write(self, keys: Sequence[bytes], lines: Sequence[bytes]) -> None:
        """The next rows.

        :raises BadLine: at a row with other columns.
        """
        rows = []
        for struct in map(self._encode, lines):
            size = length(len(struct))
            rows.append(length(1 + len(size) + len(struct)) + b"\x0a" + size + struct)
        self._output.put(keys, b"".join(rows), lambda: map(len, rows))

    def close(self) -> EncodedFile:
        """End the file; the sink stays open."""
        return self._output.close()


class ProtobufDiffEncoder:
    """Net changes into a protobuf diff."""

    def __init__(
        self, sink: ByteSink, columns: Sequence[Column], output: Output = FileWriter
    ) -> None:
        self._output = output(sink, DIFF_BLOCK, ())
        self._encode = struct_rows.encoder(columns)

    def truncate(self) -> None:
        """Record that the table was emptied in the diff's window, before every change."""
        self._output.header(length(len(_TRUNCATE)) + _TRUNCATE)

    def write(self, changes: Iterable[Change]) -> None:
        """The next changes, none of them a TRUNCATE.

        :raises BadLine: at a row with other columns.
        """
        remaining = iter(changes)
        while batch := list(islice(remaining, _CHANGES_AT_ONCE)):
            rows = [_change_message(change, self._encode) for change in batch]
            keys = [change.key for change in batch]
            self._output.put(keys, b"".join(rows), lambda rows=rows: map(len, rows))  # type: ignore[misc]

    def close(self) -> EncodedFile:
        """End the file; the sink stays open."""
        return self._output.close()


def _change_message(change: Change, encode: Callable[[bytes], bytes]) -> bytes:
    action, key, old, new = change
    message = _HEADS[action] + length(len(key)) + key
    if old is not None:
        struct = encode(old)
        message += b"\x1a" + length(len(struct)) + struct
    if new is not None:
        struct = encode(new)
        message += b"\x22" + length(len(struct)) + struct
    return length(len(message)) + message


def read_snapshot(
    stream: ByteSource,
    columns: Sequence[Column] | None,
    key_fields: Sequence[str],
    start: int | None = None,
    stop: int | None = None,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """The rows as keys and lines, a block at a time.

    :raises BadBytes: at a message that isn't a row.
    """
    reader = StructRowReader(columns, key_fields)
    for batch in output_.messages(output_.ranged(stream, start, stop)):
        pairs = [_row(message, reader) for message in batch]
        yield [key for key, _ in pairs], [line for _, line in pairs]


def read_lines(
    stream: ByteSource, columns: Sequence[Column], key_fields: Sequence[str], keys: KeyBounds
) -> Iterator[bytes]:
    """The lines of ``keys``, a block at a time.

    Rows must be sorted.

    :raises BadBytes: at a message that isn't a row; not each message is checked.
    """
    for some, reader in read_messages(stream, columns, key_fields, keys):
        yield lines_of(some, reader)


def read_messages(
    stream: ByteSource, columns: Sequence[Column], key_fields: Sequence[str], keys: KeyBounds
) -> Iterator[tuple[list[bytes], StructRowReader]]:
    """The SnapshotRow messages of ``keys``, some megabytes at a time, and their reader.

    Rows must be sorted.

    :raises BadBytes: at a message that isn't a row; not each message is checked.
    """
    reader = StructRowReader(columns, key_fields)

    def key_of(message: bytes) -> bytes:
        return _row(message, reader)[0]

    for batch in output_.messages(output_.ranged(stream, None, None, LINES_BLOCK)):
        yield list(row_keys.records(batch, keys, key_of)), reader


def lines_of(messages: Sequence[bytes], reader: StructRowReader) -> bytes:
    """The lines of SnapshotRow messages, each with its newline.

    :raises BadBytes: at a message that isn't a row.
    """
    return b"\n".join([*(reader.line(message, *_struct(message)) for message in messages), b""])


def _row(message: bytes, reader: StructRowReader) -> tuple[bytes, bytes]:
    return reader.row(message, *_struct(message))


def _struct(message: bytes) -> tuple[int, int]:
    """Start and end of the row in a SnapshotRow."""
    start, end = _part(message, 0, _ROW)
    if end != len(message):
        raise BadBytes(f"not a row: {message[:80]!r}")
    return start, end


def read_diff(
    stream: ByteSource,
    columns: Sequence[Column] | None,
    start: int | None = None,
    stop: int | None = None,
) -> Iterator[Change]:
    """The changes, in the file's order.

    :raises BadBytes: at a message that isn't a change.
    """
    reader = StructRowReader(columns, ())
    for batch in output_.messages(output_.ranged(stream, start, stop)):
        for message in batch:
            yield _change(message, reader)


def read_new_rows(
    stream: ByteSource,
    columns: Sequence[Column] | None,
    keys: KeyBounds,
    known: Container[bytes],
    projection: Projection | None = None,
) -> dict[bytes, bytes | None]:
    """The last new row of each of ``keys`` that isn't ``known``, as a SnapshotRow message.

    None: it was deleted. Changes must be sorted. ``projection``: the rows' columns; all if None.
    A row whose columns aren't in the table's order is a line then.

    :raises BadBytes: at a message that isn't a change; not each message is checked.
    """
    found: dict[bytes, bytes | None] = {}
    reader = StructRowReader(columns, ())
    heads, wanted = ((), b"") if projection is None else (projection.entry_heads, projection.wanted)
    to = (keys.low, keys.high, known, found, heads, wanted)
    for some in output_.messages(output_.ranged(stream, None, None)):
        at = 0
        while (at := _usual(some, at, to)) < len(some):
            end = len(some) if struct_reader.module is None else at + 1
            for message in row_keys.records(some[at:end], keys, _change_key):
                action, key, _, new = _parts(message)
                if key not in known and action is not Action.TRUNCATE:
                    found[key] = None if new is None else _new_row(message, new, reader, projection)
            at = end
    return found


def _usual(some: list[bytes], at: int, to: struct_reader.NewRows) -> int:
    """Compiled code reads the changes from ``at`` on; returns the first for Python."""
    return at if struct_reader.module is None else struct_reader.module.new_messages(some, at, to)


def _new_row(
    message: bytes, new: tuple[int, int], reader: StructRowReader, projection: Projection | None
) -> bytes:
    if projection is None:
        return _snapshot_row(message[slice(*new)])
    return projection.line(reader.line(message, *new))


def _snapshot_row(struct: bytes) -> bytes:
    return b"\x0a" + length(len(struct)) + struct


def _change_key(message: bytes) -> bytes:
    return _parts(message)[1]


def _change(message: bytes, reader: StructRowReader) -> Change:
    action, key, old, new = _parts(message)
    if action is Action.TRUNCATE:
        return TRUNCATION
    return Change(
        action,
        key,
        None if old is None else reader.line(message, *old),
        None if new is None else reader.line(message, *new),
    )


_Bounds = tuple[int, int] | None


def _parts(message: bytes) -> tuple[Action, bytes, _Bounds, _Bounds]:
    """Action, key, and where the old and the new row are."""
    scanned = None if struct_reader.module is None else struct_reader.module.change(message)
    if scanned is not None and (known := _ACTIONS.get(scanned[0])) is not None:
        return known, *scanned[1:]
    at = 0
    action: Action | None = None
    key = b""
    old: _Bounds = None
    new: _Bounds = None
    while at < len(message):
        tag = message[at]
        start, at = _part(message, at, tag)
        if tag == _ACTION:
            action = _ACTIONS.get(message[start:at])
        elif tag == _KEY:
            key = message[start:at]
        elif tag == _OLD:
            old = start, at
        elif tag == _NEW:
            new = start, at
    if action is None:
        raise BadBytes(f"not a change: {message[:80]!r}")
    return action, key, old, new


def _part(message: bytes, at: int, tag: int) -> tuple[int, int]:
    try:
        if message[at] != tag or tag & 7 != 2:
            raise BadBytes(f"not a part of a change or a row: {message[at : at + 80]!r}")
        size, start = struct_rows.read(message, at + 1)
    except IndexError:
        raise BadBytes(f"a message ends inside a part: {message[:80]!r}") from None
    if start + size > len(message):
        raise BadBytes(
            f"a field declares {size} bytes, more than its message of {len(message)} has"
        )
    return start, start + size
