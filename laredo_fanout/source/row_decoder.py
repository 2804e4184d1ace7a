"""Rows of one relation, from the stream's bytes to keys and lines, by code made for the relation.

A row is a list of columns, each a kind byte (n null, u unchanged TOAST, t text)
and, for text, a length and that many bytes
(https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html,
TupleData). For each relation one function is generated that takes a row apart,
encodes each value by its type's rule and joins the line: a loop over columns
would cost three times as much. Before it a pattern is tried (row_pattern.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as beyond_the_end
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from laredo_fanout.errors import StreamBroken
from laredo_fanout.source import plain_rows, row_pattern
from laredo_fanout.source.plain_rows import QUOTED_AS_IS
from laredo_model import fragment, key, line
from laredo_model.change import Action
from laredo_model.rule import Rule, TypeInfo, base_of, rule_of

PADDING = b"\0\0\0\0"
"""What must follow a message: the generated code reads a length even behind a last null."""

_FIRST_TUPLE = 30
"""Offset of the first tuple's kind byte in INSERT, UPDATE and DELETE messages."""
_NEW, _OLD_ROW = b"N", ord("O")


if TYPE_CHECKING:
    from laredo_fanout.source.plain_rows import PlainRows


class Sink(Protocol):
    """Where a table's decoded changes are put, in the stream's order."""

    actions: bytearray
    keys: list[bytes]
    lines: list[bytes]


class RowDecoder(NamedTuple):
    """Decodes the messages (padded with :data:`PADDING`) of one relation into its sink.

    Each raises StreamBroken when a message isn't one of this relation.
    """

    put: Callable[[bytes, int], None]
    """INSERT and UPDATE messages; the number is the action."""
    delete: Callable[[bytes], None]
    plain: PlainRows | None = None
    """The same for plain rows, where that is compiled."""


def compile_decoder(
    names: Sequence[str], types: Sequence[TypeInfo], key_names: Sequence[str], sink: Sink
) -> RowDecoder:
    """The decoder of a relation with these columns, whose key is ``key_names`` in key order.

    Without a key it takes inserts only, and puts the digest of the line in the key's place.
    """
    positions = [list(names).index(name) for name in key_names]
    source, scope = _source(names, types, positions)
    slow = _SlowPaths(names, positions, sink)
    scope |= {
        "add_action": sink.actions.append,
        "add_key": sink.keys.append,
        "add_line": sink.lines.append,
        "update_with_old": slow.update,
        "no_key": slow.no_key,
        "cut": slow.cut,
        "BEYOND": (IndexError, beyond_the_end),
    }
    exec(compile(source, f"<decoder of {', '.join(names)[:60]}>", "exec"), scope)
    slow.values = scope["values"]
    put = _put_whole(names, types, positions, scope, sink) if positions else scope["put"]
    return RowDecoder(put, slow.delete, plain_rows.plain_rows(names, types, positions, sink))


def _put_whole(
    names: Sequence[str],
    types: Sequence[TypeInfo],
    key_positions: Sequence[int],
    others: dict[str, Any],
    sink: Sink,
) -> Callable[[bytes, int], None]:
    """The quicker function for rows without nulls; all others go to the one of ``others``."""
    raw_key = len(key_positions) == 1 and _kept_raw(types[key_positions[0]])
    source, scope = row_pattern.source(names, types, key_positions, raw_key=raw_key)
    scope |= {name: others[name] for name in ("add_action", "add_key", "add_line")}
    scope["put"] = row_pattern.Misses(scope, others["put"], sink.lines).put
    exec(compile(source, f"<whole rows of {', '.join(names)[:60]}>", "exec"), scope)
    put: Callable[[bytes, int], None] = scope["put_whole"]
    return put


