"""Of a sorted artifact what is between two keys, by every way that reads less than all of it."""

import io
from collections.abc import Container

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_archive import codec
from laredo_archive.codec import jsonl, output, protobuf, struct_reader
from laredo_archive.codec.struct_reader import Projection, StructRowReader
from laredo_archive.manifest.key_ranges import KeyRange
from laredo_model.errors import BadLine
from laredo_model.line import TRUNCATION, Action, Change
from tests.support.archive.building import COLUMNS, row
from tests.support.archive.encoding import write_diff, write_snapshot
from tests.support.drawn import examples

_NUMBERS = st.lists(st.integers(0, 120), unique=True, max_size=40)
_NAMES = st.sampled_from(["a", 'x"y', '},"new":{', '"}\n{"', "ü" * 9])
_BOUNDS = st.none() | st.sampled_from(
    [b"", b"0", b"1", b"100", b"5", b"50", b"50\0", b"9", b"\xf4"]
)
_RANGES = st.builds(KeyRange, _BOUNDS, _BOUNDS)
FORMATS = ("jsonl", "protobuf")


def changed(number: int, name: str, action: Action) -> Change:
    key, line = row(number, name, '{"a":{},"old":{"b":{}},"new":{}}')
    old = None if action is Action.INSERT else line
    return Change(action, key, old, None if action is Action.DELETE else line)


def new_rows(
    format_id: str, stream: io.BytesIO, keys: KeyRange, known: Container[bytes] = ()
) -> dict[bytes, bytes | None]:
    """The new rows as lines."""
    reader = StructRowReader(COLUMNS, ())
    found = codec.read_new_rows(format_id, COLUMNS, stream, keys, known)
    return {
        key: row if row is None or row.startswith(b"{") else protobuf.lines_of([row], reader)[:-1]
        for key, row in found.items()
    }


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "NEW_ROWS_BLOCK", 300)
    monkeypatch.setattr(jsonl, "LINES_BLOCK", 300)
    monkeypatch.setattr(output, "READ_BYTES", 300)


@settings(max_examples=examples(150))
@given(data=st.data(), numbers=_NUMBERS, keys=_RANGES, truncate=st.booleans())
@pytest.mark.parametrize("format_id", FORMATS)
def test_new_rows(
    format_id: str, data: st.DataObject, numbers: list[int], keys: KeyRange, truncate: bool
) -> None:
    actions = st.sampled_from([Action.INSERT, Action.UPDATE, Action.DELETE])
    made = [changed(number, data.draw(_NAMES), data.draw(actions)) for number in numbers]
    made.sort(key=lambda change: change.key)
    known = {change.key for change in made[::3]}
    wanted = {c.key: c.new for c in made if c.key in keys and c.key not in known}
    written, _ = write_diff(format_id, COLUMNS, [TRUNCATION, *made] if truncate else made)
    assert new_rows(format_id, io.BytesIO(written), keys, known) == wanted


@settings(max_examples=examples(150))
@given(data=st.data(), numbers=_NUMBERS, keys=_RANGES)
@pytest.mark.parametrize("format_id", FORMATS)
def test_lines(format_id: str, data: st.DataObject, numbers: list[int], keys: KeyRange) -> None:
    rows = dict(sorted(row(number, data.draw(_NAMES)) for number in numbers))
    written, _ = write_snapshot(format_id, COLUMNS, rows, batch=40)
    found = codec.read_lines(format_id, COLUMNS, io.BytesIO(written), keys)
    assert b"".join(found) == b"".join(line + b"\n" for key, line in rows.items() if key in keys)


def test_lines_of_others_in_any_shape() -> None:
    given = (
        b'\n{"action":"TRUNCATE"}\n\n'
        b'{"key": "1", "action": "INSERT", "old": null, "new": {"id": 1}}\n'
        b'\n{"action":"UPDATE","key":"2","new":{"id":2},"old":{"id":2}}\n'
        b'{"action":"DELETE","key":"3\\u00e9","old":{"id":3}}\n\n'
    )
    for low, high, count in ((None, None, 3), (b"2", None, 2), (b"2", b"3", 1), (b"4", None, 0)):
        found = new_rows("jsonl", io.BytesIO(given), KeyRange(low, high))
        assert len(found) == count
    everything = new_rows("jsonl", io.BytesIO(given), KeyRange())
    assert everything == {b"1": b'{"id":1}', b"2": b'{"id":2}', "3é".encode(): None}


def test_a_key_that_comes_twice_has_its_last_row() -> None:
    twice = [changed(1, "a", Action.INSERT), changed(1, "b", Action.UPDATE)]
    for format_id in FORMATS:
        written, _ = write_diff(format_id, COLUMNS, twice)
        assert new_rows(format_id, io.BytesIO(written), KeyRange()) == {b"1": twice[1].new}


@pytest.mark.parametrize("size", [1, 90, 127, 128, 16_383, 16_384, 3_000_000])
def test_a_new_row_of_any_length(size: int) -> None:
    long = [changed(1, "x" * size, Action.UPDATE)]
    for format_id in FORMATS:
        written, _ = write_diff(format_id, COLUMNS, long)
        assert new_rows(format_id, io.BytesIO(written), KeyRange()) == {b"1": long[0].new}


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_row_that_goes_on_is_none_of_some_columns(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(struct_reader, "module", None)
    wrong = b'{"action":"INSERT","key":"1","new":{"id":1,"name":"a","doc":null},"more":1}\n'
    projection = Projection([column.name for column in COLUMNS], {"id"})
    with pytest.raises(BadLine, match=r"not a row|more after"):
        jsonl.read_new_rows(io.BytesIO(wrong), KeyRange(), (), projection)
