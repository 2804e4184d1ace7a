"""Row filters: predicates on columns, parsed once, tested on lines and journal records.

The client chooses the size of everything here, so ``call.parse_sync`` checks limits first. The
client must not be able to make hashes collide, either: Python's hash of a number is its remainder.
So numbers are compared by their canonical text, whose hash has another key in every process
(siphash).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

import orjson
from google.protobuf import struct_pb2

from laredo_fanout.serving.errors import BadRequest
from laredo_fanout.serving.slices import Slice, Sliced
from laredo_fanout.serving.struct_rows import parse
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import line as line_
from laredo_model.column import Column, key_columns
from laredo_model.line import Action

_NUMBER = re.compile(r"([+-]?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?\Z", re.ASCII)
_EXPONENT_DIGITS = 18
_INTEGER_DIGITS = 19
_FLOAT_CHARACTERS = 1100
"""Most characters of a double's exact decimal (767 digits), and some zeros."""


def canonical(text: str) -> str | None:
    """Canonical text of a number: one for ``1.00``, ``1`` and ``10e-1``; None if it isn't a number.

    An exponent is never expanded, and text with one of more than 18 digits is no number.
    """
    found = _NUMBER.match(text)
    if found is None:
        return None
    sign, whole, fraction, power = found.groups()
    digits = (whole + (fraction or "")).lstrip("0")
    if not digits:
        return "0"
    if power is not None and len(power.lstrip("+-0")) > _EXPONENT_DIGITS:
        return None
    significant = digits.rstrip("0")
    exponent = _exponent(power) - len(fraction or "") + len(digits) - len(significant)
    return f"{'-' if sign == '-' else ''}{significant}e{exponent}"


def _exponent(power: str | None) -> int:
    if power is None:
        return 0
    size = int(power.lstrip("+-0") or "0")
    return -size if power[0] == "-" else size


def _float_key(number: float) -> str:
    # -0.0 equals 0.0 and is written otherwise.
    return repr(number or 0.0)


class AllowedValues:
    """The values that a column may have: a few look-ups per row, however many there are."""

    def __init__(self) -> None:
        self._strings: set[str] = set()
        self._flags: set[bool] = set()
        self._numbers: set[str] = set()
        self._integers: set[str] = set()
        self._floats: set[str] = set()

    def add(self, value: struct_pb2.Value, where: str) -> int:
        """Add a value; returns its number of bytes. Null adds nothing.

        :raises BadRequest: it is a list, an object or nothing at all.
        """
        match value.WhichOneof("kind"):
            case "null_value":
                return 1
            case "bool_value":
                self._flags.add(value.bool_value)
                return 1
            case "number_value":
                return self._add_number(value.number_value)
            case "string_value":
                return self._add_text(value.string_value)
            case kind:
                raise BadRequest(
                    f"{where}: a column can be compared with a string, a number, a boolean or "
                    f"null, not with {kind or 'nothing'}"
                )

    def matches(self, value: Any, *, is_decimal: bool) -> bool:
        """True if a column's value, as parsed from the row, is one of them.

        ``is_decimal``: the column's texts are numbers.
        """
        match value:
            case str():
                return value in self._strings or (is_decimal and canonical(value) in self._numbers)
            case bool():
                return value in self._flags
            case int():
                text = str(value)
                if len(text) <= _INTEGER_DIGITS:
                    return text in self._integers
                return canonical(text) in self._numbers
            case float():
                return _float_key(value) in self._floats
            case _:
                return False

    def _add_number(self, number: float) -> int:
        digits = str(int(number)) if number.is_integer() else str(number)
        self._strings.add(digits)
        self._floats.add(_float_key(number))
        self._add_exact(digits)
        return len(digits)

    def _add_text(self, text: str) -> int:
        self._strings.add(text)
        if self._add_exact(text) and len(text) <= _FLOAT_CHARACTERS:
            self._floats.add(_float_key(float(text)))
        return len(text)

    def _add_exact(self, text: str) -> bool:
        key = canonical(text)
        if key is None:
            return False
        self._numbers.add(key)
        integer = _short_integer(key)
        if integer is not None:
            self._integers.add(integer)
        return True


