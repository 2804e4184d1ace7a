"""Taking lines apart and together without touching a value's bytes."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_model import key, line
from laredo_model.column import TypeInfo
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


# The stream's text to JSON, rule by rule. The byte-equality with the copy's SQL is shown
# on a real PostgreSQL in tests/fanout/source.


def built_in(name: str, **parts: object) -> TypeInfo:
    return TypeInfo(0, name, **parts)  # type: ignore[arg-type]


def array_of(element: TypeInfo) -> TypeInfo:
    return TypeInfo(0, f"_{element.name}", element=element)


@pytest.mark.parametrize(
    ("type_info", "text", "json"),
    [
        (built_in("bool"), b"t", b"true"),
        (built_in("bool"), b"f", b"false"),
        (built_in("int8"), b"-9223372036854775808", b"-9223372036854775808"),
        (built_in("float8"), b"1e+15", b"1e+15"),
        (built_in("float8"), b"-0", b"-0"),
        (built_in("float4"), b"NaN", b'"NaN"'),
        (built_in("float4"), b"-Infinity", b'"-Infinity"'),
        (built_in("numeric"), b"1.00", b'"1.00"'),
        (built_in("timestamptz"), b"2024-02-29 10:00:00.1+00", b'"2024-02-29T10:00:00.1+00:00"'),
        (built_in("timestamptz"), b"0044-03-15 10:00:00+00 BC", b'"0044-03-15T10:00:00+00:00 BC"'),
        (built_in("timestamp"), b"0044-03-15 10:00:00 BC", b'"0044-03-15T10:00:00 BC"'),
        (built_in("timestamp"), b"-infinity", b'"-infinity"'),
        (built_in("json"), b'{"a" :\n 1,\r"a":2}', b'{"a" :  1, "a":2}'),
        (built_in("bytea"), b"\\xdead", b'"\\\\xdead"'),
        (
            built_in("text"),
            'a"\\\u2028\x7f\n\x01é'.encode(),
            '"a\\"\\\\\u2028\x7f\\n\\u0001é"'.encode(),
        ),
        (built_in("int2vector"), b"1 2", b'"1 2"'),
        (TypeInfo(0, "pair", "public", "c"), b'(1,"a b")', b'"(1,\\"a b\\")"'),
        (TypeInfo(0, "price", "public", "d", base=built_in("numeric")), b"7.50", b'"7.50"'),
        (array_of(built_in("int4")), b"{1,NULL,{2}}", b"[1,null,[2]]"),
        (array_of(built_in("int4")), b"[2:3][-1:0]={{1,2},{3,4}}", b"[[1,2],[3,4]]"),
        (array_of(built_in("int4")), b"{}", b"[]"),
        (
            array_of(built_in("text")),
            b'{"NULL",NULL,"a,\\"b\\\\","","{}"}',
            b'["NULL",null,"a,\\"b\\\\","","{}"]',
        ),
        (
            array_of(built_in("box", delimiter=";")),
            b"{(1,1),(0,0);(2,2),(1,1)}",
            b'["(1,1),(0,0)","(2,2),(1,1)"]',
        ),
        (array_of(built_in("json")), b'{"{\\"a\\":\n1}"}', b'[{"a": 1}]'),
    ],
)  # fmt: skip
def test_each_rule(type_info: TypeInfo, text: bytes, json: bytes) -> None:
    assert line.encoder(type_info)(text) == json


def test_what_is_not_an_array_is_refused() -> None:
    with pytest.raises(BadLine):
        line.encoder(array_of(built_in("int4")))(b'{1,"2')


# Keys as Go's %v prints them: compared with what Go 1.25 printed (fmt.Printf("%v", x)).


PRINTED = {
    "0": "0",
    "7": "7",
    "14": "14",
    "100000": "100000",
    "999999": "999999",
    "1000000": "1e+06",
    "1000001": "1.000001e+06",
    "1234567": "1.234567e+06",
    "12345678.5": "1.23456785e+07",
    "20000000": "2e+07",
    "100000.5": "100000.5",
    "1e20": "1e+20",
    "1e21": "1e+21",
    "123456789012345680000": "1.2345678901234568e+20",
    "0.1": "0.1",
    "0.0001": "0.0001",
    "0.00001": "1e-05",
    "0.00012345": "0.00012345",
    "1.5e-7": "1.5e-07",
    "-2": "-2",
    "-1000001": "-1.000001e+06",
    "9007199254740993": "9.007199254740992e+15",
    "true": "true",
    "null": "<nil>",
    '"a \\u00e9 \\" b"': 'a é " b',
    '["a",1]': "[a 1]",
    '{"b":1,"a":null}': "map[a:<nil> b:1]",
}


@pytest.mark.parametrize(("json", "printed"), PRINTED.items())
def test_one_column(json: str, printed: str) -> None:
    assert key.go_key_of_line(f'{{"v":0,"k":{json}}}'.encode(), ["k"]) == printed.encode()


def test_several_columns_in_the_key_s_order() -> None:
    line = b'{"no":1000001,"region":"r2","v":null}'
    assert key.go_key_of_line(line, ["region", "no"]) == b"[r2 1.000001e+06]"
    assert key.go_key_of_line(line, ["no", "region"]) == b"[1.000001e+06 r2]"


def test_what_is_no_row() -> None:
    with pytest.raises(BadLine):
        key.go_key_of_line(b"[1]", ["id"])
