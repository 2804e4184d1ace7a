"""jsonl: a row a line in a snapshot, a change a line in a diff; always ending in ``\\n``.

{"id":42,"name":"Ada"}
{"action":"UPDATE","key":"42","old":{...},"new":{...}}

With ``go_key_of`` a change whose key Go prints in another way has both:

{"action":"UPDATE","key":"1000001","KEY":"1.000001e+06","old":{...},"new":{...}}

Go's encoding/json matches names without regard to case, and the last one counts: so the
original's readers take the second, and all others, who know no KEY, the first.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain, islice

import orjson

from laredo_archive.codec import output as output_
from laredo_archive.codec import row_keys as row_keys_
from laredo_archive.codec import struct_reader
from laredo_archive.codec.output import (
    DIFF_BLOCK,
    SNAPSHOT_BLOCK,
    ByteSink,
    ByteSource,
    EncodedFile,
    FileWriter,
    Output,
)
from laredo_archive.codec.row_keys import STRING, KeyBounds, RowKeys, compact
from laredo_archive.codec.struct_reader import Projection
from laredo_archive.errors import BadBytes
from laredo_model import line as lines_
from laredo_model.column import Column
from laredo_model.errors import BadLine
from laredo_model.line import TRUNCATION, Action, Change

_CHANGES_AT_ONCE = 1000
_HEADS = {
    Action.INSERT: b'{"action":"INSERT","key":',
    Action.UPDATE: b'{"action":"UPDATE","key":',
    Action.DELETE: b'{"action":"DELETE","key":',
}
_ACTIONS = {action.name.encode(): action for action in _HEADS}
_TRUNCATE = b'{"action":"TRUNCATE"}\n'
_CHANGE = re.compile(
    rb'\{"action":"(INSERT|UPDATE|DELETE)","key":(' + STRING + rb')(?:,"KEY":' + STRING + rb")?",
    re.DOTALL,
)
_ACTION_OF_HEAD = {head + b'"': action.name.encode() for action, head in _HEADS.items()}
_HEAD_BYTES = len(_HEADS[Action.INSERT]) + 1
"""Bytes up to the key; the actions' names are equally long."""
_ROWS_BETWEEN = b'},"new":{'
KeyOf = Callable[[bytes], bytes]
"""Gives the key of a row's line."""
NEW_ROWS_BLOCK = 1 << 20
LINES_BLOCK = 4 << 20


class JsonlSnapshotEncoder:
    """Rows into a jsonl snapshot."""

    def __init__(
        self, sink: ByteSink, columns: Sequence[Column] = (), output: Output = FileWriter
    ) -> None:
        self._output = output(sink, SNAPSHOT_BLOCK, columns)

    def write(self, keys: Sequence[bytes], lines: Sequence[bytes]) -> None:
        """The next rows; takes memory for another copy of their bytes."""
        self._output.put(keys, b"\n".join([*lines, b""]), lambda: (len(row) + 1 for row in lines))

    def close(self) -> EncodedFile:
        """End the file; the sink stays open."""
        return self._output.close()


class JsonlDiffEncoder:
    """Net changes into a jsonl diff."""

    def __init__(
        self, sink: ByteSink, go_key_of: KeyOf | None = None, output: Output = FileWriter
    ) -> None:
        """``go_key_of`` gives a row's key as Go prints it."""
        self._output = output(sink, DIFF_BLOCK, ())
        self._go_key_of = go_key_of

    def truncate(self) -> None:
        """Record that the table was emptied in the diff's window, before every change."""
        self._output.header(_TRUNCATE)

    def write(self, changes: Iterable[Change]) -> None:
        """The next changes, none of them a TRUNCATE."""
        remaining = iter(changes)
        while batch := list(islice(remaining, _CHANGES_AT_ONCE)):
            if self._go_key_of is None:
                rows = list(map(_change_line, batch))
            else:
                rows = [_change_line(change, self._go_key_of) for change in batch]
            keys = [change.key for change in batch]
            self._output.put(keys, b"".join(rows), lambda rows=rows: map(len, rows))  # type: ignore[misc]

    def close(self) -> EncodedFile:
        """End the file; the sink stays open."""
        return self._output.close()


def _change_line(change: Change, go_key_of: KeyOf | None = None) -> bytes:
    action, key, old, new = change
    text = _HEADS[action] + orjson.dumps(key.decode())
    if go_key_of is not None and (go_key := go_key_of(new or old or b"")) != key:
        text += b',"KEY":' + orjson.dumps(go_key.decode())
    if old is not None:
        text += b',"old":' + old
    if new is not None:
        text += b',"new":' + new
    return text + b"}\n"


