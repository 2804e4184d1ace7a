"""The compiled reading of Structs beside that in Python: rows, columns, messages and changes."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from struct import pack
from typing import Any

import orjson

from laredo_archive import codec
from laredo_archive.codec import output, protobuf, struct_reader, struct_rows
from laredo_archive.codec.arrow.fragments import BlockSplitter
from laredo_archive.codec.row_keys import heads, member_patterns
from laredo_archive.codec.struct_reader import Projection, StructRowReader
from laredo_archive.codec.struct_rows import varint
from laredo_archive.errors import BadBytes
from laredo_archive.manifest.key_ranges import KeyRange
from laredo_model import line as lines
from laredo_model.column import Column
from laredo_model.line import Action, Change
from tests.fuzz.hostile_frames import broken
from tests.support.archive.encoding import write_diff

VALUES: dict[str, tuple[bytes, ...]] = {
    "int8": (b"0", b"-7", b"9007199254740992", b"9007199254740993", b"-9223372036854775808"),
    "text": (
        b'""',
        b'"12"',
        b'"a\\n\\"\\\\\\u0001\x7f"',
        '"é\U0001f600"'.encode(),
        b'"%s"' % (b"x" * 300),
    ),
    "numeric": (b'"1.00"', b'"NaN"'),
    "float8": (b"0.1", b"-0", b"1e+15", b"5e-324", b"1.7976931348623157e+308", b'"NaN"', b"1e-05"),
    "float4": (b"0.1", b"1e+06", b"999999", b"1.5e-07"),
    "bool": (b"true", b"false"),
    "jsonb": (b'{"a": "t\\n"}', b"12", b"[1, 2]"),
    "_int8": (b"[]", b"[1,null,9007199254740993]", b"[[1],[2]]", b"[-0]"),
    "_text": (b'["a","\\"",null]', b'[["x"]]', b"[" * 20 + b"]" * 20),
    "_jsonb": (b'[{"a": 1},null]',),
    "_quantity": (b"[9007199254740993]", b"[1.0]"),
}
_SHAPES = 40
_DEEPEST_OF_THE_PATTERN = 5
"""Brackets of a line, its own included."""


class _Shape:
    """One table's columns, with an encoder of its rows and both readers."""

    def __init__(self, number: int) -> None:
        draw = random.Random(number)
        types = draw.choices(list(VALUES), k=draw.choice((1, 2, 3, 7)))
        names = draw.sample(("id", "a", "é", '"', "x" * 130, "json", "", ","), len(types))
        keyed = draw.sample(names, draw.randint(0, min(2, len(names))))
        self.columns = [Column(name, type_) for name, type_ in zip(names, types, strict=True)]
        self.names, self.keyed = names, keyed
        self.encode = struct_rows.encoder(self.columns)
        self.scanning = StructRowReader(self.columns, keyed)
        with plainly():
            self.plain = StructRowReader(self.columns, keyed)

    def line(self, draw: random.Random) -> bytes:
        values = [
            draw.choice(VALUES[column.type]) if draw.randrange(8) else b"null"
            for column in self.columns
        ]
        return lines.join(self.names, values)


@cache
def _shape(number: int) -> _Shape:
    return _Shape(number)


@contextmanager
def plainly() -> Iterator[None]:
    """Without the compiled module."""
    held, struct_reader.module = struct_reader.module, None
    try:
        yield
    finally:
        struct_reader.module = held


def structs(draw: random.Random) -> int:
    """Rows, right and wrong, are the same lines, keys and columns, or are refused alike."""
    shape = _shape(draw.randrange(_SHAPES))
    rows = [shape.encode(shape.line(draw)) for _ in range(draw.randrange(1, 5))]
    if not draw.randrange(2):
        rows = [broken(draw, row or b"\0") for row in rows]
    for row in rows:
        held = draw.randbytes(3) + row
        for read in ("line", "row") if shape.keyed else ("line",):
            quick, plain = (
                _outcome(lambda: getattr(reader, read)(held, 3, len(held)))  # noqa: B023
                for reader in (shape.scanning, shape.plain)
            )
            assert quick == plain, (read, shape.columns, row, quick, plain)
    _columns(draw, shape, [b"\x0a" + varint(len(row)) + row for row in rows])
    return len(rows)


