r"""Rows without nulls, taken apart by one regular expression made for the relation.

PostgreSQL's text holds no NUL byte. So where every column is there, each comes
as ``t``, a length that begins with two NUL bytes (of less than 64 kB) and text
without any: a value ends where the next ``t\0\0`` begins, and there is only one
way to match. With a null in between there may be several, so such rows don't
match, nor do those whose values look unusual for their type; they are taken
apart column by column. It costs half as much as reading each length in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

from laredo_fanout.source.plain_rows import QUOTED_AS_IS
from laredo_model import fragment, key, line
from laredo_model.rule import Rule, TypeInfo, base_of, rule_of

_HEADER = rb"t\0\0(?s:..)"
_ANY = rb"([^\0]*)"
_BOOLEANS = {b"t": b"true", b"f": b"false"}


Put = Callable[[bytes, int], None]


class _Column(NamedTuple):
    """How a column's text is matched, and what makes its fragment of the groups.

    ``pieces`` are expressions over ``{0}``, ``{1}``, the column's groups.
    """

    pattern: bytes
    pieces: tuple[str, ...] = ("{0}",)
    groups: int = 1


_TRIED, _UNTRIED = 100, 20_000
_NEAR = 2
"""So few rows after the one before, a row that doesn't match is one of many."""

_QUOTED = _Column(_ANY, ("b'\"'", "{0}", "b'\"'"))


def source(
    names: Sequence[str], types: Sequence[TypeInfo], key_positions: Sequence[int], *, raw_key: bool
) -> tuple[str, dict[str, Any]]:
    """The code of ``put_whole(message, action)``, and the names that it uses.

    It hands what doesn't match to ``put``; with ``raw_key`` the key is the one key column's text.
    """
    pattern = [b"N", len(names).to_bytes(2, "big").replace(b"\\", b"\\\\")]
    scope: dict[str, Any] = {
        "booleans": _BOOLEANS,
        "dumps": orjson.dumps,
        "join": b"".join,
        "of_fragment": key.of_fragment,
    }
    groups: list[str] = []
    fragments: list[list[str]] = []
    for number, type_info in enumerate(types):
        column = _column(number, type_info)
        own = [f"g{number}_{index}" for index in range(column.groups)]
        groups += own
        fragments.append([piece.format(*own) for piece in column.pieces])
        pattern += (_HEADER, column.pattern)
        scope[f"encode_{number}"] = fragment.encoder(type_info)
    scope["match"] = re.compile(_escaped(pattern) + rb"\0\0\0\0\Z").match
    pieces: list[str] = []
    for prefix, own in zip(line.names_prefix(names), fragments, strict=True):
        pieces += (repr(prefix), *own)
    row_key = f"g{key_positions[0]}_0" if raw_key else _key(fragments, key_positions)
    code = _PUT.format(groups=", ".join(groups), pieces=_merged([*pieces, "b'}'"]), key=row_key)
    return code, scope


def _escaped(pattern: Sequence[bytes]) -> bytes:
    """The kind and the number of columns stand for themselves, all else is a pattern."""
    kind, count, *columns = pattern
    return kind + re.escape(count) + b"".join(columns)


def _key(fragments: Sequence[Sequence[str]], positions: Sequence[int]) -> str:
    if len(positions) == 1:
        return f"of_fragment({_joined(fragments[positions[0]])})"
    parts = ["b'['"]
    for position in positions:
        parts += (*fragments[position], "b','")
    return _joined([*parts[:-1], "b']'"])


def _joined(pieces: Sequence[str]) -> str:
    return pieces[0] if len(pieces) == 1 else f"join(({_merged(pieces)}))"


def _merged(pieces: Sequence[str]) -> str:
    """The pieces as a tuple's elements, neighbouring literals made one."""
    merged: list[str] = []
    for piece in pieces:
        if merged and _is_literal(piece) and _is_literal(merged[-1]):
            merged[-1] += " " + piece
        else:
            merged.append(piece)
    return ", ".join(merged)


def _is_literal(piece: str) -> bool:
    return piece.startswith(("b'", 'b"'))


def _column(number: int, type_info: TypeInfo) -> _Column:  # noqa: PLR0911
    base = base_of(type_info)
    built_in = base.namespace == "pg_catalog"
    match rule_of(type_info):
        case Rule.INTEGER | Rule.OID:
            return _Column(_ANY)
        case Rule.BOOLEAN:
            return _Column(rb"([tf])", ("booleans[{0}]",))
        case Rule.DECIMAL:
            return _QUOTED
        case Rule.FLOAT:  # NaN and Infinity end otherwise
            return _Column(rb"([^\0]*[0-9])")
        case Rule.TIMESTAMP if base.name == "timestamptz":
            pieces = ("b'\"'", "{0}", "b'T'", "{1}", "b'+00:00\"'")
            return _Column(rb"([-0-9]{10}) ([^\0+ ]*)\+00", pieces, 2)
        case Rule.TIMESTAMP if base.name == "timestamp":
            pieces = ("b'\"'", "{0}", "b'T'", "{1}", "b'\"'")
            return _Column(rb"([-0-9]{10}) ([^\0 ]*)", pieces, 2)
        case Rule.JSON if base.name == "jsonb":
            return _Column(_ANY)
        case Rule.TEXT if built_in and base.name in QUOTED_AS_IS:
            return _QUOTED
        case Rule.TEXT:
            return _Column(_ANY, ("dumps({0}.decode())",))
        case _:
            return _Column(_ANY, (f"encode_{number}({{0}})",))


class Misses:
    """What is done with rows that don't match: ``put`` them, and stop trying while most are so."""

    def __init__(self, scope: dict[str, Any], put: Put, lines: Sequence[bytes]) -> None:
        self._scope = scope
        self._match = scope["match"]
        self._put = put
        self._lines = lines
        self._last = 0
        self._left = _TRIED

    def put(self, message: bytes, action: int) -> None:
        """A row that doesn't match."""
        before = len(self._lines)
        self._left = self._left - 1 if before - self._last <= _NEAR else _TRIED
        self._last = before
        if not self._left:
            if self._scope["match"] is _never:
                self._scope["match"], self._left = self._match, _TRIED
            else:
                self._scope["match"], self._left = _never, _UNTRIED
        self._put(message, action)


def _never(message: bytes, start: int) -> None:
    """In the match's place."""


_PUT = """\
def put_whole(m, action):
    found = match(m, 30)
    if found is None:
        return put(m, action)
    {groups}, = found.groups()
    add_line(join(({pieces})))
    add_key({key})
    add_action(action)
"""
