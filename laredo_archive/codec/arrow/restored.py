"""Converts Arrow columns to JSON fragments: the inverse of :mod:`.values`.

By the array's own type, so that files of other writers read too. What comes out is what
PostgreSQL printed in all but a few cases (floats with a digit more than they need); who must
have the very fragments compares.
"""

from collections.abc import Callable

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from laredo_archive.codec import floats

Restore = Callable[[pa.Array], pa.StringArray]

_NULL = "null"
_JSONS = frozenset({"json", "jsonb"})
_ESCAPED = r'["\\\x00-\x1f]'
_PLAIN_FLOAT = r"^-?\d+(\.\d+)?$"
_EXPONENT_BELOW = 1e-4
_FIRST_UNSAFE = {pa.float32(): 1e6, pa.float64(): 1e15}
"""From here up PostgreSQL prints an exponent."""
_DIGITS = {pa.float32(): floats.FLOAT4_DIGITS, pa.float64(): floats.FLOAT8_DIGITS}


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
    is_json = type_name in _JSONS or type_name.startswith("_")
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
    digits = _DIGITS.get(array.type, floats.FLOAT8_DIGITS)
    printed = [floats.text(float(text), digits).decode() for text in texts.filter(odd).to_pylist()]
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
    # A null list or a slice may have values beside those that count: flatten() leaves them out.
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
