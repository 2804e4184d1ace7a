"""Lines as Arrow columns: PostgreSQL itself says what each value is."""

import io
import re
import string
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_archive import codec
from laredo_archive.codec import protobuf, struct_reader
from laredo_archive.codec.arrow.range_rows import new_batches
from laredo_archive.codec.arrow.rows import RowReader, keys_of
from laredo_archive.codec.arrow.types import (
    ArrayTooDeep,
    MistypedValue,
    Special,
    SpecialValue,
    TypeChoice,
    TypeChoiceRefused,
    schema,
)
from laredo_archive.codec.struct_reader import StructRowReader
from laredo_archive.errors import BadBytes
from laredo_archive.manifest.key_ranges import KeyRange
from laredo_fanout.pg_catalog import table_definitions
from laredo_fanout.source_options import PublicationOptions, SourceTableOptions
from laredo_model import key as key_
from laredo_model.column import Column, key_columns
from laredo_model.errors import BadLine
from laredo_model.line import Action, Change
from laredo_model.value_sql import SESSION, lines_sql
from tests.support.archive.encoding import write_diff, write_snapshot
from tests.support.archive.rows import Table, tables
from tests.support.drawn import examples
from tests.support.postgres import Database

Connection = psycopg.Connection[tuple[Any, ...]]


def read(connection: Connection, table: str) -> tuple[tuple[Column, ...], list[bytes]]:
    """The table's columns, as a manifest has them, and its lines in the order of ``n``."""
    found = table_definitions.read_tables(
        connection, [SourceTableOptions("public", table)], PublicationOptions("none")
    )
    source = found[f"public.{table}"]
    statement = f"SELECT line::text FROM ({lines_sql('public', table, source.selected)}) AS made"
    for name, value in SESSION.items():
        connection.execute(f"SET {name} = '{value}'".encode())
    rows = connection.execute(statement.encode()).fetchall()
    connection.execute("SET search_path = public")
    return source.described, [str(row[-1]).encode() for row in rows]


def block(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


TYPES = {
    "bool": "true",
    "int2": "-32768",
    "int4": "2147483647",
    "int8": "-9223372036854775808",
    "oid": "4294967295",
    "float4": "1.1",
    "float8": "-5e-324",
    "numeric(18,4)": "-12345678901234.5678",
    "numeric(38)": "9" * 38,
    "date": "0001-01-01",
    "timestamp": "9999-12-31 23:59:59.999999",
    "timestamptz": "2024-02-29 10:00:00.1+02",
    "bytea": "\\x00ff5c22",
    "text": 'quoted "x", a \\, a tab \t, a line \n, \u2028, 😀',
    "varchar(10)": "ü",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "int4[]": "{1,NULL,-3}",
    "text[]": '{"a,b","c\\"d",NULL,""}',
    "numeric(10,2)[]": "{1.10,NULL}",
    "timestamptz[]": '{"2024-01-01 00:00:00+00"}',
    "bool[]": "{}",
}


@pytest.mark.parametrize("type_name", TYPES)
def test_each_type_is_what_postgres_has(database: Database, type_name: str) -> None:
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE t (n int PRIMARY KEY, v {type_name})".encode())
        connection.execute("INSERT INTO t VALUES (1, %s), (2, NULL)", (TYPES[type_name],))
        columns, lines = read(connection, "t")
        # Python has no float of 32 bits: the same value, widened.
        value = "v::float8" if type_name == "float4" else "v"
        selected = connection.execute(f"SELECT {value} FROM t ORDER BY n".encode())
        truth = [row[0] for row in selected.fetchall()]
    found = RowReader(columns).batch(block(lines)).column("v").to_pylist()
    assert found == [str(value) if type_name == "uuid" and value else value for value in truth]


_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30)
_ROW = st.tuples(
    st.none() | _TEXT,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.decimals(-(10**10), 10**10, places=4),
    st.none() | st.datetimes(timezones=st.just(UTC)),
    st.none() | st.dates(),
    st.none() | st.binary(max_size=30),
    st.none() | st.lists(st.none() | _TEXT, max_size=4),
    st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=4),
)


