"""The stream's text to JSON, rule by rule. The byte-equality with the copy's SQL is shown
on a real PostgreSQL in tests/fanout/source."""

import pytest

from laredo_model import line
from laredo_model.column import TypeInfo
from laredo_model.errors import BadLine


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