class _SlowPaths:
    """What is rare: updates that carry the old key or row, deletes, missing keys."""

    values: Callable[[bytes, int], tuple[list[bytes], int]]

    def __init__(self, names: Sequence[str], key_positions: Sequence[int], sink: Sink) -> None:
        self._prefixes = line.names_prefix(names)
        self._key_positions = key_positions
        self._sink = sink

    def update(self, message: bytes) -> None:
        """An UPDATE whose old key, or with REPLICA IDENTITY FULL whose old row, is sent along.

        The old key is sent when it changed, and also when a part of it is TOASTed
        (ExtractReplicaIdentity in heapam.c).
        """
        old, at = self.values(message, _FIRST_TUPLE + 3)
        if message[at : at + 1] != _NEW:
            raise StreamBroken(f"an UPDATE lacks its new row: {message[:80]!r}")
        new, end = self.values(message, at + 3)
        self._check_end(message, end)
        if message[_FIRST_TUPLE] == _OLD_ROW:
            known: Sequence[int] = range(len(new))
        else:
            known = self._key_positions
        for position in known:
            if new[position] == line.MISSING:
                new[position] = old[position]
        old_key, new_key = self._key(old, message), self._key(new, message)
        if old_key == new_key:
            self._add(Action.UPDATE, new_key, self._line(new))
        else:
            self._add(Action.DELETE, old_key, b"")
            self._add(Action.INSERT, new_key, self._line(new))

    def delete(self, message: bytes) -> None:
        """A DELETE: the old key or row."""
        old, end = self.values(message, _FIRST_TUPLE + 3)
        self._check_end(message, end)
        self._add(Action.DELETE, self._key(old, message), b"")

    def no_key(self, message: bytes) -> None:
        """A row without its key, which PostgreSQL never sends."""
        raise StreamBroken(f"a row has no key value: {message[:80]!r}")

    def cut(self, message: bytes) -> None:
        """A row whose columns end before or behind the message, which PostgreSQL never sends."""
        raise StreamBroken(f"a row doesn't fill its message: {message[:80]!r}")

    def _check_end(self, message: bytes, end: int) -> None:
        if end != len(message) - len(PADDING):
            self.cut(message)

    def _key(self, fragments: Sequence[bytes], message: bytes) -> bytes:
        parts = [fragments[position] for position in self._key_positions]
        if line.MISSING in parts:
            self.no_key(message)
        return key.of_fragments(parts)

    def _line(self, fragments: Sequence[bytes]) -> bytes:
        pieces: list[bytes] = []
        for prefix, value in zip(self._prefixes, fragments, strict=True):
            pieces += (prefix, value)
        whole = b"".join(pieces) + b"}"
        return line.PARTIAL + whole if line.MISSING in fragments else whole

    def _add(self, action: Action, row_key: bytes, row_line: bytes) -> None:
        self._sink.actions.append(action)
        self._sink.keys.append(row_key)
        self._sink.lines.append(row_line)


def _source(
    names: Sequence[str], types: Sequence[TypeInfo], key_positions: Sequence[int]
) -> tuple[str, dict[str, Any]]:
    """The code of ``put`` and ``values``, and the names that it uses."""
    scope: dict[str, Any] = {
        "kind_and_size": Struct(">BI").unpack_from,
        "join": b"".join,
        "dumps": orjson.dumps,
        "of_fragment": key.of_fragment,
        "digest": key.digest,
        "MISSING": line.MISSING,
    }
    raw_key = len(key_positions) == 1 and _kept_raw(types[key_positions[0]])
    columns: list[str] = []
    for number, type_info in enumerate(types):
        scope[f"encode_{number}"] = fragment.encoder(type_info)
        value, null = _value(number, type_info), f"v{number} = b'null'; p += 1"
        if number in key_positions:
            value = f"row_key = m[a:p]; {value}" if raw_key else value
            null = "return no_key(m)"
        columns.append(_COLUMN.format(n=number, value=value, null=null))
    prefixes = line.names_prefix(names)
    pieces = ", ".join(f"{prefix!r}, v{number}" for number, prefix in enumerate(prefixes))
    template, key_code = _PUT if key_positions else _PUT_KEYLESS, ""
    if key_positions and not raw_key:
        key_code = "        row_key = " + _key_expression(key_positions) + "\n"
    code = template.format(
        row=_indented("".join(columns)),
        no_key=" or ".join(f"v{position} is MISSING" for position in key_positions),
        key=key_code,
        pieces=pieces,
        values=", ".join(f"v{number}" for number in range(len(names))),
    )
    return code, scope


