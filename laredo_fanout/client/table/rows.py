"""Rows of a client's table: kept by key, iterated at one position, parsed exactly.

Integers are ``int`` whatever their size. A number with a fraction or an exponent is a ``float`` if
the float prints as the same number, else a ``decimal.Decimal`` (a 30-digit number inside a jsonb).
Strings of a line stay strings: numeric with its exact digits, timestamps, uuid, bytea.

A json column may contain a value that Python can't represent, as PostgreSQL keeps its text. Such a
column's value is a :class:`RawJson`; the row's other columns are parsed as usual.
"""

import json
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import Set as AbstractSet
from decimal import Decimal
from itertools import accumulate
from typing import Any, Self, TypeVar

import orjson

from laredo_fanout.client.loop_share import LoopShare
from laredo_model import line as line_
from laredo_model.column import Column
from laredo_model.errors import BadLine
from laredo_model.position import Position

Row = dict[str, Any]

DEEPEST = 256
"""Deepest nesting of arrays and objects in a column's value that is parsed. Fixed, because the
limit of Python's parser and encoder depends on the stack when they are called."""

# Fifteen digits survive a double; what may have more, or an exponent, is read with care.
_NEEDS_CARE = re.compile(rb"[0-9][0-9.]{15}|[0-9][eE][-+0-9]")
_DIGITS_PYTHON_READS = 4000
_EXACT = frozenset({str, int, bool, type(None)})
# A string without an end is taken to the line's: else each quote in it would be tried again.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class RawJson(str):
    """Text of a json column whose value Python can't represent: a number beyond the exponents of
    ``Decimal`` (``1e99999999999999999999``), or nesting deeper than :data:`DEEPEST`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"RawJson({super().__repr__()})"


def parse(line: bytes) -> Row:
    """The row in ``line`` as a dict.

    :raises BadLine: if it isn't a row's line.
    """
    row = _parse_plain(line)
    return _parse_with_care(line) if row is None else row


def columns_of(line: bytes, fields: AbstractSet[str]) -> Row:
    """The row with at least the columns ``fields``; other columns may be missing or inexact.

    :raises BadLine: if it isn't a row's line.
    """
    # The C parser is many times as fast as finding the columns, and exact for these types.
    try:
        row: Row | None = orjson.loads(line)
    except orjson.JSONDecodeError:
        row = None
    if isinstance(row, dict) and {type(row.get(field)) for field in fields} <= _EXACT:
        return row
    row = _parse_plain(line)
    return _parse_columns(line, fields) if row is None else row


def as_text(value: object) -> str | None:
    """A column's value as look-ups compare it: a number equals the string of its digits."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int):
        return _digits(value)
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True, default=str)
    return str(value)


def _parse_plain(line: bytes) -> Row | None:
    """The row by the fast parser; None if that parser might change or refuse a value."""
    if _NEEDS_CARE.search(line) is not None or _is_deep(line, DEEPEST + 1):
        return None
    try:
        row: Row = orjson.loads(line)
    except orjson.JSONDecodeError:  # a lone surrogate inside json, which PostgreSQL lets through
        return None
    return row if isinstance(row, dict) else None


def _parse_with_care(line: bytes) -> Row:
    if not _is_deep(line, DEEPEST + 1):
        try:
            row = _exact(line)
            if isinstance(row, dict):
                return row
        except (ValueError, ArithmeticError):
            pass  # one column's; the others are parsed without it
    return _parse_columns(line, None)


def _parse_columns(line: bytes, wanted: AbstractSet[str] | None) -> Row:
    row: Row = {}
    for name, fragment in line_.items(line):
        try:
            column = orjson.loads(name)
        except orjson.JSONDecodeError as wrong:
            raise BadLine(f"a column's name isn't JSON ({wrong}): {line[:80]!r}") from wrong
        if wanted is None or column in wanted:
            row[column] = _value(fragment)
    return row


def _value(fragment: bytes) -> Any:
    if not _is_deep(fragment, DEEPEST):
        try:
            return _exact(fragment)
        except (ValueError, ArithmeticError):
            pass
    return RawJson(fragment.decode(errors="surrogateescape"))


def _exact(text: bytes) -> Any:
    return json.loads(text, parse_float=_fraction, parse_int=_integer)


def _is_deep(text: bytes, deepest: int) -> bool:
    if text.count(b"[") + text.count(b"{") <= deepest:
        return False
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > deepest


def _fraction(text: str) -> float | Decimal:
    exact, near = Decimal(text), float(text)
    return near if Decimal(repr(near)) == exact else exact


def _integer(text: str) -> int | Decimal:
    if len(text) > _DIGITS_PYTHON_READS:
        return Decimal(text)
    try:
        return int(text)
    except ValueError:  # a lower limit of this process (sys.set_int_max_str_digits)
        return Decimal(text)


def _digits(number: int) -> str:
    try:
        return str(number)
    except ValueError:  # more digits than Python prints of an int
        return str(Decimal(number))


