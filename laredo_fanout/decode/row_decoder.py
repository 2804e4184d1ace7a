"""The decoder of one relation's rows, from pgoutput's bytes to keys and lines.

A row is a list of columns, each a kind byte (n null, u unchanged TOAST, t text)
and, for text, a length and that many bytes
(https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html,
TupleData). ``laredo_model.column`` has the rule by which a type's text becomes JSON,
and ``laredo_model.line`` the rule's function. The compiled scan (``_row_scan.c``) decodes
plain rows; every other row is decoded here, and every error is raised here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as beyond_the_end
from typing import NamedTuple, NoReturn, Protocol, cast

from laredo_fanout.postgres.connections import ReplicationStreamBroken
from laredo_model import key, line
from laredo_model.column import TypeInfo, rule_of
from laredo_model.line import Action

# The layout of a relation's plain rows, for the compiled scan (``_row_scan.c``).
#
# Each column's rule is given by its letter. C calls the rule's function for the rules that it
# doesn't implement.

try:
    from laredo_fanout.decode._row_scan import PlainRows as PlainRows  # noqa: PLC0414
except ImportError:  # there was no C compiler when this was installed
    COMPILED = False
else:
    COMPILED = True


class ChangeSink(Protocol):
    """Sink for a table's decoded changes, in the stream's order."""

    actions: bytearray
    keys: list[bytes]
    lines: list[bytes]


def plain_rows(
    names: Sequence[str], types: Sequence[TypeInfo], key_positions: Sequence[int], sink: ChangeSink
) -> PlainRows | None:
    """Decoder of plain rows with these columns into ``sink``; None without the compiled scan."""
    if not COMPILED:
        return None
    return PlainRows(
        "".join(rule_of(each).value for each in types).encode(),
        tuple(line.names_prefix(names)),
        tuple(map(line.encoder, types)),
        tuple(key_positions),
        key.of_fragment if key_positions else key.digest,
        sink.actions,
        sink.keys,
        sink.lines,
    )


_TUPLE = 30
"""Offset of the first tuple's kind in INSERT, UPDATE and DELETE messages."""
_NEW, _OLD_KEY, _OLD_ROW = b"N", b"K", b"O"
_NULL, _TEXT, _UNCHANGED = b"ntu"
_size = Struct(">I").unpack_from
_column_count = Struct(">H").unpack_from

_Values = list[bytes | None]
"""Each column's JSON; None where PostgreSQL didn't send an unchanged TOAST value."""


class RowDecoder(NamedTuple):
    """Functions that decode the messages of one relation into its sink.

    Each raises ReplicationStreamBroken if a message isn't one of this relation.
    """

    put: Callable[[bytes, int], None]
    """INSERT and UPDATE messages; the number is the action."""
    delete: Callable[[bytes], None]
    plain: PlainRows | None = None
    """Decoder of plain rows; None without the compiled scan."""


def row_decoder(
    names: Sequence[str], types: Sequence[TypeInfo], key_names: Sequence[str], sink: ChangeSink
) -> RowDecoder:
    """The decoder of a relation with these columns, whose key is ``key_names`` in key order.

    Without a key it takes inserts only, and the line's digest is the key.
    """
    positions = [list(names).index(name) for name in key_names]
    rows = _Rows(names, types, positions, sink)
    plain = plain_rows(names, types, positions, sink)
    return RowDecoder(rows.put if positions else rows.put_keyless, rows.delete, plain)


