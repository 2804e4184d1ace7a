"""Rows as google.protobuf.Struct, written by hand: the same as protobuf's own, or lossy as said."""

import json
import math
import string
from pathlib import Path
from typing import Any

import orjson
import pytest
from google.protobuf import json_format, struct_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_fanout.serving.struct_rows import StructRows
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire.protobuf import tag, varint
from laredo_model.line import Action
from laredo_model.position import text
from tests.support.drawn import examples
from tests.support.server.serving_world import line, running

INSERT, UPDATE, DELETE, TRUNCATE = Action

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=600)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
ROWS = st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=9), JSON, max_size=8)


def decoded(row: bytes) -> struct_pb2.Struct:
    return struct_pb2.Struct.FromString(StructRows().encode(row))


@settings(max_examples=examples(300))
@given(ROWS)
def test_what_struct_can_hold_is_held_exactly(row: dict[str, Any]) -> None:
    by_protobuf = json_format.ParseDict(row, struct_pb2.Struct())
    assert decoded(orjson.dumps(row)) == by_protobuf


def test_a_sequence_is_read_back_as_it_was() -> None:
    borders = [(1 << bits) + step for bits in range(63) for step in (-1, 0, 1)]
    for number in (*borders, (1 << 63) - 1, -1, -(1 << 63)):
        entry = wire.ReplicationJournalEntry.FromString(tag(1, 0) + varint(number))
        assert entry == wire.ReplicationJournalEntry(sequence=number)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("9007199254740992", 9007199254740992.0),
        ("9007199254740993", "9007199254740993"),
        ("-9007199254740993", "-9007199254740993"),
        ("9223372036854775807", "9223372036854775807"),
        ("[9007199254740993,1]", ["9007199254740993", 1.0]),
        ('"12345678901234567890.00"', "12345678901234567890.00"),
        ("1e+15", 1e15),
        ("-0", 0.0),
        ('"NaN"', "NaN"),
        ('{"a":1,"a":2}', {"a": 2.0}),
        ('["\\ud800","\\ud83d\\ude00"]', ["?", "\U0001f600"]),
        ('"\u2028"', "\u2028"),
        ("null", None),
    ],
)
def test_the_known_losses(value: str, sent: Any) -> None:
    row = json_format.MessageToDict(decoded(b'{"v":%s,"w":true}' % value.encode()))
    assert row == {"v": sent, "w": True}


@pytest.mark.parametrize("depth", [20, 28, 29, 40, 200, 3000])
@pytest.mark.parametrize(("opens", "closes"), [(b"[", b"]"), (b'{"k":', b"}")])
def test_deep_json_reaches_a_parser_that_has_a_limit(
    depth: int, opens: bytes, closes: bytes
) -> None:
    deep = opens * depth + b"1" + closes * depth
    value = decoded(b'{"id":7,"v":%s}' % deep).fields["v"]
    for _ in range(min(depth, 28)):
        if value.WhichOneof("kind") == "string_value":
            break
        value = (
            value.list_value.values[0]
            if value.WhichOneof("kind") == "list_value"
            else value.struct_value.fields["k"]
        )
    if depth <= 28:
        assert value.number_value == 1
    elif depth < 900:
        assert json.loads(value.string_value)
    else:
        assert value.WhichOneof("kind") == "string_value"


def test_numbers_with_thousands_of_digits() -> None:
    huge = b"9" * 5000
    value = decoded(b'{"v":{"a":[%s]}}' % huge)["v"]["a"][0]
    assert value == "9" * 5000 or (isinstance(value, float) and math.isinf(value)) or value == "inf"


async def test_entries_carry_both_rows_and_their_transaction(tmp_path: Path) -> None:
    async with running(tmp_path, users=3) as world:
        stream = world.sync()
        handshake = await stream.next("handshake")
        assert handshake.source_position == "" and not handshake.capabilities
        assert not handshake.columns[2].type_modifier
        begin, structs, end = await stream.base_snapshot()
        assert begin.source_position == end.source_position == end.state_checksum == ""
        assert begin.row_count == end.rows_sent == 3 and end.rows == 0
        assert sorted(struct["name"] for struct in structs) == ["name 0", "name 1", "name 2"]

        position = world.writer.commit(
            (INSERT, line(9007199254740993, "é", tags=[1])), (UPDATE, line(1, None)),
            (DELETE, b"2"), (TRUNCATE, b""),
        )  # fmt: skip
        entries = [await stream.next("journal_entry") for _ in range(4)]
        assert [entry.sequence - end.sequence for entry in entries] == [1, 2, 3, 4]
        assert {entry.source_position for entry in entries} == {text(position)}
        assert {entry.timestamp.ToMicroseconds() for entry in entries} == {world.writer.time_us}
        insert, update, delete, truncate = entries
        assert insert.action == "INSERT" and not insert.HasField("old_values")
        assert insert.new_values["id"] == "9007199254740993"
        assert update.old_values["name"] == "name 1" and update.new_values["name"] is None
        assert delete.old_values["id"] == 2 and not delete.HasField("new_values")
        assert truncate.action == "TRUNCATE"
        assert not truncate.HasField("old_values") and not truncate.HasField("new_values")
