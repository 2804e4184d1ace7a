"""The fast way to take lines apart gives what the exact one gives, or says that it can't."""

import json
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laredo_archive.codec import struct_reader
from laredo_archive.codec.arrow.fragments import BlockSplitter, Peeler, nesting
from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.codec.arrow.types import Special, TypeChoice
from laredo_model import line as lines_
from laredo_model.column import Column
from laredo_model.errors import BadLine
from tests.support.drawn import examples

# What the bytes between two values are made of, so that values look like them.
_TEXT = st.text('a,":{}[]\\\n é', max_size=8)
_NAMES = st.lists(
    st.sampled_from(["a", "b", ",", '"', ":", 'a":', ',"a', "é", "\\", '","']) | _TEXT,
    min_size=1,
    max_size=6,
    unique=True,
)


def dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_STRINGS = _TEXT.map(dumped)
_INTEGERS = st.integers(-(2**63), 2**63 - 1).map(str)
_FLOATS = st.sampled_from(['"NaN"', "-0", "1e+15", "1e-05", '"-Infinity"', "0.1"])
_STAMPS = st.sampled_from(
    ["infinity", "2024-02-29T10:00:00.1+00:00", "0044-03-15T10:00:00+00:00 BC"]
).map(dumped)
_DECIMALS = st.decimals(-(10**8), 10**8, places=2).map(str).map(dumped)
_OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
)
_JSON = _OBJECTS.map(dumped) | _OBJECTS.map(lambda value: json.dumps(value, ensure_ascii=False))


def array(elements: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    flat = st.lists(elements | st.just("null"), max_size=3)
    return flat.map(lambda some: f"[{','.join(some)}]")


_BY_TYPE = {
    "text": _STRINGS,
    "mood": _STRINGS,
    "int8": _INTEGERS,
    "bool": st.sampled_from(["true", "false"]),
    "float8": _FLOATS,
    "timestamptz": _STAMPS,
    "numeric": _DECIMALS,
    "bytea": st.binary(max_size=4).map(lambda raw: dumped("\\x" + raw.hex())),
    "jsonb": _JSON,
    "json": _JSON,
    "_text": array(_STRINGS),
    "_int8": array(_INTEGERS),
    "_jsonb": array(_JSON),
}


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[Column], list[bytes]]:
    names = draw(_NAMES)
    columns = [
        Column(name, draw(st.sampled_from(list(_BY_TYPE))), ordinal=number, key_ordinal=None)
        for number, name in enumerate(names, 1)
    ]
    values = st.tuples(*(st.just("null") | _BY_TYPE[column.type] for column in columns))
    rows = draw(st.lists(values, min_size=1, max_size=4))
    return columns, [lines_.join(names, [value.encode() for value in row]) for row in rows]


def exact(columns: Sequence[Column], block: bytes) -> dict[str, pa.StringArray]:
    with plainly():
        return dict(BlockSplitter([column.name for column in columns]).split(block))


@contextmanager
def plainly() -> Iterator[None]:
    """Without compiled code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(struct_reader, "module", None)
        yield


def block_of(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


@settings(max_examples=examples(400))
@example(table=([Column("a", "jsonb"), Column("b", "int8")], [b'{"a":{"x":1,"b":2},"b":3}']))
@example(table=([Column("a", "_text"), Column(",", "text")], [b'{"a":["x,",":y"],",":"z"}']))
@given(table=_tables())
def test_peeled_is_what_the_exact_way_gives(table: tuple[list[Column], list[bytes]]) -> None:
    columns, lines = table
    block = block_of(lines)
    wanted = exact(columns, block)
    names = [column.name for column in columns]
    with plainly():
        assert dict(BlockSplitter(names, nesting=nesting(columns)).split(block)) == wanted
    assert dict(BlockSplitter(names).split(block)) == wanted
    # Not only by the slow way after it was refused.
    assert struct_reader.module is None or BlockSplitter(names)._scanned(block) is not None
    some = names[::2]
    assert dict(BlockSplitter(names, some).split(block)) == {name: wanted[name] for name in some}
    for number, line in enumerate(lines):
        assert [array[number].as_py().encode() for array in wanted.values()] == (
            lines_.fragments(line)
        )


class Exactly(RowReader):
    """Never peels."""

    as_format_says = False


@settings(max_examples=examples(200))
@given(table=_tables())
def test_and_so_are_typed_rows(table: tuple[list[Column], list[bytes]]) -> None:
    columns, lines = table
    for typing in (TypeChoice(special=Special.NULL), TypeChoice(special=Special.STRING)):
        fast, slow = RowReader(columns, typing), Exactly(columns, typing)
        # As text: NaN isn't equal to itself.
        compiled_rows = str(fast.batch(block_of(lines)).to_pylist())
        with plainly():
            assert str(fast.batch(block_of(lines)).to_pylist()) == compiled_rows
            assert str(slow.batch(block_of(lines)).to_pylist()) == compiled_rows


def test_ordinary_lines_are_peeled() -> None:
    names = list(string.ascii_lowercase[:6])
    values = [b"1", b'"x, y"', b'{"z":0,"b":1,"c":"}"}', b"null", b'["a","b"]', b'"\\"e\\":"']
    block = block_of([lines_.join(names, values)] * 3)
    peeled = Peeler(names, {"c"}).peel(block)
    assert peeled is not None
    assert [array.to_pylist() for array in peeled] == [[value.decode()] * 3 for value in values]
    assert Peeler(names, {"a", "c"}).peel(block) is None, "b is in an object of c"
    assert Peeler(names, {"c", "e"}).peel(block) is not None


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"a":1,"c":2}\n',
        b'{"a":1,"b":2,"c":3}\n',
        b'{"b":1,"a":2}\n',
        b'{"a":"x","b":"y"z"}\n',
        b'{"a":"x","b":"y}\n',
        b'{"a":"x","b":2\n',
        b'{"a":"\\\\","b":2,"c":3}\n',
        b'{"a":1,"b":2}\n\n{"a":1,"b":2}\n',
        b'["a",1]\n',
    ],
)
def test_a_line_that_is_no_row_isnt_peeled(damaged: bytes) -> None:
    columns = [Column("a", "text"), Column("b", "text")]
    whole = b'{"a":1,"b":2}\n'
    assert Peeler(["a", "b"], ()).peel(whole) is not None
    assert Peeler(["a", "b"], ()).peel(whole + damaged) is None
    if b"\n\n" not in damaged:
        with pytest.raises(BadLine):
            RowReader(columns).batch(whole + damaged)
