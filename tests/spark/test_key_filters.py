"""Conditions on the key narrow the reads, and never lose a row."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from laredo_archive.codec import jsonl
from laredo_model import key as keys_
from laredo_model.column import Column
from laredo_spark.options import ReadOptions, parse
from laredo_spark.read import table_read
from laredo_spark.read.key_filters import ranges_of
from laredo_spark.read.row_shape import RowShape
from tests.support.archive.building import Builder
from tests.support.drawn import examples
from tests.support.spark_reading import Reading, names

NUMERIC_10_2 = (10 << 16 | 2) + 4


def shape(*key: Column, inferred: bool = False, asked: ReadOptions | None = None) -> RowShape:
    return RowShape(asked or parse({"path": "x"}), key, inferred)


def column(name: str, type_name: str, place: int | None = 1, modifier: int = -1) -> Column:
    return Column(name, type_name, modifier, nullable=False, key_ordinal=place)


K = ("k",)
ONE = [
    ("int8", EqualTo(K, 7), b"7", "8"),
    ("int4", EqualNullSafe(K, -7), b"-7", "7"),
    ("text", EqualTo(K, 'a"b'), b'"a\\"b"', '"a"'),
    ("uuid", EqualTo(K, "a0ee"), b'"a0ee"', '"a0ef"'),
    ("bpchar", EqualTo(K, "a  "), b'"a  "', '"a"'),
    ("date", EqualTo(K, date(2024, 2, 29)), b'"2024-02-29"', '"2024-02-28"'),
    ("bool", EqualTo(K, True), b"true", "false"),
]


@pytest.mark.parametrize(("type_name", "filter_", "inside", "outside"), ONE)
def test_one_value(type_name: str, filter_: Filter, inside: bytes, outside: str) -> None:
    found = ranges_of([IsNotNull(K), filter_], shape(column("k", type_name)))
    assert found is not None and len(found) == 1
    assert keys_.of_fragment(inside) in found[0]
    assert keys_.of_fragment(outside.encode()) not in found[0]


def test_a_decimal_is_looked_for_as_it_is_written() -> None:
    price = shape(column("k", "numeric", modifier=NUMERIC_10_2))
    for value, written in ((Decimal("1.5"), b"1.50"), (Decimal("-0.00"), b"0.00")):
        [found] = ranges_of([EqualTo(K, value)], price) or []
        assert written in found
    # As a decimal it can be written in many ways: 1.5, 1.50, ...
    asked = parse({"path": "x", "numeric_as": "decimal(38,18)"})
    any_scale = shape(column("k", "numeric"), asked=asked)
    assert ranges_of([EqualTo(K, Decimal("1.5"))], any_scale) is None


NOTHING = [
    ("int8", Not(EqualTo(K, 7))),
    ("int8", EqualTo(("other",), 7)),
    ("int8", EqualTo(("k", "inside"), 7)),
    ("int8", GreaterThan(K, 7)),
    ("jsonb", EqualTo(K, "7")),
    ("float8", EqualTo(K, 1.5)),
    ("timestamptz", EqualTo(K, datetime(2024, 1, 1))),
    ("text", StringContains(K, "a")),
    ("text", Not(GreaterThan(K, "a"))),
]


@pytest.mark.parametrize(("type_name", "filter_"), NOTHING)
def test_what_says_nothing_of_the_keys(type_name: str, filter_: Filter) -> None:
    assert ranges_of([filter_], shape(column("k", type_name))) is None


def test_in_is_a_range_for_each_value_once() -> None:
    found = ranges_of([In(K, (3, None, 1, 3))], shape(column("k", "int8")))
    assert found is not None
    assert [one.low for one in found] == [b"1", b"3"]
    assert ranges_of([In(K, tuple(range(5000)))], shape(column("k", "int8"))) is None
    found = ranges_of([In(K, ("a b", "a"))], shape(column("k", "text")))
    assert found is not None and [one.low for one in found] == [b"a", b"a b"]


def test_a_key_is_never_null() -> None:
    assert ranges_of([IsNull(K)], shape(column("k", "int8"))) == []
    nullable = Column("k", "int8", nullable=True, key_ordinal=1)
    assert ranges_of([IsNull(K)], shape(nullable)) is None
    # Values that Spark lacks are read as null by this option.
    asked = parse({"path": "x", "special_values": "null"})
    assert ranges_of([IsNull(K)], shape(column("k", "date"), asked=asked)) is None


PAIR = (column("n", "int8", 2), column("a", "text", 1))


def test_several_columns() -> None:
    a, n = EqualTo(("a",), 'x"y'), In(("n",), (1, 10, 22))
    found = ranges_of([n, a], shape(*PAIR))
    assert found is not None
    assert [one.low for one in found] == [b'["x\\"y",10]', b'["x\\"y",1]', b'["x\\"y",22]']
    assert all(one.low is not None and one.low in one for one in found)
    # The first of them alone is a range; the second alone is none.
    [beginning] = ranges_of([a], shape(*PAIR)) or []
    assert b'["x\\"y",1]' in beginning and b'["x\\"y",9]' in beginning
    assert b'["x\\"yz",1]' not in beginning and b'["x",1]' not in beginning
    assert ranges_of([n], shape(*PAIR)) is None
    # How other writers' values stand in a line isn't known.
    assert ranges_of([a, n], shape(*PAIR, inferred=True)) is None


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3)
_COMPARED = {
    StringStartsWith: str.startswith,
    GreaterThan: lambda key, value: key.encode() > value.encode(),
    GreaterThanOrEqual: lambda key, value: key.encode() >= value.encode(),
    LessThan: lambda key, value: key.encode() < value.encode(),
    LessThanOrEqual: lambda key, value: key.encode() <= value.encode(),
}


@settings(max_examples=examples(400, push=40))
@given(
    asked=st.lists(st.tuples(st.sampled_from(list(_COMPARED)), _TEXTS), min_size=1, max_size=3),
    keys=st.lists(_TEXTS | st.sampled_from(["\ud7ff", "\ue000", "\U0010ffff"])),
)
def test_text_compares_as_its_bytes(asked: list[tuple[Any, str]], keys: list[str]) -> None:
    filters = [made(K, value) for made, value in asked]
    found = ranges_of(filters, shape(column("k", "text")))
    for key in keys:
        passes = all(_COMPARED[made](key, value) for made, value in asked)
        inside = found is None or any(key.encode() in one for one in found)
        assert inside or not passes
        if found is not None and not passes:
            assert not inside


_WHOLE = {
    "int2": st.integers(-(1 << 15), (1 << 15) - 1),
    "int8": st.integers(-1100, 1100) | st.integers(-(1 << 63), (1 << 63) - 1),
}
_ORDER: dict[Any, Any] = {
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
}
_MOMENTS = st.datetimes(datetime(2023, 12, 30), datetime(2024, 1, 3)) | st.datetimes()
_VALUES = {
    **_WHOLE,
    "date": st.dates(date(2023, 1, 1), date(2024, 12, 31)) | st.dates(),
    "timestamp": _MOMENTS,
    "timestamptz": _MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
}


def fragment(value: Any) -> bytes:
    """As PostgreSQL prints it (docs/archive-format.md)."""
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat()
        text = text.rstrip("0") if "." in text else text
        return f'"{text}{"" if value.tzinfo is None else "+00:00"}"'.encode()
    return f'"{value.isoformat()}"'.encode() if isinstance(value, date) else b"%d" % value


@settings(max_examples=examples(150, push=20))
@given(data=st.data(), place=st.sampled_from(["alone", "first", "last"]))
@pytest.mark.parametrize("type_name", list(_VALUES))
def test_from_and_to(type_name: str, data: st.DataObject, place: str) -> None:
    """Every value that passes is in one of the ranges, and in no second one."""
    values = _VALUES[type_name]
    bounds = st.lists(st.tuples(st.sampled_from(list(_ORDER)), values), min_size=1, max_size=3)
    asked = data.draw(bounds)
    other = column("other", "text", 1 if place == "last" else 2)
    key = column("k", type_name, 2 if place == "last" else 1)
    filters: list[Filter] = [made(K, value) for made, value in asked]
    if place == "last":
        filters.append(EqualTo(("other",), "x"))
    found = ranges_of(filters, shape(*([key] if place == "alone" else [key, other])))
    for value in [*data.draw(st.lists(values)), *(value for _, value in asked)]:
        fragments = {"alone": [], "first": [b'"x"'], "last": [b'"x"']}[place]
        fragments.insert(1 if place == "last" else 0, fragment(value))
        text = keys_.of_fragments(fragments)
        inside = 1 if found is None else sum(text in one for one in found)
        passes = all(_ORDER[made](value, bound) for made, bound in asked)
        assert inside == 1 or (inside == 0 and not passes), (value, found)
    ends = [] if found is None else [(one.low or b"", one.high or b"") for one in found]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))


@pytest.mark.parametrize(
    ("filters", "most"),
    [
        ([GreaterThan(K, 999_000), LessThan(K, 1_000_500)], 2),
        ([GreaterThanOrEqual(K, 500_000), LessThanOrEqual(K, 500_899)], 1),
        ([GreaterThanOrEqual(K, 0), LessThan(K, 40)], 41),
        ([LessThan(K, 0)], 1000),
        ([LessThan(K, 5), GreaterThan(K, 7)], 0),
    ],
)
def test_whole_numbers_are_few_ranges(filters: list[Filter], most: int) -> None:
    found = ranges_of(filters, shape(column("k", "int8")))
    assert found is not None and len(found) <= most
    assert not any(b"77777" in one for one in found)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jsonl, "SNAPSHOT_BLOCK", 500)
    monkeypatch.setattr(jsonl, "DIFF_BLOCK", 200)
    many = {number: f"name {number}" for number in range(1000)}
    builder = Builder(tmp_path).base(0x10, names(many))
    changed = {**many, **dict.fromkeys(range(0, 1000, 20), "new"), 5000: "inserted"}
    del changed[77]
    return builder.diff(0x20, names(changed)).write()


ID = ("id",)


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ([EqualTo(ID, 7)], [7]),
        ([EqualTo(ID, 5000)], [5000]),
        ([EqualTo(ID, 77)], []),
        ([In(ID, (1, 2, 500, 77, 9999)), EqualTo(("name",), "x")], [1, 2, 500]),
        ([IsNull(ID)], []),
    ],
)
def test_only_those_rows_are_read(archive: Path, filters: list[Filter], ids: list[int]) -> None:
    made = Reading(archive, push_filters="true")
    assert made.ids(filters) == ids
    whole = sum(read.size_bytes for part in made.partitions()[1] for read in part.reads)
    narrow = sum(read.size_bytes for part in made.partitions(filters)[1] for read in part.reads)
    assert narrow < whole / 10


@pytest.mark.parametrize(
    ("filters", "ids", "share"),
    [
        ([GreaterThanOrEqual(ID, 70), LessThan(ID, 80)], range(70, 80), 5),
        ([GreaterThan(ID, 900), LessThan(ID, 1100)], range(901, 1000), 2),
        ([LessThan(ID, 0)], [], 10),
        ([GreaterThan(ID, 500)], [*range(501, 1000), 5000], 1),
        ([GreaterThan(ID, 100), LessThan(ID, 999)], range(101, 999), 1),
    ],
)
def test_from_and_to_narrow_what_is_read(
    archive: Path, filters: list[Filter], ids: Sequence[int], share: int
) -> None:
    made = Reading(archive, push_filters="true")
    found = made.ids(filters)
    assert len(found) == len(set(found))
    assert set(ids) - {77} <= set(found)
    whole = sum(read.size_bytes for part in made.partitions()[1] for read in part.reads)
    narrow = sum(read.size_bytes for part in made.partitions(filters)[1] for read in part.reads)
    assert narrow <= whole / share


def test_a_long_range_is_several_tasks(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_read, "TASK_BYTES", 5000)
    made = Reading(archive, push_filters="true", partitions=8)
    some = [GreaterThanOrEqual(ID, 20_000), LessThan(ID, 80_000)]
    assert len(made.partitions(some)[1]) > 3


def test_files_that_begin_beyond_the_key_arent_opened(archive: Path) -> None:
    made = Reading(archive, key="!", partitions=1)
    [part] = made.partitions()[1]
    assert (part.reads[0].base, part.reads[0].diffs) == (None, ())
    assert made.rows() == []


def test_many_keys_are_a_few_tasks_and_no_row_twice(archive: Path) -> None:
    made = Reading(archive, push_filters="true", partitions=3)
    some = [In(ID, tuple(range(0, 40)))]
    assert len(made.partitions(some)[1]) == 3
    assert made.ids(some) == list(range(40))
    # More than the whole file would be read: so it is read whole, once.
    nearly_all = [In(ID, tuple(range(0, 1000)))]
    assert made.ids(nearly_all) == [n for n in [*range(1000), 5000] if n != 77]