@settings(max_examples=examples(25))
@given(rows=st.lists(_ROW, min_size=1, max_size=8))
def test_any_row(database: Database, rows: list[tuple[Any, ...]]) -> None:
    with database.connect() as connection:
        connection.execute(
            "DROP TABLE IF EXISTS t; CREATE TABLE t (n int PRIMARY KEY, a text, b int8, c float8,"
            " d numeric(20,4), e timestamptz, f date, g bytea, h text[], i int4[])"
        )
        for number, row in enumerate(rows):
            connection.execute(
                "INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", (number, *row)
            )
        columns, lines = read(connection, "t")
        truth = connection.execute("SELECT * FROM t ORDER BY n").fetchall()
    batch = RowReader(columns).batch(block(lines))
    assert [tuple(row.values()) for row in batch.to_pylist()] == truth


def test_text_stays_what_the_line_says(database: Database) -> None:
    """json verbatim, numeric without precision, and all types that Arrow has no own type for."""
    with database.connect() as connection:
        connection.execute(
            "CREATE TYPE mood AS ENUM ('so so');"
            "CREATE TABLE t (n int PRIMARY KEY, j json, b jsonb, u numeric, m mood, r int4range,"
            " i interval, w numeric(50,2), z numeric(3,-2))"
        )
        connection.execute(
            """INSERT INTO t VALUES (1, '{"a": 1,  "a": [[[[[[1]]]]]], "s": "\\ud800"}', '"x"',"""
            " 'NaN', 'so so', '[1,5)', '1 day', 12345678901234567890123456789012345678901.50, 5678)"
        )
        columns, lines = read(connection, "t")
    [row] = RowReader(columns).batch(block(lines)).to_pylist()
    assert row == {
        "n": 1,
        "j": '{"a": 1,  "a": [[[[[[1]]]]]], "s": "\\ud800"}',
        "b": '"x"',
        "u": "NaN",
        "m": "so so",
        "r": "[1,5)",
        "i": "1 day",
        "w": "12345678901234567890123456789012345678901.50",
        "z": "5700",
    }


STAMP = Column("s", "timestamptz", ordinal=1)
DAY = Column("d", "date", ordinal=1)
PRICE = Column("p", "numeric", (10 << 16 | 2) + 4, ordinal=1)
SPECIAL = [
    (STAMP, "infinity"),
    (STAMP, "-infinity"),
    (STAMP, "0044-03-15T10:00:00+00:00 BC"),
    (STAMP, "10000-01-01T00:00:00+00:00"),
    (DAY, "infinity"),
    (DAY, "0044-03-15 BC"),
    (PRICE, "NaN"),
]


@pytest.mark.parametrize(("column", "value"), SPECIAL)
def test_values_that_arrow_lacks(column: Column, value: str) -> None:
    given = f'{{"{column.name}":"{value}"}}\n{{"{column.name}":null}}\n'.encode()
    with pytest.raises(
        SpecialValue, match=re.escape(f"column {column.name}: {value} can't be a")
    ) as raised:
        RowReader([column]).batch(given)
    assert 'special_values = "string"' in str(raised.value)
    for special, expected in ((Special.NULL, None), (Special.STRING, value)):
        batch = RowReader([column], TypeChoice(special=special)).batch(given)
        assert batch.column(0).to_pylist() == [expected, None]


def test_beside_a_special_value_the_others_are_kept() -> None:
    batch = RowReader([DAY], TypeChoice(special=Special.NULL)).batch(
        b'{"d":"infinity"}\n{"d":"2024-02-29"}\n'
    )
    assert batch.column(0).to_pylist() == [None, date(2024, 2, 29)]


def test_numeric_without_precision_as_a_decimal() -> None:
    column = Column("p", "numeric", ordinal=1)
    reader = RowReader([column], TypeChoice(numeric_as="decimal(38,18)"))
    assert reader.batch(b'{"p":"1.5"}\n').column(0).to_pylist() == [Decimal("1.5")]
    with pytest.raises(SpecialValue):
        reader.batch(b'{"p":"0.1234567890123456789"}\n')
    for wrong in ("decimal(39,0)", "decimal(3,4)", "float", "decimal(0,0)"):
        with pytest.raises(TypeChoiceRefused, match="numeric_as"):
            TypeChoice(numeric_as=wrong)


