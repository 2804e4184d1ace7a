"""The predicates of a request's filter, parsed once, in slices of CPU time.

Everything here is sized by the client, so the limits come first (``request.check_filters``), and
nothing hashes what a client chose by an arithmetic that it can steer: Python's hashes of numbers
are their remainders, so that a client can make any number of them collide. Numbers are compared by
their canonical text, whose hash has another key in every process (siphash).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson
from google.protobuf import struct_pb2

from laredo_fanout.serving.errors import BadRequest
from laredo_fanout.serving.slices import Slice, Sliced
from laredo_fanout.wire import replication_pb2 as wire

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


class Wanted:
    """The values that a column may have: a few look-ups per row, however many there are."""

    def __init__(self) -> None:
        self._strings: set[str] = set()
        self._flags: set[bool] = set()
        self._numbers: set[str] = set()
        self._integers: set[str] = set()
        self._floats: set[str] = set()

    def add(self, value: struct_pb2.Value, where: str) -> int:
        """One more, of this many bytes; null adds nothing.

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
    wanted: Wanted | None
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
            wanted = Wanted()
            wanted.add(predicate.equals, f"filters[{index}].equals")
            return Condition(index, field, wanted, "", _literal(predicate.equals))
        case "prefix":
            return Condition(index, field, None, predicate.prefix, None)
        case "in":
            wanted = Wanted()
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
