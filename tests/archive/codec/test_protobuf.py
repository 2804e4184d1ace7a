"""The hand-written protobuf against the generated classes and docs/archive-format.md."""

import io
import math
import random
import struct

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_archive import codec
from laredo_archive.codec import struct_rows
from laredo_archive.codec.row_keys import compact
from laredo_archive.codec.struct_rows import read, varint
from laredo_archive.wire.artifact_pb2 import DiffChange, SnapshotRow
from laredo_model.column import Column
from laredo_model.line import TRUNCATION, Action, Change
from tests.support.archive.encoding import write_diff, write_snapshot
from tests.support.archive.rows import Table, changes, tables
from tests.support.drawn import examples
from tests.support.postgres import Database


def messages(data: bytes, kind: type[SnapshotRow] | type[DiffChange]):
    at = 0
    while at < len(data):
        size, at = read(data, at)
        yield kind.FromString(data[at : at + size])
        at += size


def snapshot(columns: list[Column], lines: list[bytes]) -> bytes:
    rows = {b"%d" % number: line for number, line in enumerate(lines)}
    return write_snapshot("protobuf", columns, rows)[0]


def row_of(column_type: str, fragment: bytes):
    columns = [Column("id", "int4", -1, False, 1, 1), Column("v", column_type, -1, True, 2)]
    data = snapshot(columns, [b'{"id":1,"v":%s}' % fragment])
    (message,) = messages(data, SnapshotRow)
    ((_, lines),) = codec.read_snapshot("protobuf", columns, io.BytesIO(data))
    assert lines == [b'{"id":1,"v":%s}' % fragment]
    return message.row.fields["v"]


@given(data=st.data())
def test_standard_protobuf_reads_the_same_rows(data: st.DataObject) -> None:
    table: Table = data.draw(tables())
    rows = data.draw(table.rows())
    written = snapshot(table.columns, list(rows.values()))
    read_back = list(messages(written, SnapshotRow))
    assert len(read_back) == len(rows)
    for message in read_back:
        assert set(message.row.fields) == {column.name for column in table.columns}
    # What the standard classes write, with the map's entries in any order, reads to the same.
    sink = io.BytesIO()
    for message in read_back:
        body = message.SerializeToString(deterministic=True)
        sink.write(varint(len(body)) + body)
    lines = []
    for _, batch in codec.read_snapshot("protobuf", table.columns, io.BytesIO(sink.getvalue())):
        lines += batch
    assert lines == list(rows.values())


@given(data=st.data())
@settings(max_examples=examples(30))
def test_standard_protobuf_reads_the_same_changes(data: st.DataObject) -> None:
    table: Table = data.draw(tables())
    written = changes(data.draw(table.rows()), data.draw(table.rows()))
    encoded, _ = write_diff("protobuf", table.columns, [TRUNCATION, *written])
    read_back = list(messages(encoded, DiffChange))
    assert read_back[0] == DiffChange(action="TRUNCATE")
    for message, change in zip(read_back[1:], written, strict=True):
        assert (message.action, message.key.encode()) == (change.action.name, change.key)
        assert message.HasField("old") == (change.old is not None)
        assert message.HasField("new") == (change.new is not None)


@pytest.mark.parametrize(
    ("column_type", "fragment", "kind", "value"),
    [
        ("int8", b"9007199254740992", "number_value", 2.0**53),
        ("int8", b"9007199254740993", "string_value", "9007199254740993"),
        ("int8", b"-9223372036854775808", "string_value", "-9223372036854775808"),
        ("float8", b"0.1", "number_value", 0.1),
        ("float8", b"1e+15", "number_value", 1e15),
        ("float4", b"1e+06", "number_value", 1e6),
        ("float8", b'"NaN"', "string_value", "NaN"),
        ("numeric", b'"1.00"', "string_value", "1.00"),
        ("text", b'"12"', "string_value", "12"),
        ("bool", b"true", "bool_value", True),
        ("text", b"null", "null_value", 0),
        ("jsonb", b'{"a": 1e400, "a": [1]}', "string_value", '{"a": 1e400, "a": [1]}'),
        ("jsonb", b"12", "string_value", "12"),
        ("jsonb", b'"text"', "string_value", '"text"'),
        ("_json", b'[{"a": 1},null]', "string_value", '[{"a": 1},null]'),
    ],
)
def test_values_are_as_format_says(column_type: str, fragment: bytes, kind: str, value) -> None:
    found = row_of(column_type, fragment)
    assert found.WhichOneof("kind") == kind
    assert getattr(found, kind) == value


def test_arrays_are_lists_of_their_elements() -> None:
    found = row_of("_int8", b"[[1,null],[9007199254740993,-0]]")
    assert MessageToDict(found) == [[1.0, None], ["9007199254740993", "-0"]]


