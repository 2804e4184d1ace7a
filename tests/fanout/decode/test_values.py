"""The copied line and the streamed line of a row are equal, byte for byte, for every type."""

import json
import string
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from tests.support.ingest import Start
from tests.support.postgres import Database

_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)
_WORD = st.text(string.ascii_letters, min_size=1, max_size=8)


def _ints(bits: int) -> st.SearchStrategy[str]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0, -1])).map(str)


_FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.sampled_from(
        [
            *("NaN", "Infinity", "-Infinity", "-0", "1e15", "1e14", "1e-5", "0.0001"),
            "123456789012345680",
        ]
    ),
)
_DOUBLES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308"]),
)
_NUMERICS = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False, places=6).map(str),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1.00", "0", "9" * 5000, "1e-1000"]),
)
_DATES = st.one_of(
    st.dates().map(str),
    st.sampled_from(["infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "294276-12-31"]),
)
_TIMES = st.times().map(lambda time: time.isoformat())
_ZONES = st.sampled_from(["+00", "+02", "-03:30", "+13", "-08:30:15"])
_STAMPS = st.one_of(
    st.datetimes().map(lambda stamp: stamp.isoformat(" ")),
    st.sampled_from(
        [
            "infinity",
            "-infinity",
            "0044-03-15 10:00:00 BC",
            "294276-12-31 23:59:59.999999",
            "2024-02-29 10:00:00.1",
        ]
    ),
)
_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)
_JSON = st.one_of(
    _JSON_VALUES.map(json.dumps),
    _JSON_VALUES.map(lambda value: json.dumps(value, indent=1)),
    st.sampled_from(
        [
            '{"a":1,"a":2}',
            "  [1 ,\r\n\t2]  ",
            "123456789012345678901234567890.50",
            '"\\ud800"',
            '"\\u0000"',
            "1E5",
            "-0.0E+5",
            "1e99999999999999999999",
            "[" * 5000 + "]" * 5000,
            '{"a":' * 5000 + "1" + "}" * 5000,
            '"' + "x" * 100_000 + '"',
        ]
    ),
)
_JSONB = _JSON_VALUES.map(json.dumps).filter(lambda text: "\\u0000" not in text)


def _quoted_element(value: str | None) -> str:
    if value is None:
        return "NULL"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _array(element: st.SearchStrategy[str], delimiter: str = ",") -> st.SearchStrategy[str]:
    flat = st.lists(st.none() | element, max_size=4)
    text = flat.map(lambda values: "{" + delimiter.join(map(_quoted_element, values)) + "}")
    row = st.lists(st.none() | element, min_size=2, max_size=2)
    nested = st.lists(row, min_size=1, max_size=3).map(
        lambda rows: (
            "{"
            + delimiter.join(
                "{" + delimiter.join(map(_quoted_element, values)) + "}" for values in rows
            )
            + "}"
        )
    )
    bounded = st.lists(element, min_size=2, max_size=2).map(
        lambda values: "[2:3]={" + delimiter.join(map(_quoted_element, values)) + "}"
    )
    return st.one_of(text, nested, bounded)


_COMPOSITE = st.tuples(_ints(32), _WORD).map(lambda parts: f'({parts[0]},"{parts[1]} ""x"" \\\\")')
_POINTS = st.tuples(st.integers(-99, 99), st.integers(-99, 99))
_BOXES = st.tuples(_POINTS, _POINTS).map(lambda corners: f"{corners[0]},{corners[1]}")
_RANGES = st.tuples(st.integers(-1000, 0), st.integers(1, 1000)).map(
    lambda ends: f"[{ends[0]},{ends[1]})"
)

TYPES: dict[str, st.SearchStrategy[str]] = {
    "bool": st.sampled_from(["t", "f"]),
    "int2": _ints(16),
    "int4": _ints(32),
    "int8": _ints(64),
    "oid": st.integers(0, 2**32 - 1).map(str),
    "float4": _FLOATS,
    "float8": _DOUBLES,
    "numeric": _NUMERICS,
    "numeric(12,3)": st.decimals(-99999, 99999, places=3).map(str),
    "money": st.decimals(-99999, 99999, places=2).map(str),
    "date": _DATES,
    "time": _TIMES,
    "timetz": st.tuples(_TIMES, _ZONES).map("".join),
    "timestamp": _STAMPS,
    "timestamptz": _STAMPS,
    "interval": st.sampled_from(["1 year 2 mons -3 days 04:05:06.7", "0", "-1 mon"]),
    "json": _JSON,
    "jsonb": _JSONB,
    "text": _TEXT,
    "varchar(80)": _TEXT,
    "char(7)": st.text('ab "\\é', max_size=7),
    "bpchar": st.text("ab ", max_size=7),
    '"char"': st.sampled_from(["a", "\\", '"', " "]),
    "name": _WORD,
    "bytea": st.binary(max_size=20).map(lambda value: "\\x" + value.hex()),
    "uuid": st.uuids().map(str),
    "inet": st.sampled_from(["1.2.3.4", "10.0.0.0/8", "::1", "2001:db8::/32"]),
    "cidr": st.sampled_from(["10.0.0.0/8", "1.2.3.4/32", "2001:db8::/32"]),
    "macaddr": st.just("08:00:2b:01:02:03"),
    "bit(4)": st.text("01", min_size=4, max_size=4),
    "varbit": st.text("01", max_size=9),
    "tsvector": st.sampled_from(["'a':1 'b c':2A", ""]),
    "int4range": _RANGES,
    "tstzrange": st.sampled_from(["[2024-01-01 00:00:00+00,infinity)", "empty", "(,)"]),
    "int4multirange": st.sampled_from(["{[1,3),[5,7)}", "{}"]),
    "point": _POINTS.map(str),
    "box": _BOXES,
    "pg_lsn": st.sampled_from(["0/0", "16/B374D848"]),
    "int2vector": st.sampled_from(["1 2 3", ""]),
    "oidvector": st.sampled_from(["1 2 3", ""]),
    "mood": st.sampled_from(["so so", 'he said "ok"', "ÄÖ\\"]),
    "pair": _COMPOSITE,
    "price": st.decimals(0, 9999, places=2).map(str),
    "tags": _array(_WORD),
    "label": _TEXT,
    "feeling": st.sampled_from(["so so", "ÄÖ\\"]),
    "feeling[]": _array(st.sampled_from(["so so", "ÄÖ\\"])),
    "bool[]": _array(st.sampled_from(["t", "f"])),
    "int8[]": _array(_ints(64)),
    "float8[]": _array(_DOUBLES),
    "numeric[]": _array(_NUMERICS),
    "text[]": _array(_TEXT),
    "char(3)[]": _array(st.text("a ", max_size=3)),
    "timestamptz[]": _array(_STAMPS),
    "json[]": _array(_JSON),
    "jsonb[]": _array(_JSONB),
    "oid[]": _array(st.integers(0, 2**32 - 1).map(str)),
    "bytea[]": _array(st.binary(max_size=5).map(lambda value: "\\x" + value.hex())),
    "date[]": _array(_DATES),
    "box[]": _array(_BOXES, ";"),
    "mood[]": _array(st.sampled_from(["so so", "ÄÖ\\"])),
    "pair[]": _array(_COMPOSITE),
    "price[]": _array(st.decimals(0, 9999, places=2).map(str)),
    "inet[]": _array(st.sampled_from(["1.2.3.4", "10.0.0.0/8"])),
    "int4range[]": _array(_RANGES),
}

_SETUP = """
CREATE TYPE mood AS ENUM ('so so', 'he said "ok"', E'ÄÖ\\\\');
CREATE TYPE pair AS (number int, word text);
CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0);
CREATE DOMAIN tags AS text[];
CREATE DOMAIN label AS text;
CREATE DOMAIN feeling AS mood;
"""


def test_streamed_lines_equal_the_copys(database: Database, live: Start) -> None:
    ordered = [name for name in TYPES if '"' not in name] + ['"char"']
    columns = ", ".join(f'"c {name} ""x" {name}' for name in ordered[:-1])
    database.run(
        _SETUP,
        f'CREATE TABLE everything (id int PRIMARY KEY, {columns}, "c char" "char")',
        f"ALTER DATABASE {database.name} SET DateStyle = 'German'",
        f"ALTER DATABASE {database.name} SET TimeZone = 'Asia/Kathmandu'",
    )
    ingest = live("public.everything", heartbeat_interval=10)
    row = st.tuples(*(st.none() | TYPES[name] for name in ordered))
    casts = ", ".join(f"%s::{name}" for name in ordered)
    with database.connect() as connection:
        connection.execute("SET DateStyle = ISO")
        connection.execute("SET TimeZone = UTC")
        connection.execute("SET lc_monetary = 'C'")

        @settings(
            max_examples=examples(40),
            database=None,
            # Shrinking rows of sixty columns takes minutes; the assertion names the column.
            phases=[Phase.generate],
        )
        @given(rows=st.lists(row, min_size=1, max_size=5))
        def check(rows: list[tuple[Any, ...]]) -> None:
            connection.execute("TRUNCATE everything")
            for number, values in enumerate(rows):
                connection.execute(
                    f"INSERT INTO everything VALUES ({number}, {casts})".encode(), values
                )
            ingest.assert_equal()

        check()
