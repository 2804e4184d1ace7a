"""Row filters: predicates on columns, ANDed, tested against a row's line.

Digits given as a string equal the number, because the base form sends big integers as strings.
NULL never matches, not even `equals: null`. A TRUNCATE always passes; a row that an update moves
into or out of the filter arrives as INSERT or DELETE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from decimal import Decimal
from typing import Any, TypeAlias

import orjson
from google.protobuf import struct_pb2

from laredo_fanout.serving.errors import BadRequest
from laredo_fanout.serving.struct_rows import parse
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import line as line_
from laredo_model.change import Action
from laredo_model.column import Column, key_columns

Test: TypeAlias = Callable[[Any], bool]

_DECIMAL = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?\Z", re.ASCII)
_VERBATIM = frozenset({"json", "jsonb"})
_DECIMAL_TYPES = frozenset({"numeric"})
MAX_PREDICATES = 64


class RowFilter:
    """A session's filter, compiled for one set of columns.

    `signature` is equal for equal filters, so that sessions can share what was encoded.
    `knows_before`: the client has a row if its old line passes.
    """

    knows_before = True

    def __init__(
        self, predicates: Sequence[wire.FieldPredicate], columns: Sequence[Column]
    ) -> None:
        """Compile the predicates.

        :raises BadRequest: a predicate names no column of the table, or says nothing that can be
            tested; the message names the predicate by its place in `filters`.
        """
        self.signature = b"".join(
            sorted(p.SerializeToString(deterministic=True) + b"\x00" for p in predicates)
        )
        if len(predicates) > MAX_PREDICATES:
            raise BadRequest(f"filters: more than {MAX_PREDICATES} predicates")
        by_name = {column.name: column for column in columns}
        self._key = frozenset(orjson.dumps(column.name) for column in key_columns(columns))
        self._tests: list[tuple[str, Test]] = []
        self._needles: list[bytes] = []
        for place, predicate in enumerate(predicates):
            column = by_name.get(predicate.field)
            if column is None:
                raise BadRequest(
                    f"filters[{place}]: the table has no column {predicate.field!r}; "
                    f"its columns are {', '.join(by_name)}"
                )
            self._tests.append((column.name, _test(predicate, column, place)))
            self._needles += _needle(predicate, column)

    def matches(self, line: bytes) -> bool:
        """Whether the row passes every predicate."""
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
        """The same, for changes whose old lines don't say what the client has.

        What doesn't pass is a DELETE then, of a row that the client may not have.
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
    ) -> tuple[list[bytes], list[bytes]]:
        """The rows that pass, in order."""
        matches = self.matches
        kept = [pair for pair in zip(keys, lines, strict=True) if matches(pair[1])]
        return [key for key, _ in kept], [line for _, line in kept]

    def action(self, action: int, old: bytes, new: bytes) -> int | None:
        """What this change is to a client that sees only rows that pass; None: nothing."""
        if action == Action.TRUNCATE:
            return action
        was = not self.knows_before or (bool(old) and self.matches(old))
        now = bool(new) and self.matches(new)
        if was and now:
            return Action.UPDATE
        if now:
            return Action.INSERT
        return Action.DELETE if was else None


def _needle(predicate: wire.FieldPredicate, column: Column) -> list[bytes]:
    """Bytes without which a line can't match: saves parsing most of the others."""
    if predicate.WhichOneof("match") != "equals" or column.type in _VERBATIM:
        return []
    if predicate.equals.WhichOneof("kind") != "string_value":
        return []
    text = predicate.equals.string_value
    return [] if _DECIMAL.match(text) else [orjson.dumps(text)]


def _test(predicate: wire.FieldPredicate, column: Column, place: int) -> Test:
    match predicate.WhichOneof("match"):
        case "equals":
            return _Wanted(column).add(predicate.equals, f"filters[{place}].equals").matches
        case "prefix":
            return _prefix(predicate.prefix)
        case "in":
            wanted = _Wanted(column)
            listed: struct_pb2.ListValue = getattr(predicate, "in")
            for number, value in enumerate(listed.values):
                wanted.add(value, f"filters[{place}].in[{number}]")
            return wanted.matches
        case _:
            raise BadRequest(f"filters[{place}] ({column.name}): give one of equals, prefix or in")


def _prefix(prefix: str) -> Test:
    def test(value: Any) -> bool:
        if isinstance(value, str):
            return value.startswith(prefix)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value).startswith(prefix)
        return False

    return test


class _Wanted:
    """The values that a column may have: any number of them cost one look-up each row."""

    def __init__(self, column: Column) -> None:
        self._is_decimal = column.type in _DECIMAL_TYPES
        self._strings: set[str] = set()
        self._flags: set[bool] = set()
        # Equal numbers have equal hashes in Python, so ints find their Decimals.
        self._exact: set[int | Decimal] = set()
        self._floats: set[float] = set()

    def add(self, value: struct_pb2.Value, where: str) -> _Wanted:
        """One more; null adds nothing.

        :raises BadRequest: it is a list, an object or nothing at all.
        """
        match value.WhichOneof("kind"):
            case "null_value":
                pass
            case "bool_value":
                self._flags.add(value.bool_value)
            case "number_value":
                self._add_number(value.number_value)
            case "string_value":
                self._add_string(value.string_value)
            case kind:
                raise BadRequest(
                    f"{where}: a column can be compared with a string, a number, a boolean or "
                    f"null, not with {kind or 'nothing'}"
                )
        return self

    def matches(self, value: Any) -> bool:
        """Whether a column's value, as parsed from the row, is one of them."""
        match value:
            case str():
                return value in self._strings or (self._is_decimal and self._has_decimal(value))
            case bool():
                return value in self._flags
            case int():
                return value in self._exact
            case float():
                return value in self._floats
            case _:
                return False

    def _add_number(self, number: float) -> None:
        digits = str(int(number)) if number.is_integer() else str(number)
        self._strings.add(digits)
        self._floats.add(number)
        if _DECIMAL.match(digits):
            self._exact.add(Decimal(digits))

    def _add_string(self, text: str) -> None:
        self._strings.add(text)
        if _DECIMAL.match(text):
            self._exact.add(Decimal(text))
            self._floats.add(float(text))

    def _has_decimal(self, text: str) -> bool:
        """Whether a numeric's text (`1.00`) is one of the numbers (`1`)."""
        return _DECIMAL.match(text) is not None and Decimal(text) in self._exact
