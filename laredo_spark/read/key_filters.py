"""Translation of a query's filters into the key ranges that contain its rows."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple

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

from laredo_archive.codec.arrow.types import Special, arrow_type, has_specials, is_array
from laredo_archive.manifest.key_ranges import KeyRange, of_key
from laredo_model import key as keys_
from laredo_model.column import Column, key_columns
from laredo_spark.read.row_shape import RowShape

# Translates <, <=, > and >= on one key column into intervals of texts, the order of keys.
#
# Whole numbers of one sign and one length are in the order of their texts, so an interval of
# numbers is a few intervals of texts. Dates and times are in the order of their texts.

MOST_VALUES = 1000
"""The most numbers of one length that become intervals of their own, instead of one interval."""
FEW_OF = 1000
"""One interval of texts includes longer numbers too. They are few if the interval has fewer than
one in this many of the numbers of its own length."""
_LIMITS = {
    "int2": (-(1 << 15), (1 << 15) - 1),
    "int4": (-(1 << 31), (1 << 31) - 1),
    "int8": (-(1 << 63), (1 << 63) - 1),
    "oid": (0, (1 << 32) - 1),
}


class Interval(NamedTuple):
    """JSON values as written in lines, from ``first`` to ``last``, both included."""

    #: The first value.
    first: bytes
    #: The last value.
    last: bytes


def intervals(
    column: Column, type_: pa.DataType, filters: Iterable[Filter]
) -> list[Interval] | None:
    """Intervals of every value that passes the comparisons in ``filters``, and maybe others.

    :param type_: the column's Arrow type.
    :returns: None if no comparison restricts the column.
    """
    kind = _kind_of(column, type_)
    if kind is None:
        return None
    lows, highs = [], []
    for filter_ in filters:
        value = kind.value(getattr(filter_, "value", None))
        # The bound itself is always included: one value more costs nothing.
        if value is not None and isinstance(filter_, GreaterThan | GreaterThanOrEqual):
            lows.append(value)
        elif value is not None and isinstance(filter_, LessThan | LessThanOrEqual):
            highs.append(value)
    # A lower bound alone restricts no texts: longer numbers begin with any digit.
    if not highs and (not lows or not kind.in_order):
        return None
    low, high = max([kind.least, *lows]), min([kind.greatest, *highs])
    return list(kind.texts(low, high)) if low <= high else []


class _Kind(NamedTuple):
    least: Any
    greatest: Any
    value: Callable[[object], Any]
    """The value that a filter compares with; None if it has another type."""
    texts: Callable[[Any, Any], Iterator[Interval]]
    in_order: bool = True
    """True if all of its texts are in the order of the values."""


def _kind_of(column: Column, type_: pa.DataType) -> _Kind | None:
    if column.type in _LIMITS:
        least, greatest = _LIMITS[column.type]
        return _Kind(least, greatest, _whole_number, _numbers, in_order=False)
    if pa.types.is_date(type_):
        return _Kind(date.min, date.max, _day, _in_order(date.isoformat))
    if pa.types.is_timestamp(type_):
        zone = UTC if type_.tz else None
        first, last = datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)
        return _Kind(first, last, _moment_in(bool(zone)), _in_order(_text_of_moment))
    return None


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _day(value: object) -> date | None:
    return value if isinstance(value, date) and not isinstance(value, datetime) else None


def _moment_in(zoned: bool) -> Callable[[object], datetime | None]:
    def moment(value: object) -> datetime | None:
        if not isinstance(value, datetime) or (value.tzinfo is not None) != zoned:
            return None
        return value.astimezone(UTC) if zoned else value

    return moment


def _text_of_moment(moment: datetime) -> str:
    """As PostgreSQL prints it (docs/archive-format.md): no zeros at a fraction's end."""
    zone = "" if moment.tzinfo is None else "+00:00"
    text = moment.replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if "." in text else text) + zone


def _in_order(text: Callable[[Any], str]) -> Callable[[Any, Any], Iterator[Interval]]:
    def texts(low: object, high: object) -> Iterator[Interval]:
        yield Interval(orjson.dumps(text(low)), orjson.dumps(text(high)))

    return texts


def _numbers(low: int, high: int) -> Iterator[Interval]:
    if low < 0:
        for least, most in _by_length(max(1, -high), -low):
            yield from _of_length(range(-most, -least + 1), negative=True)
    if high >= 0:
        for least, most in _by_length(max(0, low), high):
            yield from _of_length(range(least, most + 1), negative=False)


def _by_length(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Numbers from 0 up, of one length each."""
    while low <= high:
        end = min(high, 10 ** len(str(low)) - 1)
        yield low, end
        low = end + 1


def _of_length(numbers: Sequence[int], *, negative: bool) -> Iterator[Interval]:
    of_this_length = 10 ** len(str(abs(numbers[0])))
    if len(numbers) <= MOST_VALUES and len(numbers) * FEW_OF > of_this_length:
        for number in numbers:
            yield Interval(b"%d" % number, b"%d" % number)
        return
    first, last = b"%d" % numbers[0], b"%d" % numbers[-1]
    yield Interval(last, first) if negative else Interval(first, last)


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
        # In the order of keys, which isn't that of fragments: [7,10] comes before [7,1].
        return [of_key(key) for key in sorted(map(keys_.of_fragments, chosen))]
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
    is_one = bool(pa.types.is_string(found)) and not is_array(column)
    return is_one and column.type not in _VERBATIM


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
        bound, value = _BOUNDS.get(type(filter_)), getattr(filter_, "value", None)
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