@pytest.mark.parametrize(
    "fragment",
    [b"[9007199254740993]", b'{"x":1}', b'"a\\u003cb"', b"1e15", b'["\\ud800"]', b"-0", b"1.0"],
)
def test_what_no_rule_gives_back_is_kept_verbatim(fragment: bytes) -> None:
    """A type unknown to the rules, such as an array of a domain over int8."""
    found = row_of("_quantity", fragment)
    assert found.struct_value.fields["json"].string_value.encode() == fragment


def test_a_string_in_a_number_column_stays_a_string() -> None:
    row_of("int8", b'"12"')
    row_of("float8", b'"1.5"')


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_read_back_as_the_same_number(number: float) -> None:
    for digits in (struct_rows.FLOAT8_DIGITS, struct_rows.FLOAT4_DIGITS):
        assert float(struct_rows.text(number, digits)) == number


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e15, b"1e+15"),
        (123456789012345680.0, b"1.2345678901234568e+17"),
        (999999999999999.0, b"999999999999999"),
        (1234567890123456.0, b"1.234567890123456e+15"),
        (0.0001, b"0.0001"),
        (0.00001, b"1e-05"),
        (-0.0, b"-0"),
        (-1.5e-7, b"-1.5e-07"),
        (1e300, b"1e+300"),
        (5e-324, b"5e-324"),
        (float("-inf"), b'"-Infinity"'),
    ],
)
def test_floats_print_as_postgresql_prints_them(number: float, text: bytes) -> None:
    assert struct_rows.text(number) == text


def test_structs_of_other_writers_are_read_without_columns() -> None:
    message = SnapshotRow()
    message.row.update(
        {"id": 42, "name": "Ada", "n": 1.5, "big": 1e15, "ok": True, "none": None, "v": {"a": [1]}}
    )
    body = message.SerializeToString()
    data = varint(len(body)) + body
    ((keys, lines),) = codec.read_snapshot("protobuf", None, io.BytesIO(data))
    assert keys == [b"42"]
    assert lines == [
        b'{"big":1000000000000000,"id":42,"n":1.5,"name":"Ada","none":null,"ok":true,"v":{"a":[1]}}'
    ]


def test_changes_of_other_writers_are_read_without_columns() -> None:
    deleted = DiffChange(action="DELETE", key="42")
    deleted.old.update({"id": 42})
    body = deleted.SerializeToString()
    data = varint(8 + 2) + b"\x0a\x08TRUNCATE" + varint(len(body)) + body
    assert list(codec.read_diff("protobuf", None, io.BytesIO(data))) == [
        TRUNCATION,
        Change(Action.DELETE, b"42", b'{"id":42}', None),
    ]


@pytest.mark.parametrize(("type_name", "pack"), [("float8", "d"), ("float4", "f")])
def test_floats_of_postgresql_go_through_as_numbers(
    database: Database, type_name: str, pack: str
) -> None:
    """Exactly, and but for a few as number_value: our printing is PostgreSQL's."""
    chosen = random.Random(20260603)
    numbers = [10.0**power for power in range(-30, 30)]
    numbers += [chosen.uniform(-1, 1) * 10 ** chosen.randint(-8, 20) for _ in range(500)]
    patterns = (chosen.randbytes(struct.calcsize(pack)) for _ in range(1500))
    numbers += [number for (number,) in (struct.unpack(pack, raw) for raw in patterns)]
    finite = [number for number in numbers if math.isfinite(number)]
    with database.connect() as connection:
        connection.execute("SET extra_float_digits = 3")
        found = connection.execute(
            f"SELECT to_json(x::{type_name})::text FROM unnest(%s::float8[]) x", (finite,)
        ).fetchall()
    kinds = [row_of(type_name, str(text).encode()).WhichOneof("kind") for (text,) in found]
    assert len(kinds) == len(finite)
    assert kinds.count("number_value") > 0.99 * len(kinds)


# Blanks between members go, blanks in strings stay, and a damaged line takes no longer.


@pytest.mark.parametrize(
    ("line", "compacted"),
    [
        (b'{ "a" : 1 , "b c" : "x  y" }', b'{"a":1,"b c":"x  y"}'),
        (b'{"a": "q\\" \\\\", "b":\t[1, 2]\r}', b'{"a":"q\\" \\\\","b":[1,2]}'),
        (b'{"a": "no end  ', b'{"a":"no end  '),
        (b'{"a": "no end \\', b'{"a":"no end \\'),
    ],
)
def test_compact(line: bytes, compacted: bytes) -> None:
    assert compact(line) == compacted


def test_a_string_without_an_end_is_read_once() -> None:
    """Tried again from each of its quotes this would take hours."""
    line = b'{"a":"' + b'\\"' * 1_000_000
    assert compact(line) == line
