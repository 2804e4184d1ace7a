"""Conversion of one column's JSON fragments to an Arrow array and back.

The rules are those of docs/archive-format.md, Rows. The work is done by Arrow's own functions on
whole arrays; only strings with escapes, bytea and arrays are converted one by one.
"""

import re
from collections.abc import Callable
from typing import Any, NoReturn

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from laredo_archive.codec import struct_rows
from laredo_archive.codec.arrow.types import (
    ArrayTooDeep,
    MistypedValue,
    Special,
    SpecialValue,
    TypeChoice,
    dimensions,
    element_type,
    has_specials,
)
from laredo_model.column import Column
from laredo_model.errors import BadLine
from laredo_model.line import elements

Convert = Callable[[pa.StringArray], pa.Array]

_SPECIAL_TIME = re.compile(r"-?infinity|\d{4,}-[\dT:.+-]* BC|\d{5,}-[\dT:.+-]*")
_SPECIAL_DECIMAL = re.compile(r"NaN|-?Infinity|-?\d+(\.\d+)?")
_VERBATIM = frozenset({"json", "jsonb"})
_TEXT, _NULL = '"', "null"


def converter(column: Column, typing: TypeChoice) -> Convert:
    """Function that turns the column's fragments into an array of its type.

    It raises SpecialValue, ArrayTooDeep or MistypedValue.
    """
    values = _Values(column, typing)
    deep = dimensions(column, typing)
    if column.type.startswith("_"):
        return (lambda fragments: values.lists(fragments, deep)) if deep else _verbatim
    return values.plain


def _verbatim(fragments: pa.StringArray) -> pa.Array:
    return pc.if_else(pc.equal(fragments, _NULL), None, fragments)


class _Values:
    """The values of one column; of an array's column, its elements."""

    def __init__(self, column: Column, typing: TypeChoice) -> None:
        self._column = column
        self._name = column.type.removeprefix("_")
        self._type = element_type(column, typing)
        self._special = typing.special

    def plain(self, fragments: pa.StringArray) -> pa.Array:
        """An array of the type; JSON's null is null."""
        if self._name in _VERBATIM:
            return _verbatim(fragments)
        found = texts(_verbatim(fragments))
        if pa.types.is_string(self._type):
            return found
        if pa.types.is_binary(self._type):
            return self._bytes(found)
        try:
            return pc.cast(found, self._type)
        except pa.ArrowInvalid:
            return self._cast_with_specials(found)

    def lists(self, fragments: pa.StringArray, deep: int) -> pa.Array:
        """Lists, ``deep`` levels of them, around one array of all elements."""
        sizes: list[list[int | None]] = [[] for _ in range(deep)]
        leaves: list[bytes] = []
        for fragment in fragments.to_pylist():
            self._take_apart(fragment.encode(), sizes, leaves, deep)
        found = self.plain(pa.array(leaves, pa.string()))
        for level in reversed(sizes):
            found = _listed(level, found)
        return found

    def _take_apart(
        self, fragment: bytes, sizes: list[list[int | None]], leaves: list[bytes], deep: int
    ) -> None:
        if fragment == b"null":
            sizes[-deep].append(None)
            return
        items = elements(fragment) if fragment.startswith(b"[") else None
        if items is None or (deep > 1 and not all(item.startswith(b"[") for item in items)):
            raise ArrayTooDeep(self._column.name, _shown(fragment), len(sizes))
        sizes[-deep].append(len(items))
        if deep > 1:
            for item in items:
                self._take_apart(item, sizes, leaves, deep - 1)
            return
        # json[] may hold arrays; any other element that is one is a dimension more.
        if self._name not in _VERBATIM and any(item.startswith(b"[") for item in items):
            raise ArrayTooDeep(self._column.name, _shown(fragment), len(sizes))
        leaves += items

    def _bytes(self, given: pa.StringArray) -> pa.Array:
        found: list[bytes | None] = []
        for text in given.to_pylist():
            try:
                found.append(None if text is None else _bytea(text))
            except ValueError:
                self._refuse(text)
        return pa.array(found, pa.binary())

    def _cast_with_specials(self, given: pa.StringArray) -> pa.Array:
        """Cast value by value after a cast that failed: special values as chosen.

        :raises SpecialValue: if there is one, and it isn't read as null.
        :raises MistypedValue: if a value isn't of the column's type.
        """
        kept: list[str | None] = []
        for text in given.to_pylist():
            if text is None or self._fits(text):
                kept.append(text)
            elif not self._is_special(text):
                self._refuse(text)
            elif self._special is Special.NULL:
                kept.append(None)
            else:
                raise SpecialValue(self._column.name, text, self._type)
        return pc.cast(pa.array(kept, pa.string()), self._type)

    def _is_special(self, text: str) -> bool:
        specials = _SPECIAL_DECIMAL if pa.types.is_decimal(self._type) else _SPECIAL_TIME
        return has_specials(self._type) and specials.fullmatch(text) is not None

    def _fits(self, text: str) -> bool:
        try:
            pc.cast(pa.scalar(text), self._type)
        except pa.ArrowInvalid:
            return False
        return True

    def _refuse(self, text: Any) -> NoReturn:
        raise MistypedValue(self._column.name, _shown(str(text).encode()), self._name)


