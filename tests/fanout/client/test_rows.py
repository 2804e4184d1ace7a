"""Lines to dicts: no number changes its value."""

import json
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_fanout.client.stream.translate import BaseRows, number_text
from laredo_fanout.client.table.rows import as_text, parse
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.column import Column


@given(st.integers())
def test_integers_of_any_size(number: int) -> None:
    assert parse(b'{"n":%d}' % number) == {"n": number}


@given(st.decimals(allow_nan=False, allow_infinity=False, places=20))
def test_fractions_are_the_same_number(number: Decimal) -> None:
    text = f"{number:f}"
    value = parse(b'{"n":%s}' % text.encode())["n"]
    assert Decimal(repr(value) if isinstance(value, float) else value) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_come_back_as_themselves(number: float) -> None:
    value = parse(b'{"n":' + number_text(number) + b"}")["n"]
    assert not isinstance(value, Decimal)
    assert value == number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12345678901234567890.123456789", Decimal("12345678901234567890.123456789")),
        ("1e400", Decimal("1e400")),
        ("0.1", 0.1),
        ("1e5", 1e5),
        ("123456789012345678", 123456789012345678),
        ("9" * 5000, Decimal("9" * 5000)),
    ],
)
def test_a_decimal_only_where_a_float_would_lose(text: str, expected: object) -> None:
    value = parse(b'{"n":{"deep":[%s]}}' % text.encode())["n"]["deep"][0]
    assert value == expected
    assert type(value) is type(expected)


def test_lone_surrogates_that_json_columns_may_hold() -> None:
    assert parse(rb'{"j":{"a":"\ud800"}}') == {"j": {"a": "\ud800"}}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_same_as_the_standard_library(row: dict[str, object]) -> None:
    line = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    assert parse(line.encode("utf-8", "surrogatepass")) == row


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e15, b"1e+15"),
        (-1.5e15, b"-1.5e+15"),
        (1e16, b"1e+16"),
        (1e14, b"100000000000000"),
        (1e-05, b"1e-05"),
        (0.0001, b"0.0001"),
        (-0.0, b"-0"),
        (5.0, b"5"),
        (1234567890123456.0, b"1.234567890123456e+15"),
        (-1000000000000000.5, b"-1.0000000000000005e+15"),
    ],
)
def test_doubles_print_as_postgresql_does(number: float, text: bytes) -> None:
    assert number_text(number) == text


def test_look_ups_compare_numbers_with_digits() -> None:
    assert as_text(5) == as_text("5") == as_text(5.0) == as_text(Decimal(5)) == "5"
    assert as_text(True) == "true"
    assert as_text(None) is None
    assert as_text({"b": 1, "a": [2]}) == as_text({"a": [2], "b": 1})


def test_base_rows_keep_the_table_s_order_and_make_composite_keys() -> None:
    columns = [
        Column("z", "text", ordinal=1, key_ordinal=2),
        Column("a", "int8", ordinal=2, key_ordinal=1),
        Column("j", "jsonb", ordinal=3),
    ]
    message = wire.SnapshotRow()
    message.row.update({"a": 7, "j": {"n": [1, None, True]}, "z": "x"})
    key, line = BaseRows(columns).key_and_line(message.row)
    assert key == b'[7,"x"]'
    assert line == b'{"z":"x","a":7,"j":{"n":[1,null,true]}}'


def test_without_a_key_the_line_identifies_the_row() -> None:
    message = wire.SnapshotRow()
    message.row.update({"a": 1})
    assert BaseRows([Column("a", "int4")]).key_and_line(message.row) == (b'{"a":1}', b'{"a":1}')


def test_integers_of_base_rows_have_no_exponent() -> None:
    """Struct carries those up to 2^53 as doubles: microseconds since 1970 are among them."""
    columns = [Column("a", "int8", ordinal=1, key_ordinal=1), Column("b", "_int8", ordinal=2)]
    message = wire.SnapshotRow()
    message.row.update({"a": 1764188752000000, "b": [-1764188752000000, "9007199254740993"]})
    key, line = BaseRows(columns).key_and_line(message.row)
    assert key == b"1764188752000000"
    assert line == b'{"a":1764188752000000,"b":[-1764188752000000,9007199254740993]}'


@pytest.mark.parametrize("text", ["\u0663", "007", "-"])
def test_text_that_is_no_number_in_json_stays_a_string(text: str) -> None:
    message = wire.SnapshotRow()
    message.row.update({"a": text})
    _, line = BaseRows([Column("a", "int8")]).key_and_line(message.row)
    assert orjson.loads(line) == {"a": text}