def _columns(draw: random.Random, shape: _Shape, messages: list[bytes]) -> None:
    wanted = {name for name in shape.names if draw.randrange(3)}
    found = shape.scanning.columns(messages, wanted)
    whole = shape.scanning.columns(messages, shape.names)
    # What isn't wanted isn't parsed, so there damage is passed over.
    if found is None or whole is None:
        assert found is not None or whole is None
        return
    assert found == [column for column in whole if column[0] in wanted]
    assert [name for name, *_ in found] == [name for name in shape.names if name in wanted]
    # As pieces of a line: a broken row's json needn't be JSON.
    rows = [shape.plain._pieces(each, *protobuf._struct(each))[1::2] for each in messages]
    for name, offsets, text in found:
        ends = memoryview(offsets).cast("i")
        made = [text[a:b] for a, b in pairwise(ends)]
        assert made == [row[shape.names.index(name)] for row in rows], name


def _lines(draw: random.Random, shape: _Shape) -> bytes:
    """Some lines, half of the times broken."""
    block = b"".join(shape.line(draw) + b"\n" for _ in range(draw.randrange(1, 5)))
    return broken(draw, block).replace(b"\r", b"") + b"\n" if draw.randrange(2) else block


def line_columns(draw: random.Random) -> int:
    """Lines, right and wrong, are the same columns as by the regular expression, or refused."""
    shape = _shape(draw.randrange(_SHAPES))
    block = _lines(draw, shape)
    splitter = BlockSplitter(shape.names, [name for name in shape.names if draw.randrange(3)])
    quick = _outcome(lambda: _lists(splitter.split(block)))
    with plainly():
        plain = _outcome(lambda: _lists(splitter.split(block)))
    assert quick == plain, (block, quick, plain)
    return block.count(b"\n")


def first_columns(draw: random.Random) -> int:
    """Lines up to the last wanted column are those columns, whatever follows in the next one."""
    shape = _shape(draw.randrange(_SHAPES))
    block = _lines(draw, shape)
    wanted = [name for name in shape.names if draw.randrange(3)]
    numbers = [shape.names.index(name) for name in wanted]
    last = max(numbers, default=-1) + 1
    if last < len(shape.names) and draw.randrange(2):
        block = block.replace(heads(shape.names)[last], draw.choice((b',"?":', b",")), 1)
    patterns = member_patterns(shape.names, numbers)
    after = [re.escape(orjson.dumps(name)) + b":.*" for name in shape.names[last : last + 1]]
    pattern = rb"\{" + b",".join(patterns[:last] + after) + rb"\}"
    lines_ = block.split(b"\n")[:-1]
    matches = [re.fullmatch(pattern, line, re.DOTALL) for line in lines_]
    found = BlockSplitter(shape.names, wanted, whole=False)._scanned(block)
    if found is None:
        # What isn't UTF-8 is left to Python too.
        assert None in matches or not _is_text([m.groups() for m in matches if m]), block
        return len(matches)
    for number, (line, match) in enumerate(zip(lines_, matches, strict=True)):
        values = [column[number].as_py().encode() for column in found.values()]
        if match is None:
            assert len(re.findall(rb"[\[{]", line)) > _DEEPEST_OF_THE_PATTERN, line
        else:
            assert values == list(match.groups()), line
    return len(matches)


def _is_text(rows: list[tuple[bytes, ...]]) -> bool:
    try:
        b"".join(value for row in rows for value in row).decode()
    except UnicodeDecodeError:
        return False
    return True


def _lists(columns: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: column.to_pylist() for name, column in columns.items()}