def texts(fragments: pa.StringArray) -> pa.StringArray:
    """Strings without quotes and escapes; other values and nulls stay.

    :raises BadLine: at an escape that JSON has not.
    """
    quoted = pc.starts_with(fragments, _TEXT)
    if not pc.any(quoted, min_count=0).as_py():
        return fragments
    inner = pc.binary_slice(fragments.cast(pa.binary()), 1, -1).cast(pa.string())
    found = pc.if_else(quoted, inner, fragments)
    escaped = pc.and_(quoted, pc.match_substring(fragments, "\\"))
    if pc.any(escaped, min_count=0).as_py():
        unescaped = [_unescaped(text) for text in fragments.filter(escaped).to_pylist()]
        mask = pc.fill_null(escaped, False)
        found = pc.replace_with_mask(found, mask, pa.array(unescaped, pa.string()))
    return found


def _unescaped(fragment: str) -> str:
    try:
        text: str = orjson.loads(fragment)
    except orjson.JSONDecodeError as wrong:
        raise BadLine(f"not a JSON string ({wrong}): {fragment[:80]!r}") from wrong
    return text


def _bytea(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError(text)
    return bytes.fromhex(text[2:])


def _listed(sizes: list[int | None], values: pa.Array) -> pa.Array:
    """Lists of these sizes over ``values``, one after the other; None is a null list."""
    at = 0
    offsets: list[int | None] = []
    for size in sizes:
        offsets.append(None if size is None else at)
        at += size or 0
    return pa.ListArray.from_arrays(pa.array([*offsets, at], pa.int32()), values)


def _shown(fragment: bytes) -> str:
    text = fragment.decode(errors="replace")
    return text if len(text) <= 60 else f"{text[:57]}..."


# Converts Arrow columns to JSON fragments: the inverse of :mod:`.values`.
#
# By the array's own type, so that files of other writers can be read too. The fragments are what
# PostgreSQL printed in all but a few cases (floats with a digit more than they need); a caller that
# needs exactly these compares.

Restore = Callable[[pa.Array], pa.StringArray]

_ESCAPED = r'["\\\x00-\x1f]'
_PLAIN_FLOAT = r"^-?\d+(\.\d+)?$"
_EXPONENT_BELOW = 1e-4
_FIRST_UNSAFE = {pa.float32(): 1e6, pa.float64(): 1e15}
"""From here up PostgreSQL prints an exponent."""
_DIGITS = {pa.float32(): struct_rows.FLOAT4_DIGITS, pa.float64(): struct_rows.FLOAT8_DIGITS}


def restorer(arrow_type: pa.DataType, type_name: str) -> Restore:
    """Function that turns arrays of this type into fragments; ``type_name`` is PostgreSQL's."""
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        inner = restorer(arrow_type.value_type, type_name.removeprefix("_"))
        return lambda array: _lists(array, inner)
    restore = _restore_of(arrow_type, type_name)
    return lambda array: pc.fill_null(restore(array), _NULL)


def _restore_of(arrow_type: pa.DataType, type_name: str) -> Restore:
    for is_such, restore in _BY_TYPE:
        if is_such(arrow_type):
            return restore
    # An array that is stored as its text is JSON too.
    is_json = type_name in _VERBATIM or type_name.startswith("_")
    return _as_text if is_json else _strings


def _as_text(array: pa.Array) -> pa.StringArray:
    return pc.cast(array, pa.string())


def _as_quoted_text(array: pa.Array) -> pa.StringArray:
    return _quoted(_as_text(array))


def _strings(array: pa.Array) -> pa.StringArray:
    texts = pc.cast(array, pa.string())
    found = _quoted(texts)
    escaped = pc.fill_null(pc.match_substring_regex(texts, _ESCAPED), False)
    if not pc.any(escaped, min_count=0).as_py():
        return found
    dumped = [orjson.dumps(text).decode() for text in texts.filter(escaped).to_pylist()]
    return pc.replace_with_mask(found, escaped, pa.array(dumped, pa.string()))


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _floats(array: pa.Array) -> pa.StringArray:
    texts = pc.cast(array, pa.string())
    size = pc.abs(array)
    plain = pc.and_(
        pc.match_substring_regex(texts, _PLAIN_FLOAT),
        pc.or_(
            pc.equal(size, 0),
            pc.and_(
                pc.greater_equal(size, _EXPONENT_BELOW),
                pc.less(size, _FIRST_UNSAFE.get(array.type, 1e15)),
            ),
        ),
    )
    odd = pc.fill_null(pc.invert(plain), False)
    if not pc.any(odd, min_count=0).as_py():
        return texts
    digits = _DIGITS.get(array.type, struct_rows.FLOAT8_DIGITS)
    printed = [
        struct_rows.text(float(text), digits).decode() for text in texts.filter(odd).to_pylist()
    ]
    return pc.replace_with_mask(texts, odd, pa.array(printed, pa.string()))


def _decimals(array: pa.Array) -> pa.StringArray:
    texts = pc.cast(array, pa.string())
    odd = pc.fill_null(pc.match_substring(texts, "E"), False)
    if pc.any(odd, min_count=0).as_py():
        printed = [f"{number:f}" for number in array.filter(odd).to_pylist()]
        texts = pc.replace_with_mask(texts, odd, pa.array(printed, pa.string()))
    return _quoted(texts)


def _stamps(array: pa.Array) -> pa.StringArray:
    zone = "+00:00" if array.type.tz else ""
    texts = pc.cast(pc.cast(array, pa.timestamp("us")), pa.string())
    with_t = pc.replace_substring(texts, " ", "T", max_replacements=1)
    # PostgreSQL prints no zeros at a fraction's end, and no fraction of zero.
    short = pc.replace_substring_regex(with_t, r"\.?0+$", "", max_replacements=1)
    return pc.binary_join_element_wise('"', short, zone + '"', "")


def _byteas(array: pa.Array) -> pa.StringArray:
    found = [None if raw is None else f'"\\\\x{raw.hex()}"' for raw in array.to_pylist()]
    return pa.array(found, pa.string())


def _lists(array: pa.Array, inner: Restore) -> pa.StringArray:
    array = array.cast(pa.list_(array.type.value_type))
    # A null list or a slice may have values that don't count: flatten() leaves them out.
    values = inner(array.flatten())
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0))
    offsets = pa.concat_arrays([pa.array([0], ends.type), ends])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, values), ",")
    found = pc.binary_join_element_wise("[", joined, "]", "")
    return pc.if_else(array.is_valid(), found, _NULL)


_BY_TYPE: tuple[tuple[Callable[[pa.DataType], bool], Restore], ...] = (
    (pa.types.is_boolean, _as_text),
    (pa.types.is_integer, _as_text),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_date, _as_quoted_text),
    (pa.types.is_timestamp, _stamps),
    (pa.types.is_binary, _byteas),
    (pa.types.is_large_binary, _byteas),
)