def _short_integer(key: str) -> str | None:
    """The canonical number as Python writes an int, if it is one of few digits."""
    if key == "0":
        return key
    significant, _, power = key.partition("e")
    exponent = int(power)
    if exponent < 0 or len(significant) + exponent > _INTEGER_DIGITS:
        return None
    return significant + "0" * exponent


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate on one column: on ``wanted`` values, or else on a ``prefix``."""

    #: Its index in ``filters``, for messages.
    index: int
    field: str
    wanted: AllowedValues | None
    prefix: str
    #: What ``equals`` compares with, as JSON writes it, if only a string's own bytes can equal it.
    literal: bytes | None


@dataclass(frozen=True, slots=True)
class Conditions:
    """All predicates of a request."""

    each: tuple[Condition, ...]
    #: Equal for equal requests.
    signature: bytes


def read(predicates: Sequence[wire.FieldPredicate]) -> Sliced[Conditions]:
    """The predicates, whose number and size were checked.

    :raises BadRequest: one has nothing that can be tested; the message names its index.
    """
    digest = sha256()
    for text in sorted(p.SerializeToString(deterministic=True) for p in predicates):
        digest.update(len(text).to_bytes(8, "big") + text)
    slice_ = Slice()
    conditions = []
    for index, predicate in enumerate(predicates):
        conditions.append((yield from _condition(index, predicate, slice_)))
    return Conditions(tuple(conditions), digest.digest())


def _condition(index: int, predicate: wire.FieldPredicate, slice_: Slice) -> Sliced[Condition]:
    field = predicate.field
    match predicate.WhichOneof("match"):
        case "equals":
            wanted = AllowedValues()
            wanted.add(predicate.equals, f"filters[{index}].equals")
            return Condition(index, field, wanted, "", _literal(predicate.equals))
        case "prefix":
            return Condition(index, field, None, predicate.prefix, None)
        case "in":
            wanted = AllowedValues()
            listed: struct_pb2.ListValue = getattr(predicate, "in")
            for number, value in enumerate(listed.values):
                if slice_.done_with(wanted.add(value, f"filters[{index}].in[{number}]")):
                    yield
            return Condition(index, field, wanted, "", None)
        case _:
            raise BadRequest(f"filters[{index}] ({field}): give one of equals, prefix or in")


def _literal(value: struct_pb2.Value) -> bytes | None:
    if value.WhichOneof("kind") != "string_value" or _NUMBER.match(value.string_value):
        return None
    return orjson.dumps(value.string_value)


# Row filters: predicates on columns, ANDed, tested against a row's JSON line.
#
# Digits given as a string equal the number, because the base form sends big integers as strings.
# NULL never matches, not even `equals: null`. A TRUNCATE always passes; a row that an update moves
# into or out of the filter arrives as INSERT or DELETE.

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

        A row that doesn't pass then becomes a DELETE, of a row that the client may not have.
        """
        found = copy(self)
        found.knows_before = False
        return found

    def old_of_unknown(self, action: int, old: bytes, new: bytes) -> bytes:
        """The old row to send if the client may have another row, or none.

        A row that doesn't pass isn't sent; a DELETE then has the columns of the key.
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


# Filtering a journal record: its changes, one by one, as the session's filter passes them.


class Entry(NamedTuple):
    """A change of one row or a TRUNCATE."""

    sequence: int
    action: int
    key: bytes
    line: bytes
    old: bytes
    #: Its index in the batch's per-transaction columns.
    transaction: int


def entries(batch: wire.ChangeBatch, row_filter: RowFilter | None) -> Iterator[Entry | None]:
    """The changes of a batch that pass the filter; None after each slice of it.

    The old row is left out of what becomes an INSERT, the new row of what becomes a DELETE.
    """
    transactions = [number for number, count in enumerate(batch.counts) for _ in range(count)]
    columns = zip(
        range(batch.first_sequence, batch.first_sequence + len(batch.actions)),
        batch.actions,
        batch.keys,
        batch.lines,
        batch.old_lines,
        transactions,
        strict=True,
    )
    slice_ = Slice()
    for entry in map(Entry._make, columns):
        seen = entry if row_filter is None else _seen(entry, row_filter)
        if seen is not None:
            yield seen
        if slice_.done_with(len(entry.line) + len(entry.old)):
            yield None


def _seen(entry: Entry, row_filter: RowFilter) -> Entry | None:
    action = row_filter.action(entry.action, entry.old, entry.line)
    if action is None:
        return None
    old = entry.old
    if not row_filter.knows_before:
        old = row_filter.old_of_unknown(action, entry.old, entry.line)
    return entry._replace(
        action=action,
        line=b"" if action == Action.DELETE else entry.line,
        old=b"" if action == Action.INSERT else old,
    )