def test_arrays_as_deep_as_they_are_said_to_be() -> None:
    column = Column("a", "_int4", ordinal=1)
    given = b'{"a":[[1,null],[3,4]]}\n{"a":null}\n{"a":[]}\n'
    with pytest.raises(ArrayTooDeep, match=r"column a: \[\[1,null\],\[3,4\]\]"):
        RowReader([column]).batch(given)
    deep = RowReader([column], TypeChoice(array_dimensions={"a": 2})).batch(given)
    assert deep.column(0).to_pylist() == [[[1, None], [3, 4]], None, []]
    text = RowReader([column], TypeChoice(array_dimensions={"a": 0})).batch(given)
    assert text.column(0).to_pylist() == ["[[1,null],[3,4]]", None, "[]"]
    with pytest.raises(ArrayTooDeep):
        RowReader([column], TypeChoice(array_dimensions={"a": 3})).batch(given)
    with pytest.raises(TypeChoiceRefused, match="b is no array column"):
        RowReader([column], TypeChoice(array_dimensions={"b": 2}))


def test_arrays_of_json_hold_their_elements_verbatim() -> None:
    column = Column("a", "_jsonb", ordinal=1)
    found = RowReader([column]).batch(b'{"a":[{"b": [1, 2]},[3],"x",null]}\n').column(0)
    assert found.to_pylist() == [['{"b": [1, 2]}', "[3]", '"x"', None]]


@pytest.mark.parametrize(
    ("type_name", "fragment"),
    [("int4", "99999999999"), ("int8", '"x"'), ("bool", "2"), ("bytea", '"6162"'), ("date", "1")],
)
def test_a_value_of_another_type_is_damage(type_name: str, fragment: str) -> None:
    column = Column("c", type_name, ordinal=1)
    with pytest.raises(MistypedValue, match=f"column c: .* isn't of type {type_name}"):
        RowReader([column]).batch(b'{"c":%s}\n' % fragment.encode())


@pytest.mark.parametrize(
    "damaged", [b'{"d":1}\n', b'{"s":1,"d":2}\n', b"[]\n", b'{"d":"2024-01-01"\n', b'"d":null}\n\n']
)
def test_a_line_that_is_no_row(damaged: bytes) -> None:
    with pytest.raises(BadLine):
        RowReader([STAMP]).batch(damaged)


def test_only_the_wanted_columns_are_made() -> None:
    columns = [STAMP, DAY, PRICE]
    given = b'{"s":"infinity","d":"2024-01-01","p":"1.50"}\n'
    batch = RowReader(columns, wanted=["p", "d"]).batch(given)
    assert batch.to_pylist() == [{"d": date(2024, 1, 1), "p": Decimal("1.50")}]
    none = RowReader(columns, wanted=[]).batch(given * 3)
    assert (none.num_rows, none.num_columns) == (3, 0)
    assert schema(columns, TypeChoice()).names == ["s", "d", "p"]


_KEYED = [
    ("int8", "7"),
    ("text", '"a\\"b"'),
    ("uuid", '"a0ee"'),
    ("jsonb", '{"a": 1}'),
    ("bool", "true"),
]


@pytest.mark.parametrize("chosen", [[0], [1], [2], [4], [0, 1], [1, 3, 0]])
def test_keys_are_those_of_the_lines(chosen: list[int]) -> None:
    columns = [
        Column(string.ascii_letters[n], type_name, ordinal=n + 1, key_ordinal=place)
        for n, (type_name, _) in enumerate(_KEYED)
        for place in [chosen.index(n) + 1 if n in chosen else None]
    ]
    members = ",".join(f'"{c.name}":{v}' for c, (_, v) in zip(columns, _KEYED, strict=True))
    line = f"{{{members}}}".encode()
    reader = RowReader(columns)
    keys = keys_of(reader.split(line + b"\n"), columns).to_pylist()
    assert keys == [key_.of_line(line, [c.name for c in key_columns(columns)]).decode()]


