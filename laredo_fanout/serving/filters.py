"""Row filters: predicates on columns, ANDed, tested against a row's line.

Digits given as a string equal the number, because the base form sends big integers as strings.
NULL never matches, not even `equals: null`. A TRUNCATE always passes; a row that an update moves
into or out of the filter arrives as INSERT or DELETE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import orjson
from google.protobuf import struct_pb2

from laredo_fanout.serving.errors import BadRequest
from laredo_fanout.serving.struct_rows import parse
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.change import Action
from laredo_model.column import Column

Test: TypeAlias = Callable[[Any], bool]

_DECIMAL = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?\Z", re.ASCII)
_VERBATIM = frozenset({"json", "jsonb"})
_DECIMAL_TYPES = frozenset({"numeric"})


class RowFilter:
    """A session's filter, compiled for one set of columns.

    `signature` is equal for equal filters, so that sessions can share what was encoded.
    """

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
        by_name = {column.name: column for column in columns}
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
        was = bool(old) and self.matches(old)
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
            return _equals(predicate.equals, column, f"filters[{place}].equals")
        case "prefix":
            return _prefix(predicate.prefix)
        case "in":
            values: struct_pb2.ListValue = getattr(predicate, "in")
            return _any_of(
                [
                    _equals(value, column, f"filters[{place}].in[{number}]")
                    for number, value in enumerate(values.values)
                ]
            )
        case _:
            raise BadRequest(f"filters[{place}] ({column.name}): give one of equals, prefix or in")


def _any_of(tests: list[Test]) -> Test:
    return lambda value: any(test(value) for test in tests)


def _prefix(prefix: str) -> Test:
    def test(value: Any) -> bool:
        if isinstance(value, str):
            return value.startswith(prefix)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value).startswith(prefix)
        return False

    return test


def _equals(wanted: struct_pb2.Value, column: Column, where: str) -> Test:
    match wanted.WhichOneof("kind"):
        case "null_value":
            return lambda value: False
        case "bool_value":
            flag = wanted.bool_value
            return lambda value: value is flag
        case "number_value":
            return _equals_number(wanted.number_value, column)
        case "string_value":
            return _equals_string(wanted.string_value, column)
        case kind:
            raise BadRequest(
                f"{where}: a column can be compared with a string, a number, a boolean or null, "
                f"not with {kind or 'nothing'}"
            )


def _equals_number(number: float, column: Column) -> Test:
    exact = int(number) if number.is_integer() else None
    digits = str(exact if exact is not None else number)

    def test(value: Any) -> bool:
        if isinstance(value, bool):
            return False
        if isinstance(value, int):
            return value == exact
        if isinstance(value, float):
            return value == number
        return isinstance(value, str) and (value == digits or _same_decimal(value, digits, column))

    return test


def _equals_string(text: str, column: Column) -> Test:
    is_decimal = _DECIMAL.match(text) is not None

    def test(value: Any) -> bool:
        if isinstance(value, str):
            return value == text or (is_decimal and _same_decimal(value, text, column))
        if not is_decimal or isinstance(value, bool):
            return False
        if isinstance(value, int):
            return Decimal(text) == value
        return isinstance(value, float) and float(text) == value

    return test


def _same_decimal(value: str, digits: str, column: Column) -> bool:
    """Whether a numeric's text (`1.00`) is this number (`1`)."""
    if column.type not in _DECIMAL_TYPES or not _DECIMAL.match(value):
        return False
    return Decimal(value) == Decimal(digits)
