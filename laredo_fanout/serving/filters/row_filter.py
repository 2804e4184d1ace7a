"""Row filters: predicates on columns, ANDed, tested against a row's JSON line.

Digits given as a string equal the number, because the base form sends big integers as strings.
NULL never matches, not even `equals: null`. A TRUNCATE always passes; a row that an update moves
into or out of the filter arrives as INSERT or DELETE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, TypeAlias

import orjson

from laredo_fanout.serving.errors import BadRequest
from laredo_fanout.serving.filters.conditions import Condition, Conditions
from laredo_fanout.serving.slices import Slice, Sliced
from laredo_fanout.serving.struct_rows import parse
from laredo_model import line as line_
from laredo_model.column import Column, key_columns
from laredo_model.line import Action

Test: TypeAlias = Callable[[Any], bool]

_VERBATIM = frozenset({"json", "jsonb"})
_DECIMAL_TYPES = frozenset({"numeric"})


class RowFilter:
    """A session's filter, bound to one set of columns.

    `signature` is equal for equal filters, so that sessions can share what was encoded.
    `knows_before`: the client has a row if its old line passes.
    """

    knows_before = True

    def __init__(self, conditions: Conditions, columns: Sequence[Column]) -> None:
        """Bind the conditions.

        :raises BadRequest: one names no column of the table; the message names its index
            in `filters`.
        """
        self.signature = conditions.signature
        by_name = {column.name: column for column in columns}
        self._key = frozenset(orjson.dumps(column.name) for column in key_columns(columns))
        self._tests: list[tuple[str, Test]] = []
        self._needles: list[bytes] = []
        for condition in conditions.each:
            column = by_name.get(condition.field)
            if column is None:
                raise BadRequest(
                    f"filters[{condition.index}]: the table has no column {condition.field!r}; "
                    f"its columns are {', '.join(by_name)}"
                )
            self._tests.append((column.name, _test(condition, column)))
            if condition.literal is not None and column.type not in _VERBATIM:
                # Bytes without which a line can't match: saves parsing most of the others.
                self._needles.append(condition.literal)

    def matches(self, line: bytes) -> bool:
        """True if the row passes every predicate."""
        for needle in self._needles:
            if needle not in line:
                return False
        row = parse(line)
        for name, test in self._tests:
            value = row.get(name)
            if value is None or not test(value):
                return False
        return True

    def of_unknown(self) -> RowFilter:
        """Copy this filter for changes whose old lines don't show what the client has.

        A row that doesn't pass becomes a DELETE then, of a row that the client may not have.
        """
        found = copy(self)
        found.knows_before = False
        return found

    def old_of_unknown(self, action: int, old: bytes, new: bytes) -> bytes:
        """The old row to show where the client may have another one, or none.

        One that doesn't pass isn't shown; a DELETE has the key's columns then.
        """
        if old and self.matches(old):
            return old
        if action != Action.DELETE:
            return b""
        members = line_.items(old or new)
        kept = [name + b":" + value for name, value in members if name in self._key]
        return b"{" + b",".join(kept) + b"}"

    def select(
        self, keys: Sequence[bytes], lines: Sequence[bytes]
    ) -> Sliced[tuple[list[bytes], list[bytes]]]:
        """The rows that pass, in order."""
        slice_ = Slice()
        kept_keys, kept_lines = [], []
        for key, line in zip(keys, lines, strict=True):
            if self.matches(line):
                kept_keys.append(key)
                kept_lines.append(line)
            if slice_.done_with(len(line)):
                yield
        return kept_keys, kept_lines

    def action(self, action: int, old: bytes, new: bytes) -> int | None:
        """Action of this change for a client that sees only rows that pass; None for no change."""
        if action == Action.TRUNCATE:
            return action
        was = not self.knows_before or (bool(old) and self.matches(old))
        now = bool(new) and self.matches(new)
        if was and now:
            return Action.UPDATE
        if now:
            return Action.INSERT
        return Action.DELETE if was else None


def _test(condition: Condition, column: Column) -> Test:
    if condition.wanted is not None:
        return partial(condition.wanted.matches, is_decimal=column.type in _DECIMAL_TYPES)
    return partial(_has_prefix, condition.prefix)


def _has_prefix(prefix: str, value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith(prefix)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value).startswith(prefix)
    return False