def test_times_with_any_fraction() -> None:
    given = b"".join(
        b'{"s":"2024-02-29T10:00:00%s+00:00"}\n' % fraction
        for fraction in (b"", b".1", b".12", b".123456")
    )
    found = RowReader([STAMP]).batch(given).column(0).to_pylist()
    assert [stamp.microsecond for stamp in found] == [0, 100000, 120000, 123456]
    assert found[0] == datetime(2024, 2, 29, 10, tzinfo=UTC)


# A protobuf snapshot's columns are those of its lines, compiled and in Python.


NULLS = TypeChoice(special=Special.NULL)
COLUMNS = [Column("id", "int4", -1, False, 1, 1), Column("name", "text", -1, True, 2)]


def messages_of(columns: list[Column], lines: list[bytes]) -> tuple[list[bytes], StructRowReader]:
    rows = {b"%d" % number: line for number, line in enumerate(lines)}
    written, _ = write_snapshot("protobuf", columns, rows)
    ((messages, reader),) = protobuf.read_messages(io.BytesIO(written), columns, (), KeyRange())
    return messages, reader


@pytest.mark.parametrize("is_compiled", [True, False])
@settings(max_examples=examples(200, push=15))
@given(data=st.data())
def test_fragments_are_those_of_the_lines(data: st.DataObject, is_compiled: bool) -> None:
    table: Table = data.draw(tables())
    lines = list(data.draw(table.rows()).values())
    if not lines:
        return
    names = [column.name for column in table.columns]
    wanted = data.draw(st.none() | st.lists(st.sampled_from(names), unique=True))
    reader = RowReader(table.columns, NULLS, wanted)
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(struct_reader, "module", None)
        messages, structs = messages_of(table.columns, lines)
        found = reader.split_structs(messages, structs)
        # Every rule of our own writer is compiled.
        assert (structs.columns(messages, names) is not None) == is_compiled
    expected = reader.split(b"".join(line + b"\n" for line in lines))
    assert {name: array.to_pylist() for name, array in found.items()} == {
        name: array.to_pylist() for name, array in expected.items()
    }


def test_rows_of_other_writers_are_read_row_by_row() -> None:
    messages, structs = messages_of(COLUMNS[::-1], [b'{"name":"Ada","id":1}'])
    structs = StructRowReader(COLUMNS, ["id"])
    assert structs.columns(messages, ["id", "name"]) is None
    found = RowReader(COLUMNS).split_structs(messages, structs)
    assert RowReader(COLUMNS).typed(found, 1).to_pylist() == [{"id": 1, "name": "Ada"}]


def test_text_that_is_not_utf8_is_refused() -> None:
    messages, structs = messages_of(COLUMNS, [b'{"id":1,"name":"Ada"}'])
    damaged = [messages[0].replace(b"Ada", b"\xff\xff\xff")]
    with pytest.raises((BadBytes, pa.ArrowInvalid)):
        RowReader(COLUMNS).split_structs(damaged, structs)


def test_a_message_that_is_no_row_is_refused() -> None:
    _, structs = messages_of(COLUMNS, [b'{"id":1,"name":"Ada"}'])
    with pytest.raises(BadBytes, match="not a row"):
        RowReader(COLUMNS).split_structs([b"\x0a\x01\x00"], structs)


@pytest.mark.parametrize("fragment", ["[[1],[2]]", "null"])
def test_new_rows_of_some_columns_are_read_row_by_row_too(fragment: str) -> None:
    # Of such a type's arrays compiled code reads nothing.
    columns = [*COLUMNS, Column("deep", "__mood", -1, True, 3)]
    line = b'{"id":1,"name":"Ada","deep":%s}' % fragment.encode()
    written, _ = write_diff("protobuf", columns, [Change(Action.INSERT, b"1", None, line)])
    rows = RowReader(columns, TypeChoice(array_dimensions={"deep": 0}), ["deep"])
    changed = codec.read_new_rows(
        "protobuf", columns, io.BytesIO(written), KeyRange(), (), projection=rows.projection
    )
    [batch] = new_batches(changed, rows, columns)
    assert batch.to_pylist() == [{"deep": None if fragment == "null" else fragment}]
