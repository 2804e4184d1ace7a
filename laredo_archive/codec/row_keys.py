"""Extracts keys from lines, by a regular expression where a line allows it."""

import re
from collections.abc import Sequence

import orjson

from laredo_archive.codec.errors import BadBytes
from laredo_model import key as keys_
from laredo_model import line as lines_
from laredo_model.errors import BadLine

_SKIPPED = rb'(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^",\[\]{}]++)'
_STRING = rb'"([^"\\]*+)"'
_SCALAR = rb'([^",\[\]{}]++)'
# A string without an end is taken to the line's: else each quote in it would be tried again.
_BLANK_OUTSIDE_STRINGS = re.compile(
    rb'("[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))|[ \t\r\n]+', re.DOTALL
)


def compact(line: bytes) -> bytes:
    """``line`` without the blanks outside of strings, for files that others wrote."""
    return _BLANK_OUTSIDE_STRINGS.sub(lambda found: found[1] or b"", line)


class RowKeys:
    """Reads keys from lines whose columns are in one order.

    ``names`` are the lines' columns in order, None if unknown: then the first line decides. A line
    that has them otherwise is taken apart in full. Without ``key_fields`` the table has no key, and
    its rows are to come in order, from the first of some equal ones on.
    """

    def __init__(self, key_fields: Sequence[str], names: Sequence[str] | None) -> None:
        self._fields = list(key_fields)
        self._equal_rows = keys_.EqualRows()
        self._pattern = None if names is None or not key_fields else self._compile(names)

    def of_lines(self, lines: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """The keys, and the lines: as they are, or compact where they weren't.

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
        wanted = rb"(?:" + _STRING + rb"|" + _SCALAR + rb")" if single else rb"(" + _SKIPPED + rb")"
        parts = [
            re.escape(orjson.dumps(name)) + b":" + (wanted if name in self._fields else _SKIPPED)
            for name in names[: last + 1]
        ]
        return re.compile(rb"\{" + b",".join(parts) + rb"[,}]", re.DOTALL)