# RowMap: a table's rows by key, in parts that are small enough to work on one at a time.
#
# Growing or freeing a dict of a million rows blocks the event loop for tens of milliseconds; one of
# 256 parts takes a tenth of a millisecond.
#
# A :class:`RowView` reads the rows of one moment while they change: it shares the parts, and a part
# that it hasn't passed yet is copied before its first change.

K = TypeVar("K")
V = TypeVar("V")

PARTS = 256
_SHIFT = 24  # a dict uses the lowest bits of the hash itself


class RowMap:
    """Lines by key, in the part that the key's hash names."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[dict[bytes, bytes]] | None = None) -> None:
        self.parts = [{} for _ in range(PARTS)] if parts is None else list(parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def get(self, key: bytes) -> bytes | None:
        """The line of the row; None if there is none."""
        return self.parts[hash(key) >> _SHIFT & 255].get(key)

    def put(self, key: bytes, line: bytes) -> None:
        """Add or replace a row."""
        self.parts[hash(key) >> _SHIFT & 255][key] = line

    def remove(self, key: bytes) -> None:
        """Remove a row, if it is there."""
        self.parts[hash(key) >> _SHIFT & 255].pop(key, None)


class LinesBefore:
    """The lines that a transaction's rows had before it, by key; None: there was no such row."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[dict[bytes, bytes | None]] = [{} for _ in range(PARTS)]

    def note(self, rows: RowMap, keys: Iterable[bytes]) -> None:
        """Keep the lines of ``keys``, which are about to change."""
        for key in keys:
            lines = self.parts[hash(key) >> _SHIFT & 255]
            if key not in lines:
                lines[key] = rows.get(key)


class RowView:
    """The rows of one moment, for a reader in any thread."""

    __slots__ = ("__weakref__", "before", "columns", "parts", "position")

    def __init__(
        self,
        parts: Sequence[dict[bytes, bytes]],
        before: LinesBefore | None,
        position: Position | None,
        columns: tuple[Column, ...] = (),
    ) -> None:
        """``before``: the lines before an open transaction; they may grow."""
        self.columns = columns
        self.parts = list(parts)
        self.before = before
        self.position = position

    def lines(self) -> Iterator[bytes]:
        """The rows' lines, in no order, once."""
        for place in range(PARTS):
            part: Mapping[bytes, bytes | None] = self.parts[place]
            if self.before is not None:
                # Lines that are noted meanwhile equal those in this part.
                part = {**part, **self.before.parts[place]}
            for line in part.values():
                if line is not None:
                    yield line
            self.parts[place] = {}


class SharedRowMap(RowMap):
    """A map of which some parts may be in views too."""

    __slots__ = ("_own", "_views")

    def __init__(self, parts: Sequence[dict[bytes, bytes]], views: Collection[RowView]) -> None:
        super().__init__(parts)
        self._views = views
        self._own: set[int] = set()

    def put(self, key: bytes, line: bytes) -> None:
        """Add or replace a row; no view sees it."""
        self._part(hash(key) >> _SHIFT & 255)[key] = line

    def remove(self, key: bytes) -> None:
        """Remove a row, if it is there; every view keeps it."""
        self._part(hash(key) >> _SHIFT & 255).pop(key, None)

    def _part(self, place: int) -> dict[bytes, bytes]:
        part = self.parts[place]
        if place not in self._own:
            self._own.add(place)
            if any(view.parts[place] is part for view in self._views):
                part = self.parts[place] = part.copy()
        return part


def unheld(parts: Iterable[dict[K, V]], views: Collection[RowView]) -> list[dict[K, V]]:
    """The parts that no view reads, so that they can be emptied."""
    held = {id(part) for view in views for part in view.parts}
    held |= {id(part) for view in views if view.before for part in view.before.parts}
    return [part for part in parts if id(part) not in held]


class RowIterator(Iterator[Row]):
    """``for row in client.rows()``: each row of one moment, in no order."""

    def __init__(self, view: RowView) -> None:
        #: The position of that moment; None before the first snapshot.
        self.position: Position | None = view.position
        self._lines = view.lines()

    def __next__(self) -> Row:
        return parse(next(self._lines))


class AsyncRowIterator(AsyncIterator[Row]):
    """``async for row in client.rows()``: each row of one moment, in no order.

    The moment is when the iteration begins. Other tasks of the loop run between rows.
    """

    def __init__(self, view: Callable[[], Awaitable[RowView]]) -> None:
        self._view = view
        self._lines: Iterator[bytes] | None = None
        #: The position of that moment; None before it, and before the first snapshot.
        self.position: Position | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Row:
        if self._lines is None:
            view = await self._view()
            self.position, self._lines = view.position, view.lines()
        await LoopShare.of_running_loop().pause_if_used()
        for line in self._lines:
            return parse(line)
        raise StopAsyncIteration