def read_snapshot(
    stream: ByteSource,
    columns: Sequence[Column] | None,
    key_fields: Sequence[str],
    start: int | None = None,
    stop: int | None = None,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """The rows as keys and lines, a block at a time.

    :raises BadBytes: at a line that isn't a row.
    """
    names = None if columns is None else [column.name for column in columns]
    row_keys = RowKeys(key_fields, names)
    for batch in _whole_lines(stream, start, stop):
        for row in batch:
            if row[-1] != 125 or row[0] != 123:
                raise BadBytes(f"not a row: {row[:80]!r}")
        yield row_keys.of_lines(batch)


def read_lines(
    stream: ByteSource, columns: Sequence[Column], key_fields: Sequence[str], keys: KeyBounds
) -> Iterator[bytes]:
    """The lines of ``keys``, some megabytes at a time.

    Rows must be sorted.

    :raises BadBytes: at a line that isn't a row; not each line is checked.
    """
    row_keys = RowKeys(key_fields, [column.name for column in columns])

    def key_at(block: bytes, at: int) -> bytes:
        keys, _ = row_keys.of_lines([block[at : block.find(b"\n", at)]])
        return keys[0]

    for block in output_.line_blocks(stream, LINES_BLOCK):
        yield row_keys_.lines(block, keys, key_at)


def read_diff(
    stream: ByteSource, start: int | None = None, stop: int | None = None
) -> Iterator[Change]:
    """The changes, in the file's order.

    :raises BadBytes: at a line that isn't a change.
    """
    return map(_parse_change, chain.from_iterable(_whole_lines(stream, start, stop)))


def _whole_lines(stream: ByteSource, start: int | None, stop: int | None) -> Iterator[list[bytes]]:
    for batch in output_.lines(output_.ranged(stream, start, stop)):
        whole = [line for line in batch if line] if b"" in batch else batch
        if whole:
            yield whole


def read_new_rows(
    stream: ByteSource,
    keys: KeyBounds,
    known: Container[bytes],
    projection: Projection | None = None,
) -> dict[bytes, bytes | None]:
    """The last new row of each of ``keys`` that isn't ``known``.

    None: it was deleted. Changes must be sorted. ``projection``: the rows' columns; all if None.

    :raises BadBytes: at a line that isn't a change; not each line is checked.
    :raises BadLine: at a row without the columns of the ``projection``.
    """
    found: dict[bytes, bytes | None] = {}
    heads, wanted = ((), b"") if projection is None else (projection.line_heads, projection.wanted)
    to = (keys.low, keys.high, known, found, heads, wanted)
    for block in output_.line_blocks(stream, NEW_ROWS_BLOCK):
        at = 0
        while (at := _usual(block, at, to)) < len(block):
            end = len(block) if struct_reader.module is None else block.index(b"\n", at) + 1
            inside = row_keys_.lines(block[at:end], keys, _key_at)
            found.update(_projected(_new_rows(inside, known), projection))
            at = end
    return found


def _usual(block: bytes, at: int, to: struct_reader.NewRows) -> int:
    """Compiled code reads the lines from ``at`` on; returns the start of the first for Python."""
    return at if struct_reader.module is None else struct_reader.module.new_lines(block, at, to)


def _projected(
    rows: Iterator[tuple[bytes, bytes | None]], projection: Projection | None
) -> Iterator[tuple[bytes, bytes | None]]:
    if projection is None:
        return rows
    return ((key, row if row is None else projection.line(row)) for key, row in rows)


def _key_at(block: bytes, at: int) -> bytes:
    head = _CHANGE.match(block, at)
    if head is None:
        return _parse_odd_change(block[at : block.find(b"\n", at)]).key
    return _key(head[2])


def _key(text: bytes) -> bytes:
    if b"\\" not in text:
        return text[1:-1]
    found: str = orjson.loads(text)
    return found.encode()


def _new_rows(block: bytes, known: Container[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    for line in block.split(b"\n"):
        action = _ACTION_OF_HEAD.get(line[:_HEAD_BYTES])
        end = line.find(b'"', _HEAD_BYTES)
        key = line[_HEAD_BYTES:end]
        if action is not None and b"\\" not in key:
            if key not in known:
                rows = _rows(action, line, end + 1)
                yield key, _parse_odd_change(line).new if rows is None else rows[1]
        elif line:
            change = _parse_change(line)
            if change.action is not Action.TRUNCATE and change.key not in known:
                yield change.key, change.new


def _parse_change(line: bytes) -> Change:
    head = _CHANGE.match(line)
    rows = None if head is None else _rows(head[1], line, head.end())
    if head is None or rows is None:
        return _parse_odd_change(line)
    return Change(_ACTIONS[head[1]], _key(head[2]), *rows)


def _rows(action: bytes, line: bytes, at: int) -> tuple[bytes | None, bytes | None] | None:
    """The old and the new row, which begin at ``at``; None if their bounds aren't certain."""
    if line[-1:] != b"}":
        return None
    if action == b"INSERT" and line.startswith(b',"new":{', at):
        return None, line[at + 7 : -1]
    if action == b"DELETE" and line.startswith(b',"old":{', at):
        return line[at + 7 : -1], None
    if action == b"UPDATE" and line.startswith(b',"old":{', at):
        middle = line.find(_ROWS_BETWEEN, at)
        # A json value may contain the same bytes: only a single find is certain.
        if middle > 0 and line.find(_ROWS_BETWEEN, middle + 1) < 0:
            return line[at + 7 : middle + 1], line[middle + 8 : -1]
    return None


def _parse_odd_change(line: bytes) -> Change:
    """Parse any JSON object with these members, in any order, with blanks or unknown members."""
    try:
        try:
            members = dict(lines_.items(line))
        except BadLine:
            members = dict(lines_.items(compact(line)))
        action = Action[orjson.loads(members[b'"action"'])]
        if action is Action.TRUNCATE:
            return TRUNCATION
        key: str = orjson.loads(members[b'"key"'])
        old, new = (_row(members.get(name, b"null").strip()) for name in (b'"old"', b'"new"'))
        return Change(action, key.encode(), old, new)
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise BadBytes(f"not a change: {line[:80]!r}") from wrong


def _row(fragment: bytes) -> bytes | None:
    if fragment == b"null":
        return None
    if fragment[:1] != b"{":
        raise BadBytes(f"not a row: {fragment[:80]!r}")
    return fragment
