"""Taking lines apart and together without touching a value's bytes."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_model import key, line
from laredo_model.errors import BadLine

TEXT = st.text(st.characters(blacklist_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=12,
)
# Verbatim json columns: blanks, duplicate keys, long numbers, lone surrogates stay.
VERBATIM = st.sampled_from(
    [
        b'{"a": 1, "a" : 2}',
        b"1" * 30,
        rb'"\ud800"',
        b"[ 1 ,{}, [] ]",
        b'"}{][,"',
        b"-0.0e-5",
        b"  [1 ,  \t2]  ",
        b" {} ",
        b'\t"a" ',
        b" null ",
    ]
)
FRAGMENTS = st.one_of(JSON.map(lambda value: json.dumps(value).encode()), VERBATIM)
ROWS = st.dictionaries(TEXT, FRAGMENTS, max_size=6)


@given(ROWS)
def test_a_line_comes_apart_into_what_it_was_made_of(row: dict[str, bytes]) -> None:
    made = line.join(list(row), list(row.values()))
    assert line.names(made) == list(row)
    assert line.fragments(made) == list(row.values())


def test_nesting_deeper_than_a_recursive_parser_reaches_is_no_matter() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert line.fragments(line.join(["deep", "n"], [deep, b"1"])) == [deep, b"1"]


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"a":}', b'{"a":1', b'{"a":1}x}', b'{"a":[1}', b'{"a" :1}', b'{"a":"b}'],
)
def test_what_is_not_a_line_is_refused(text: bytes) -> None:
    with pytest.raises(BadLine):
        line.items(text)


def test_a_partial_line_is_filled_from_the_row_before() -> None:
    partial = line.PARTIAL + line.join(["id", "big", "n"], [b"1", line.MISSING, b"5"])
    assert line.is_partial(partial)
    assert line.fill(partial, b'{"id":1,"big":"x\\u0001","n":4}') == (
        b'{"id":1,"big":"x\\u0001","n":5}'
    )


def test_what_is_missing_on_both_sides_stays_missing() -> None:
    names = ["id", "a", "b"]
    first = line.PARTIAL + line.join(names, [b"1", line.MISSING, line.MISSING])
    second = line.PARTIAL + line.join(names, [b"1", b"2", line.MISSING])
    filled = line.fill(first, second)
    assert line.is_partial(filled)
    assert line.fill(filled, b'{"id":1,"a":0,"b":3}') == b'{"id":1,"a":2,"b":3}'


def test_a_column_the_other_row_has_not_stays_missing() -> None:
    partial = line.PARTIAL + line.join(["id", "added"], [b"1", line.MISSING])
    assert line.is_partial(line.fill(partial, b'{"id":1}'))


@given(st.lists(JSON, min_size=2, max_size=3))
def test_a_key_of_several_columns_is_their_compact_array(values: list[object]) -> None:
    row = line.join(["x", "b", "a"][: len(values)], [orjson_or_json(value) for value in values])
    fields = ["x", "b", "a"][: len(values)][::-1]
    assert json.loads(key.of_line(row, fields)) == values[::-1]


@given(TEXT)
def test_a_key_of_one_text_column_is_its_text(value: str) -> None:
    assert key.of_line(line.join(["k"], [orjson.dumps(value)]), ["k"]) == value.encode()


def test_a_key_of_one_number_is_its_digits() -> None:
    assert key.of_line(b'{"id":9223372036854775807,"x":"y"}', ["id"]) == b"9223372036854775807"


def test_a_line_without_the_key_column_is_refused_by_name() -> None:
    with pytest.raises(BadLine, match='no key column "id"'):
        key.of_line(b'{"x":1}', ["id"])


def orjson_or_json(value: object) -> bytes:
    """JSON text; orjson takes no integer beyond 64 bits."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
