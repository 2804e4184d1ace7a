"""``python -m benchmarks.struct_rows``: our protobuf of rows beside the generated classes.

Pairs of CPU times over the same rows, in turn, with the same result.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import orjson
from google.protobuf.struct_pb2 import Struct, Value

from laredo_archive.codec import struct_rows as archived
from laredo_archive.codec.row_keys import splitter
from laredo_archive.codec.struct_reader import StructRowReader
from laredo_archive.codec.struct_rows import INTEGERS, JSONS, number_text
from laredo_fanout.serving.struct_rows import StructRows
from laredo_model.column import Column
from laredo_model.line import names_prefix

_ROWS = 2_000
_PAIRS = 25
_BENCH_TYPES = {
    "id": "int8",
    "n": "int4",
    "name": "text",
    "note": "text",
    "price": "numeric",
    "ratio": "float8",
    "active": "bool",
    "created": "timestamptz",
    "updated": "timestamptz",
    "doc": "jsonb",
}
_WIDE_TYPES = {f"c{at:02}": ("int8", "text", "int4", "bool")[at % 4] for at in range(40)}


def _bench_line(i: int) -> bytes:
    """A row as those of ``bench_table``."""
    ratio = repr(i / 7.0).removesuffix(".0")
    return (
        f'{{"id":{i},"n":{i % 1000},"name":"customer {i}","note":"note {i * 7919:032x} of row",'
        f'"price":{i % 100000 / 100:.2f},"ratio":{ratio},"active":{str(i % 2 == 0).lower()},'
        f'"created":"2024-01-01T{i % 24:02}:00:00+00:00",'
        f'"updated":"2025-01-01T{i % 24:02}:00:00+00:00",'
        f'"doc":{{"city": "city {i % 500}", "tags": ["a", {i % 10}]}}}}'
    ).encode()


def _wide_line(i: int) -> bytes:
    """Forty short values, every third of them null."""
    row = {
        name: None
        if (at + i) % 3 == 0
        else {"text": f"v {i}", "bool": i % 2 == 0}.get(kind, i * at)
        for at, (name, kind) in enumerate(_WIDE_TYPES.items())
    }
    return orjson.dumps(row)


def _fill(value: Value, found: Any) -> None:
    match found:
        case None:
            value.null_value = 0  # type: ignore[assignment]
        case bool():
            value.bool_value = found
        case str():
            value.string_value = found
        case int() | float():
            value.number_value = found
        case list():
            value.list_value.SetInParent()
            for each in found:
                _fill(value.list_value.values.add(), each)
        case _:
            value.struct_value.SetInParent()
            for name, each in found.items():
                _fill(value.struct_value.fields[name], each)


class _Generated:
    """Rows of these columns by the generated class."""

    def __init__(self, columns: list[Column]) -> None:
        names = [column.name for column in columns]
        self._columns = columns
        self._split = splitter(names)
        self._prefixes = names_prefix(names)

    def exact(self, line: bytes) -> bytes:
        """By the rules of ``codec.struct_rows``: each value's text is restored from it."""
        struct = Struct()
        fields = struct.fields
        for column, fragment in zip(self._columns, self._split(line), strict=True):
            value = fields[column.name]
            if fragment == b"null":
                value.null_value = 0  # type: ignore[assignment]
            elif fragment in (b"true", b"false"):
                value.bool_value = fragment == b"true"
            elif column.type in JSONS:
                value.string_value = fragment.decode()
            elif fragment[0] == 34:
                value.string_value = fragment[1:-1].decode()
            elif column.type in INTEGERS:
                value.number_value = int(fragment)
            elif number_text(number := float(fragment), column.type) == fragment:
                value.number_value = number
            else:
                value.struct_value.fields["json"].string_value = fragment.decode()
        # Without order the bytes, and so the sha256, differ from process to process.
        return struct.SerializeToString(deterministic=True)

    def restored(self, data: bytes) -> bytes:
        """Line that :meth:`exact` was given."""
        fields = Struct.FromString(data).fields
        pieces = []
        for column, prefix in zip(self._columns, self._prefixes, strict=True):
            value = fields[column.name]
            match value.WhichOneof("kind"):
                case "string_value" if column.type in JSONS:
                    text = value.string_value.encode()
                case "string_value":
                    text = orjson.dumps(value.string_value)
                case "number_value":
                    text = number_text(value.number_value, column.type)
                case "null_value":
                    text = b"null"
                case "bool_value":
                    text = b"true" if value.bool_value else b"false"
                case _:
                    text = value.struct_value.fields["json"].string_value.encode()
            pieces += (prefix, text)
        return b"".join([*pieces, b"}"])


def _lossy(line: bytes) -> bytes:
    """As the base protocol sends it."""
    struct = Struct()
    fields = struct.fields
    for name, found in orjson.loads(line).items():
        _fill(fields[name], found)
    return struct.SerializeToString()


def _seconds(work: Callable[[bytes], object], rows: Sequence[bytes]) -> float:
    began = time.process_time()
    for row in rows:
        work(row)
    return time.process_time() - began


def _compare(
    what: str, ours: Callable[[bytes], object], theirs: Callable[[bytes], object], rows: list[bytes]
) -> None:
    pairs = [(_seconds(ours, rows), _seconds(theirs, rows)) for _ in range(_PAIRS)]
    ratios = sorted(generated / own for own, generated in pairs)
    own, generated = (1e6 * median(side) / len(rows) for side in zip(*pairs, strict=True))
    print(
        f"{what}: ours {own:.1f} µs a row, generated {generated:.1f} µs,"
        f" {median(ratios):.2f} times ours ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def _of_table(what: str, types: dict[str, str], lines: list[bytes]) -> None:
    columns = [Column(name, kind) for name, kind in types.items()]
    generated = _Generated(columns)
    encode, reader, structs = archived.encoder(columns), StructRowReader(columns, []), StructRows()
    rows = [encode(line) for line in lines]
    assert [generated.restored(generated.exact(line)) for line in lines] == lines
    assert [generated.restored(row) for row in rows] == lines
    _compare(f"{what}: artifact, encode", encode, generated.exact, lines)
    _compare(
        f"{what}: artifact, decode",
        lambda row: reader.line(row, 0, len(row)),
        generated.restored,
        rows,
    )
    _compare(f"{what}: base protocol, encode", structs.encode, _lossy, lines)


def main() -> None:
    """Print each pair."""
    numbers = range(1, _ROWS + 1)
    _of_table("ten columns", _BENCH_TYPES, [_bench_line(number) for number in numbers])
    _of_table("forty short columns", _WIDE_TYPES, [_wide_line(number) for number in numbers])


if __name__ == "__main__":
    main()
