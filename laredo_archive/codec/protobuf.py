"""protobuf: SnapshotRow or DiffChange messages, each with its length in front.

See proto/laredo/snapshotter/v1/artifact.proto for the messages, ``struct_rows``
for the rows in them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from laredo_archive.codec import blocks, struct_rows, varint
from laredo_archive.codec.blocks import Source
from laredo_archive.codec.errors import BadBytes
from laredo_archive.codec.output import DIFF_BLOCK, SNAPSHOT_BLOCK, Encoded, Output, Sink
from laredo_archive.codec.struct_reader import RowReader
from laredo_archive.codec.varint import varint as length
from laredo_model.change import TRUNCATION, Action, Change
from laredo_model.column import Column

_CHANGES_AT_ONCE = 1000
_ROW = 0x0A
_ACTION, _KEY, _OLD, _NEW = 0x0A, 0x12, 0x1A, 0x22
_HEADS = {
    action: bytes([_ACTION, len(action.name)]) + action.name.encode() + bytes([_KEY])
    for action in (Action.INSERT, Action.UPDATE, Action.DELETE)
}
_TRUNCATE = bytes([_ACTION, 8]) + b"TRUNCATE"
_ACTIONS = {action.name.encode(): action for action in Action}


class SnapshotEncoder:
    """Rows into a protobuf snapshot."""

    def __init__(self, sink: Sink, columns: Sequence[Column]) -> None:
        self._output = Output(sink, SNAPSHOT_BLOCK)
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

    def close(self) -> Encoded:
        """What became of the file; the sink stays open."""
        return self._output.close()


class DiffEncoder:
    """Net changes into a protobuf diff."""

    def __init__(self, sink: Sink, columns: Sequence[Column]) -> None:
        self._output = Output(sink, DIFF_BLOCK)
        self._encode = struct_rows.encoder(columns)

    def truncate(self) -> None:
        """The table was emptied in the diff's window: comes before every change."""
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

    def close(self) -> Encoded:
        """What became of the file; the sink stays open."""
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
    stream: Source,
    columns: Sequence[Column] | None,
    key_fields: Sequence[str],
    start: int | None = None,
    stop: int | None = None,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """The rows, keys beside lines, a block at a time.

    :raises BadBytes: at a message that isn't a row.
    """
    reader = RowReader(columns, key_fields)
    for batch in blocks.messages(blocks.ranged(stream, start, stop)):
        pairs = [_row(message, reader) for message in batch]
        yield [key for key, _ in pairs], [line for _, line in pairs]


def _row(message: bytes, reader: RowReader) -> tuple[bytes, bytes]:
    start, end = _part(message, 0, _ROW)
    if end != len(message):
        raise BadBytes(f"not a row: {message[:80]!r}")
    return reader.row(message, start, end)


def read_diff(
    stream: Source,
    columns: Sequence[Column] | None,
    start: int | None = None,
    stop: int | None = None,
) -> Iterator[Change]:
    """The changes, in the file's order.

    :raises BadBytes: at a message that isn't a change.
    """
    reader = RowReader(columns, ())
    for batch in blocks.messages(blocks.ranged(stream, start, stop)):
        for message in batch:
            yield _change(message, reader)


def _change(message: bytes, reader: RowReader) -> Change:
    at = 0
    action: Action | None = None
    key = b""
    old = new = None
    while at < len(message):
        tag = message[at]
        start, at = _part(message, at, tag)
        if tag == _ACTION:
            action = _ACTIONS.get(message[start:at])
        elif tag == _KEY:
            key = message[start:at]
        elif tag == _OLD:
            old = reader.line(message, start, at)
        elif tag == _NEW:
            new = reader.line(message, start, at)
    if action is None:
        raise BadBytes(f"not a change: {message[:80]!r}")
    return TRUNCATION if action is Action.TRUNCATE else Change(action, key, old, new)


def _part(message: bytes, at: int, tag: int) -> tuple[int, int]:
    try:
        if message[at] != tag or tag & 7 != 2:
            raise BadBytes(f"not a part of a change or a row: {message[at : at + 80]!r}")
        size, start = varint.read(message, at + 1)
    except IndexError:
        raise BadBytes(f"a message ends inside a part: {message[:80]!r}") from None
    if start + size > len(message):
        raise BadBytes(f"a part of {size} bytes in a message of {len(message)}")
    return start, start + size