class _Rows:
    def __init__(
        self,
        names: Sequence[str],
        types: Sequence[TypeInfo],
        key_positions: Sequence[int],
        sink: ChangeSink,
    ) -> None:
        nulls = [None if number in key_positions else b"null" for number in range(len(types))]
        self._columns = tuple(zip(map(line.encoder, types), nulls, strict=True))
        self._key_positions = key_positions
        self._sink = sink
        self._pieces: list[bytes] = []
        for prefix in line.names_prefix(names):
            self._pieces += (prefix, b"")
        self._pieces.append(b"}")

    def put(self, message: bytes, action: int) -> None:
        """Decode an INSERT or UPDATE."""
        if message[_TUPLE : _TUPLE + 1] != _NEW:
            self._update_with_old(message)
            return
        values, end = self._values(message, _TUPLE)
        self._check_end(message, end)
        self._add(action, self._key(values, message), self._line(values))

    def put_keyless(self, message: bytes, action: int) -> None:
        """Decode an INSERT into a table without a key, which may send nothing else."""
        if action != Action.INSERT or message[_TUPLE : _TUPLE + 1] != _NEW:
            self._no_key(message)
        values, end = self._values(message, _TUPLE)
        self._check_end(message, end)
        if None in values:
            self._no_key(message)
        row_line = self._line(values)
        self._add(action, key.digest(row_line), row_line)

    def delete(self, message: bytes) -> None:
        """Decode a DELETE, which has the old key or row."""
        old, end = self._old_values(message)
        self._check_end(message, end)
        self._add(Action.DELETE, self._key(old, message), b"")

    def _update_with_old(self, message: bytes) -> None:
        """Decode an UPDATE that has the old key, or with REPLICA IDENTITY FULL the old row.

        PostgreSQL sends the old key if it changed, and also if a part of it is TOASTed
        (ExtractReplicaIdentity in heapam.c).
        """
        old, at = self._old_values(message)
        if message[at : at + 1] != _NEW:
            raise ReplicationStreamBroken(f"an UPDATE lacks its new row: {message[:80]!r}")
        new, end = self._values(message, at)
        self._check_end(message, end)
        has_row = message[_TUPLE : _TUPLE + 1] == _OLD_ROW
        for position in range(len(new)) if has_row else self._key_positions:
            if new[position] is None:
                new[position] = old[position]
        old_key, new_key = self._key(old, message), self._key(new, message)
        if old_key == new_key:
            self._add(Action.UPDATE, new_key, self._line(new))
        else:
            self._add(Action.DELETE, old_key, b"")
            self._add(Action.INSERT, new_key, self._line(new))

    def _old_values(self, message: bytes) -> tuple[_Values, int]:
        if message[_TUPLE : _TUPLE + 1] not in (_OLD_KEY, _OLD_ROW):
            raise ReplicationStreamBroken(f"a change lacks its old key: {message[:80]!r}")
        return self._values(message, _TUPLE)

    def _values(self, message: bytes, at: int) -> tuple[_Values, int]:
        """The values of the tuple whose kind is at ``at``, and the offset of its end."""
        values: _Values = []
        try:
            if _column_count(message, at + 1)[0] != len(self._columns):
                raise ReplicationStreamBroken(
                    f"a row hasn't the {len(self._columns)} columns of its relation:"
                    f" {message[:80]!r}"
                )
            at += 3
            for encode, null in self._columns:
                kind = message[at]
                at += 1
                if kind == _TEXT:
                    start = at + 4
                    at = start + _size(message, at)[0]
                    values.append(encode(message[start:at]))
                elif kind == _NULL:
                    values.append(null or self._no_key(message))
                elif kind == _UNCHANGED:
                    values.append(None)
                else:
                    raise ReplicationStreamBroken(
                        f"a column is of the unknown kind {kind}: {message[:80]!r}"
                    )
        except (IndexError, beyond_the_end):
            self._cut(message)
        return values, at

    def _key(self, values: _Values, message: bytes) -> bytes:
        parts = [values[position] for position in self._key_positions]
        if None in parts:
            self._no_key(message)
        return key.of_fragments(cast("list[bytes]", parts))

    def _line(self, values: _Values) -> bytes:
        pieces = self._pieces.copy()
        if None not in values:
            pieces[1::2] = cast("list[bytes]", values)
            return b"".join(pieces)
        pieces[1::2] = [line.MISSING if value is None else value for value in values]
        return line.PARTIAL + b"".join(pieces)

    def _add(self, action: int, row_key: bytes, row_line: bytes) -> None:
        self._sink.actions.append(action)
        self._sink.keys.append(row_key)
        self._sink.lines.append(row_line)

    def _check_end(self, message: bytes, end: int) -> None:
        if end != len(message):
            self._cut(message)

    def _cut(self, message: bytes) -> NoReturn:
        raise ReplicationStreamBroken(f"a row doesn't fill its message: {message[:80]!r}")

    def _no_key(self, message: bytes) -> NoReturn:
        raise ReplicationStreamBroken(f"a key column is NULL or wasn't sent: {message[:80]!r}")