def struct_messages(draw: random.Random) -> int:
    """Changes in a buffer, right and wrong, are the same messages with the same parts."""
    shape = _shape(draw.randrange(_SHAPES))
    changes = [_change(draw, shape, n) for n in range(draw.randrange(1, 6))]
    buffer, _ = write_diff("protobuf", shape.columns, changes)
    buffer = draw.choice(
        (buffer, broken(draw, buffer), pack("B", 0xFF) * draw.randrange(12) + buffer)
    )
    quick = _outcome(lambda: output._whole_messages(buffer))
    with plainly():
        assert quick == _outcome(lambda: output._whole_messages(buffer))
    for message in quick[1][0] if quick[0] == "gives" else ():
        parts = _outcome(lambda: protobuf._parts(message))  # noqa: B023
        with plainly():
            assert parts == _outcome(lambda: protobuf._parts(message)), message  # noqa: B023
    return 1


def _change(draw: random.Random, shape: _Shape, number: int) -> Change:
    action = draw.choice((Action.INSERT, Action.UPDATE, Action.DELETE))
    old = None if action is Action.INSERT else shape.line(draw)
    new = None if action is Action.DELETE else shape.line(draw)
    return Change(action, b"%d" % number, old, new)


_KEYS = (b"", b"12", b"[1,2]", 'a"\\\u2028é'.encode(), b"1000001", b"\x7f\n", b'","new":{')


def new_rows(draw: random.Random) -> int:
    """The new rows of a diff, right and wrong, are the same in both formats, or refused alike."""
    shape = _shape(draw.randrange(_SHAPES))
    changes = [_change(draw, shape, n) for n in range(draw.randrange(1, 9))]
    changes = [
        change if draw.randrange(3) else change._replace(key=draw.choice(_KEYS))
        for change in changes
    ]
    known = {change.key for change in changes if not draw.randrange(4)}
    wanted = {name for name in shape.names if draw.randrange(3)}
    projection = Projection(shape.names, wanted) if wanted and draw.randrange(2) else None
    for format_id in ("jsonl", "protobuf"):
        emptied = [] if draw.randrange(4) else [lines.TRUNCATION]
        data, _ = write_diff(format_id, shape.columns, [*emptied, *changes])
        if draw.randrange(2):
            data = broken(draw, data)
        elif format_id == "jsonl":
            data = _respelled(draw, data)

        def read() -> list[tuple[bytes, bytes | None]]:
            found = codec.read_new_rows(
                format_id,  # noqa: B023
                shape.columns,
                io.BytesIO(data),  # noqa: B023
                KeyRange(),
                known,
                projection=projection,
            )
            return [(key, _projected_line(shape, row, projection)) for key, row in found.items()]

        quick = _outcome(read)
        with plainly():
            plain = _outcome(read)
        if projection is None or plain[0] == "gives":
            assert quick == plain, (data, quick, plain)
    return len(changes)


def _projected_line(
    shape: _Shape, row: bytes | None, projection: Projection | None
) -> bytes | None:
    """A new row as a line where there is a projection, as Python then has it."""
    if row is None or projection is None or row.startswith(b"{"):
        return row
    columns = [column for column in shape.columns if column.name in projection.names]
    return protobuf.lines_of([row], StructRowReader(columns, ()))[:-1]


def _respelled(draw: random.Random, data: bytes) -> bytes:
    """A diff as others may write it, or nearly."""
    old, new = draw.choice(
        (
            (b"\n", b"\n\n"),
            (b'"key":', b'"key": '),
            (b',"old":', b',"KEY":"1e+06","old":'),
            (b"}\n", b"} \n"),
            (b"}\n", b',"new":{"id":9}}\n'),
            (b'"UPDATE"', b'"update"'),
            (b',"new":', b',"newer":'),
            (b'"new":{', b'"new":{"a":{},"new":{},'),
        )
    )
    return data.replace(old, new, draw.choice((-1, 1)))


def _outcome(call: Any) -> tuple[str, Any]:
    try:
        return "gives", call()
    except BadBytes:
        return "refuses", None
    except ValueError as refusal:  # of a key that isn't UTF-8, or has an escape that JSON has not
        return "refuses", type(refusal).__name__
