"""A protobuf snapshot's columns are those of its lines, compiled and in Python."""

import io

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_archive import codec
from laredo_archive.codec import protobuf, struct_reader
from laredo_archive.codec.arrow.range_rows import new_batches
from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.codec.arrow.types import Special, Typing
from laredo_archive.codec.struct_reader import StructRowReader
from laredo_archive.errors import BadBytes
from laredo_archive.manifest.key_ranges import KeyRange
from laredo_model.column import Column
from laredo_model.line import Action, Change
from tests.support.archive.rows import Table, tables
from tests.support.drawn import examples

NULLS = Typing(special=Special.NULL)
COLUMNS = [Column("id", "int4", -1, False, 1, 1), Column("name", "text", -1, True, 2)]


def messages_of(columns: list[Column], lines: list[bytes]) -> tuple[list[bytes], StructRowReader]:
    sink = io.BytesIO()
    encoder = codec.snapshot_encoder("protobuf", columns, sink)
    encoder.write([b"%d" % number for number in range(len(lines))], lines)
    encoder.close()
    sink.seek(0)
    ((messages, reader),) = protobuf.read_messages(sink, columns, (), KeyRange())
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
    sink = io.BytesIO()
    encoder = codec.diff_encoder("protobuf", columns, sink)
    encoder.write([Change(Action.INSERT, b"1", None, line)])
    encoder.close()
    rows = RowReader(columns, Typing(array_dimensions={"deep": 0}), ["deep"])
    changed = codec.read_new_rows(
        "protobuf", columns, io.BytesIO(sink.getvalue()), KeyRange(), (), projection=rows.projection
    )
    [batch] = new_batches(changed, rows, columns)
    assert batch.to_pylist() == [{"deep": None if fragment == "null" else fragment}]
