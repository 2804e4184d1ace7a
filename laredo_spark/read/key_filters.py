"""Translates a query's filters into the key ranges that hold its rows."""

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from laredo_archive.codec.arrow.types import Special, arrow_type, has_specials
from laredo_archive.manifest.key_ranges import KeyRange, of_key
from laredo_model import key as keys_
from laredo_model.column import Column, key_columns
from laredo_spark.read.key_intervals import intervals
from laredo_spark.read.row_shape import RowShape

MOST_RANGES = 4096
_VERBATIM = frozenset({"json", "jsonb"})


def ranges_of(filters: Iterable[Filter], shape: RowShape) -> list[KeyRange] | None:
    """Disjoint ranges that hold every row which passes all of ``filters``, and maybe others.

    None if no filter restricts the key.
    """
    of_column: dict[str, list[Filter]] = {}
    for filter_ in filters:
        attribute: tuple[str, ...] = getattr(filter_, "attribute", ())
        if len(attribute) == 1:
            of_column.setdefault(attribute[0], []).append(filter_)
    key = key_columns(shape.columns)
    if any(_matches_nothing(column, of_column.get(column.name, ()), shape) for column in key):
        return []
    found = _of_values(key, of_column, shape)
    if found is None and len(key) == 1 and _is_text(key[0], shape):
        return _of_text(of_column.get(key[0].name, ()))
    return found


def _matches_nothing(column: Column, filters: Sequence[Filter], shape: RowShape) -> bool:
    typing = shape.asked.typing
    if column.nullable or (
        typing.special is Special.NULL and has_specials(arrow_type(column, typing))
    ):
        return False
    return any(isinstance(filter_, IsNull) for filter_ in filters)


def _of_values(
    key: Sequence[Column], of_column: dict[str, list[Filter]], shape: RowShape
) -> list[KeyRange] | None:
    """Ranges by = and IN on all columns of the key, or on its first ones and < or > on the next."""
    fragments: list[list[bytes]] = []
    count = 1
    for column in key:
        found = _fragments(column, of_column.get(column.name, ()), shape)
        if found is None or count * len(found) > MOST_RANGES:
            break
        count *= len(found)
        fragments.append(found)
    if not key or (len(key) > 1 and shape.inferred):
        return None
    chosen = sorted(set(product(*fragments)))
    if not chosen:
        return []
    if len(fragments) == len(key):
        return [of_key(keys_.of_fragments(c)) for c in chosen]
    between = _between(key, chosen, of_column, shape)
    if between is not None:
        return between
    return [_beginning(c) for c in chosen] if fragments else None


def _between(
    key: Sequence[Column],
    chosen: Sequence[Sequence[bytes]],
    of_column: dict[str, list[Filter]],
    shape: RowShape,
) -> list[KeyRange] | None:
    """Ranges by <, <=, > and >= on the column after those whose values are ``chosen``."""
    column = key[len(chosen[0])]
    type_ = arrow_type(column, shape.asked.typing)
    if shape.inferred:
        return None
    found = intervals(column, type_, of_column.get(column.name, ()))
    if found is None or len(found) * len(chosen) > MOST_RANGES:
        return None
    is_last = len(chosen[0]) + 1 == len(key)
    made = [
        _from_to([*before, interval.first], [*before, interval.last], is_last)
        for before in chosen
        for interval in found
    ]
    return _disjoint(made)


def _disjoint(given: Sequence[KeyRange]) -> list[KeyRange]:
    """Join ranges that overlap; each of them has both ends."""
    found: list[KeyRange] = []
    for one in sorted(given, key=lambda one: (one.low or b"", one.high or b"")):
        if found and (one.low or b"") < (found[-1].high or b""):
            high = max(found[-1].high or b"", one.high or b"")
            found[-1] = KeyRange(found[-1].low, high)
        else:
            found.append(one)
    return found


def _from_to(first: Sequence[bytes], last: Sequence[bytes], is_last: bool) -> KeyRange:
    if is_last:
        return KeyRange(keys_.of_fragments(first), of_key(keys_.of_fragments(last)).high)
    return KeyRange(_beginning(first).low, _beginning(last).high)


def _beginning(fragments: Sequence[bytes]) -> KeyRange:
    # Each is followed by a comma: no range begins inside of another.
    return _of_prefix(b"[" + b",".join(fragments) + b",")


def _of_prefix(prefix: bytes) -> KeyRange:
    return KeyRange(prefix, _after(prefix.decode()))


def _after(prefix: str) -> bytes | None:
    """The first text above all texts with this prefix; None if there is none."""
    kept = prefix.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return (kept[:-1] + chr(0xE000 if following == 0xD800 else following)).encode()


def _fragments(column: Column, filters: Sequence[Filter], shape: RowShape) -> list[bytes] | None:
    """The JSON values that the column may have; None if they are unknown."""
    for filter_ in filters:
        if isinstance(filter_, EqualTo | EqualNullSafe):
            values = [filter_.value]
        elif isinstance(filter_, In):
            values = [value for value in filter_.value if value is not None]
        else:
            continue
        found = [_fragment(column, value, shape) for value in values]
        if None not in found:
            return [fragment for fragment in found if fragment is not None]
    return None


def _fragment(column: Column, value: object, shape: RowShape) -> bytes | None:
    """``value`` as written in a line; None if a line may write it in several ways."""
    if isinstance(value, bool):
        return orjson.dumps(value) if column.type == "bool" else None
    if isinstance(value, int):
        return b"%d" % value if column.type in ("int2", "int4", "int8", "oid") else None
    if isinstance(value, str):
        return orjson.dumps(value) if _is_text(column, shape) else None
    if isinstance(value, date) and not isinstance(value, datetime):
        return orjson.dumps(value.isoformat()) if column.type == "date" else None
    if isinstance(value, Decimal):
        return _decimal(column, value, shape)
    return None


def _decimal(column: Column, value: Decimal, shape: RowShape) -> bytes | None:
    type_ = arrow_type(column, shape.asked.typing)
    if column.type != "numeric" or column.type_modifier < 0 or not pa.types.is_decimal(type_):
        return None
    return orjson.dumps(f"{value or Decimal(0):.{type_.scale}f}")


def _is_text(column: Column, shape: RowShape) -> bool:
    found = arrow_type(column, shape.asked.typing)
    return bool(pa.types.is_string(found)) and column.type not in _VERBATIM


_BOUNDS: dict[type[Filter], Callable[[bytes], KeyRange]] = {
    StringStartsWith: _of_prefix,
    GreaterThan: lambda text: KeyRange(text + b"\0", None),
    GreaterThanOrEqual: lambda text: KeyRange(text, None),
    LessThan: lambda text: KeyRange(None, text),
    LessThanOrEqual: lambda text: KeyRange(None, text + b"\0"),
}


def _of_text(filters: Sequence[Filter]) -> list[KeyRange] | None:
    """Ranges by comparisons of text, whose order is that of its UTF-8 bytes in Spark too."""
    low: bytes | None = None
    high: bytes | None = None
    for filter_ in filters:
        bound, value = _BOUNDS.get(type(filter_)), _value(filter_)
        if bound is None or not isinstance(value, str):
            continue
        part = bound(value.encode())
        if part.low is not None and (low is None or part.low > low):
            low = part.low
        if part.high is not None and (high is None or part.high < high):
            high = part.high
    if low is None and high is None:
        return None
    return [] if low is not None and high is not None and low >= high else [KeyRange(low, high)]


def _value(filter_: Filter) -> Any:
    return getattr(filter_, "value", None)
