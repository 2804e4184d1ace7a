"""Rows taken apart in Python, beside the rules applied value by value."""

from struct import pack

import pytest
from hypothesis import given

from laredo_fanout.decode.row_decoder import row_decoder
from laredo_fanout.store.rows import TableChanges
from laredo_model import key, line
from laredo_model.line import Action
from tests.support.row_tuples import NULL, TYPES, drawn_rows, tuple_of


def _message(row: list[object]) -> bytes:
    return bytes(25) + b"I" + pack(">I", 7) + b"N" + tuple_of(row)


def _fragment(name: str, value: object) -> bytes:
    if isinstance(value, str):
        return line.encoder(TYPES[name])(value.encode())
    return b"null" if value is NULL else line.MISSING


def _expected(types: list[str], row: list[object]) -> tuple[bytes, bytes]:
    fragments = [_fragment(name, value) for name, value in zip(types, row, strict=True)]
    whole = line.join([f"c{number}" for number in range(len(types))], fragments)
    partial = line.PARTIAL if line.MISSING in fragments else b""
    return key.of_fragments(fragments[:1]), partial + whole


@given(drawn_rows())
def test_rows_are_decoded_by_the_rules(drawn: tuple[list[str], list[list[object]]]) -> None:
    types, rows = drawn
    changes = TableChanges()
    names = [f"c{number}" for number in range(len(types))]
    decoder = row_decoder(names, [TYPES[name] for name in types], ["c0"], changes)
    for row in rows:
        decoder.put(_message(row), Action.INSERT)
    found = list(zip(changes.keys, changes.lines, strict=True))
    assert found == [_expected(types, row) for row in rows]


@pytest.mark.parametrize("names", [["c0", "c1"], ["c1", "c0"], ["c1"], ["c2"]])
def test_keys_of_several_columns(names: list[str]) -> None:
    types = ["text", "timestamptz", "bool"]
    row: list[object] = ['a"b', "2024-02-29 10:00:00+00", "t"]
    changes = TableChanges()
    decoder = row_decoder(["c0", "c1", "c2"], [TYPES[name] for name in types], names, changes)
    decoder.put(_message(row), Action.INSERT)
    fragments = {f"c{number}": _fragment(types[number], row[number]) for number in range(3)}
    assert changes.keys == [key.of_fragments([fragments[name] for name in names])]