def _kept_raw(type_info: TypeInfo) -> bool:
    """Whether a key's text is the stream's very text: JSON's quotes and escapes undone."""
    return rule_of(type_info) in (Rule.INTEGER, Rule.OID, Rule.DECIMAL, Rule.TEXT)


def _key_expression(key_positions: Sequence[int]) -> str:
    if len(key_positions) == 1:
        return f"of_fragment(v{key_positions[0]})"
    parts = ", b',', ".join(f"v{position}" for position in key_positions)
    return f"join((b'[', {parts}, b']'))"


def _value(number: int, type_info: TypeInfo) -> str:  # noqa: PLR0911
    """The statement that makes column ``number``'s fragment of ``m[a:p]``."""
    name = f"v{number}"
    base = base_of(type_info)
    built_in = base.namespace == "pg_catalog"
    match rule_of(type_info):
        case Rule.INTEGER | Rule.OID:
            return f"{name} = m[a:p]"
        case Rule.BOOLEAN:
            return f"{name} = b'true' if m[a:p] == b't' else b'false'"
        case Rule.DECIMAL:
            return f"{name} = b'\"%b\"' % m[a:p]"
        case Rule.FLOAT:  # the last byte of NaN and Infinity is beyond the digits
            return f"{name} = m[a:p] if size and m[p - 1] < 58 else b'\"%b\"' % m[a:p]"
        case Rule.TIMESTAMP if base.name == "timestamptz":
            usual = "m[a + 10 : a + 11] == b' ' and m[p - 3 : p] == b'+00'"
            return (
                f"{name} = b'\"%bT%b:00\"' % (m[a : a + 10], m[a + 11 : p]) if {usual}"
                f" else encode_{number}(m[a:p])"
            )
        case Rule.JSON if base.name == "jsonb":
            return f"{name} = m[a:p]"
        case Rule.TEXT if built_in and base.name in QUOTED_AS_IS:
            return f"{name} = b'\"%b\"' % m[a:p]"
        case Rule.TEXT:
            return f"{name} = dumps(m[a:p].decode())"
        case _:
            return f"{name} = encode_{number}(m[a:p])"


def _indented(code: str) -> str:
    return "".join(f"        {row}\n" if row else "\n" for row in code.splitlines())


_COLUMN = """\
k, size = kind_and_size(m, p)
if k == 116:
    a = p + 5; p = a + size; {value}
elif k == 110:
    {null}
else:
    v{n} = MISSING; p += 1; partial = True
"""

_VALUES = """\

def values(m, p):
    partial = False
    try:
{row}
    except BEYOND:
        return cut(m)
    return [{values}], p
"""

_PUT_KEYLESS = (
    """\
def put(m, action):
    if action != 1:
        return no_key(m)
    partial = False
    p = 33
    try:
{row}
    except BEYOND:
        return cut(m)
    if p != len(m) - 4:
        return cut(m)
    if partial:
        return no_key(m)
    row_line = join(({pieces}, b'}}'))
    add_line(row_line)
    add_key(digest(row_line))
    add_action(action)
"""
    + _VALUES
)

_PUT = (
    """\
def put(m, action):
    if m[30] != 78:
        return update_with_old(m)
    partial = False
    p = 33
    try:
{row}
    except BEYOND:
        return cut(m)
    if p != len(m) - 4:
        return cut(m)
    if partial:
        if {no_key}:
            return no_key(m)
{key}        add_line(join((b'\\x01', {pieces}, b'}}')))
    else:
{key}        add_line(join(({pieces}, b'}}')))
    add_key(row_key)
    add_action(action)
"""
    + _VALUES
)
