"""Keys and values of lines, extracted by regular expressions, and the lines of a range of keys."""

import re
from bisect import bisect_left
from collections.abc import Callable, Container, Sequence
from typing import Protocol, TypeVar

import orjson

from laredo_archive.errors import BadBytes
from laredo_model import key as keys_
from laredo_model import line as lines_
from laredo_model.errors import BadLine

STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""Pattern of a JSON string; possessive, as backtracking positions for each escape take a hundred
times the string's memory."""
SCALAR = rb'[^",\[\]{}]++'
"""Pattern of a JSON number, true, false or null."""
_SKIPPED = rb"(?:" + STRING + rb"|" + SCALAR + rb")"
_UNESCAPED = rb'"([^"\\]*+)"'
# A string without an end reaches to the line's end: else each quote in it would be tried again.
_BLANK_OUTSIDE_STRINGS = re.compile(
    rb'("[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))|[ \t\r\n]+', re.DOTALL
)


def compact(line: bytes) -> bytes:
    """``line`` without the blanks outside of strings, for files that others wrote."""
    return _BLANK_OUTSIDE_STRINGS.sub(lambda found: found[1] or b"", line)


class RowKeys:
    """Reads keys from lines whose columns are in one order.

    ``names`` are the lines' columns in order, None if unknown: then the first line decides. A line
    with other columns, or another order, is parsed in full. Without ``key_fields`` the table has no
    key: then its rows have to come in order, beginning with the first of equal rows.
    """

    def __init__(self, key_fields: Sequence[str], names: Sequence[str] | None) -> None:
        self._fields = list(key_fields)
        self._equal_rows = keys_.EqualRows()
        self._pattern = None if names is None or not key_fields else self._compile(names)

    def of_lines(self, lines: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """The keys, and the lines: verbatim, or made compact where one had blanks.

        :raises BadBytes: if a line isn't a row or lacks a key column.
        """
        if not self._fields:
            try:
                return [self._equal_rows.of(line) for line in lines], lines
            except BadLine as wrong:
                raise BadBytes(str(wrong)) from wrong
        if self._pattern is None and lines:
            self._pattern = self._learn(lines[0])
        if self._pattern is not None:
            found = list(map(self._pattern.match, lines))
            if None not in found:
                if len(self._fields) == 1:
                    return [m[m.lastindex or 0] for m in found if m], lines
                return [self._composite(m) for m in found if m], lines
        pairs = [self._of_odd_line(line) for line in lines]
        return [key for key, _ in pairs], [line for _, line in pairs]

    def _of_odd_line(self, line: bytes) -> tuple[bytes, bytes]:
        try:
            return keys_.of_line(line, self._fields), line
        except BadLine:
            squeezed = compact(line)
        try:
            return keys_.of_line(squeezed, self._fields), squeezed
        except ValueError as wrong:  # a BadLine, or a string that isn't JSON
            raise BadBytes(str(wrong)) from wrong

    def _composite(self, found: re.Match[bytes]) -> bytes:
        return b"[" + b",".join([found[group] for group in self._groups]) + b"]"

    def _learn(self, line: bytes) -> re.Pattern[bytes] | None:
        try:
            return self._compile(lines_.names(line))
        except ValueError:  # not compact, or damaged: taken apart in full, line by line
            return None

    def _compile(self, names: Sequence[str]) -> re.Pattern[bytes] | None:
        if not set(self._fields) <= set(names):
            return None
        in_line = sorted(self._fields, key=list(names).index)
        self._groups = [in_line.index(field) + 1 for field in self._fields]
        last = list(names).index(in_line[-1])
        single = len(self._fields) == 1
        alone = rb"(?:" + _UNESCAPED + rb"|(" + SCALAR + rb"))"
        wanted = alone if single else rb"(" + _SKIPPED + rb")"
        parts = [
            re.escape(orjson.dumps(name)) + b":" + (wanted if name in self._fields else _SKIPPED)
            for name in names[: last + 1]
        ]
        return re.compile(rb"\{" + b",".join(parts) + rb"[,}]", re.DOTALL)


# Splits a line into its values, by one regular expression compiled for its columns.
#
# Ten times as fast as taking the line apart value by value, which is left for values that are
# nested deeper than the expression reaches.

_DEPTH = 4


def _nested(depth: int) -> bytes:
    """Pattern of an object or array that is nested at most ``depth`` deep."""
    inside = rb"|" + _nested(depth - 1) if depth > 1 else b""
    return rb'[\[{](?>[^\[\]{}"]++|' + STRING + inside + rb")*+[\]}]"


_VALUE = STRING + rb"|" + SCALAR + rb"|" + _nested(_DEPTH)


def member_patterns(names: Sequence[str], captured: Container[int]) -> list[bytes]:
    """For each column the pattern of ``"name":value``; a group takes the captured values."""
    return [
        re.escape(orjson.dumps(name)) + rb":(" + (b"" if at in captured else b"?:") + _VALUE + b")"
        for at, name in enumerate(names)
    ]


def splitter(names: Sequence[str]) -> Callable[[bytes], Sequence[bytes]]:
    """Function that splits lines with these columns into values, verbatim and in order.

    It raises BadLine for any other line.
    """
    if not names:
        return _split_empty
    expected = [orjson.dumps(name) for name in names]
    members = b",".join(member_patterns(names, range(len(names))))
    match = re.compile(rb"\{" + members + rb"\}", re.DOTALL).fullmatch

    def split(line: bytes) -> Sequence[bytes]:
        found = match(line)
        if found is not None:
            return found.groups()
        items = lines_.items(line)
        if [name for name, _ in items] != expected:
            raise BadLine(f"not a row with the columns {', '.join(names)}: {line[:80]!r}")
        return [value for _, value in items]

    return split


def heads(names: Sequence[str]) -> tuple[bytes, ...]:
    """Text before each column's value in a line with these columns: ``{"id":``, ``,"name":``."""
    found = [b"," + orjson.dumps(name) + b":" for name in names]
    return (b"{" + found[0][1:], *found[1:]) if found else ()


def _split_empty(line: bytes) -> Sequence[bytes]:
    if line != b"{}":
        raise BadLine(f"not a row without columns: {line[:80]!r}")
    return ()


# Sorted lines and messages narrowed to a range of keys by bisection: little else is parsed.

T = TypeVar("T")
_ABOVE_ALL = b"\xff"
"""No UTF-8 has this byte."""


class KeyBounds(Protocol):
    """A range of keys, as KeyRange: from ``low`` to before ``high``; None: no such bound."""

    @property
    def low(self) -> bytes | None: ...

    @property
    def high(self) -> bytes | None: ...


def lines(block: bytes, keys: KeyBounds, key_at: Callable[[bytes, int], bytes]) -> bytes:
    """The lines of the sorted ``block`` whose keys are in the range ``keys``.

    ``block`` ends with a newline; ``key_at``: the key of the line that begins there.
    """
    start = 0 if keys.low is None else _first_line(block, keys.low, key_at)
    stop = len(block) if keys.high is None else _first_line(block, keys.high, key_at)
    return block if stop - start == len(block) else block[start:stop]


def records(some: Sequence[T], keys: KeyBounds, key_of: Callable[[T], bytes]) -> Sequence[T]:
    """The sorted records among ``some`` whose keys are in the range ``keys``."""
    start = 0 if keys.low is None else bisect_left(some, keys.low, key=key_of)
    stop = len(some) if keys.high is None else bisect_left(some, keys.high, key=key_of)
    return some[start:stop]


def _first_line(block: bytes, bound: bytes, key_at: Callable[[bytes, int], bytes]) -> int:
    """Offset of the first line whose key isn't below ``bound``."""
    low, high = 0, len(block)
    while low < high:
        middle = (low + high) // 2
        start = block.rfind(b"\n", low, middle) + 1 or low
        if _key(block, start, key_at) < bound:
            low = block.find(b"\n", middle) + 1
        else:
            high = start
    return low


def _key(block: bytes, at: int, key_at: Callable[[bytes, int], bytes]) -> bytes:
    """Key of the line at ``at``; for an empty line, the key of the next line that isn't."""
    while block.startswith(b"\n", at):
        at += 1
    return key_at(block, at) if at < len(block) else _ABOVE_ALL
