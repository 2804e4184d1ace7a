"""A diff that says keys as Go prints them too is, for every reader here, the diff without."""

import json
from io import BytesIO

from laredo_archive import codec
from laredo_archive.codec import jsonl
from laredo_archive.manifest.key_ranges import KeyRange
from laredo_model.column import Column
from laredo_model.line import Action, Change

COLUMNS = (
    Column("id", "int8", nullable=False, ordinal=1, key_ordinal=1),
    Column("v", "text", ordinal=2),
)
CHANGES = [
    Change(Action.INSERT, b"1000001", None, b'{"id":1000001,"v":"KEY"}'),
    Change(Action.UPDATE, b"1000002", b'{"id":1000002,"v":"a"}', b'{"id":1000002,"v":"},{"}'),
    Change(Action.DELETE, b"2000000", b'{"id":2000000,"v":null}', None),
    Change(Action.INSERT, b"7", None, b'{"id":7,"v":",\\"KEY\\":\\"x\\""}'),
]


def written(*, go_keys: bool, format_id: str = "jsonl") -> tuple[bytes, bool]:
    out = BytesIO()
    encoder = codec.diff_encoder(format_id, COLUMNS, out, go_keys=go_keys)
    encoder.truncate()
    encoder.write(CHANGES)
    return out.getvalue(), encoder.close().sorted


def as_go_reads(line: str) -> str:
    """encoding/json: names without regard to case, and the last one counts."""
    found: str = ""
    for name, value in json.loads(line, object_pairs_hook=list):
        if name.lower() == "key":
            found = value
    return found


def test_go_finds_its_own_keys() -> None:
    data, is_sorted = written(go_keys=True)
    lines = data.decode().splitlines()
    assert [as_go_reads(line) for line in lines] == [
        "", "1.000001e+06", "1.000002e+06", "2e+06", "7",
    ]  # fmt: skip
    assert '"KEY"' not in lines[-1].partition('"new"')[0]
    assert is_sorted


def test_all_others_find_the_same_as_without() -> None:
    data, _ = written(go_keys=True)
    without, _ = written(go_keys=False)
    assert data != without
    found = list(codec.read_diff("jsonl", COLUMNS, BytesIO(data)))
    assert found == list(codec.read_diff("jsonl", COLUMNS, BytesIO(without)))
    assert found[1:] == CHANGES
    assert [jsonl._parse_odd_change(line) for line in data.splitlines()] == found
    everything = KeyRange(None, None)
    assert jsonl.read_new_rows(BytesIO(data), everything, ()) == jsonl.read_new_rows(
        BytesIO(without), everything, ()
    )


def test_protobuf_has_room_for_one_key() -> None:
    assert written(go_keys=True, format_id="protobuf") == written(
        go_keys=False, format_id="protobuf"
    )
