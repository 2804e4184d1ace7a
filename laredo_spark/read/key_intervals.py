"""Translates <, <=, > and >= on one key column into intervals of texts, the order of keys.

Whole numbers order as their text does only among those of one sign and one length, so an
interval of numbers is a few intervals of texts. Dates and times order as their text does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
from pyspark.sql.datasource import (
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from laredo_model.column import Column

MOST_VALUES = 1000
"""The most numbers of one length that become intervals of their own, instead of one interval."""
FEW_OF = 1000
"""One interval includes longer numbers too: it pays if its numbers are at least a part in
so many of their length."""
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
    # Numbers from one on: longer ones begin with every digit, so they are everywhere.
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
