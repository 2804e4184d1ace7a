"""parquet snapshots as other tools see them, and what becomes of values that Arrow lacks."""

import io
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laredo_archive import codec
from laredo_archive.codec import BadBytes, EncodedFile, output
from laredo_archive.codec import parquet as parquet_codec
from laredo_archive.codec.parquet import ParquetSnapshotEncoder
from laredo_model import line as lines_
from laredo_model.column import Column
from tests.support.archive.without_pyarrow import without_pyarrow

KEY = Column("id", "int8", -1, False, 1, 1)
PRICE = Column("price", "numeric", (10 << 16 | 2) + 4, True, 2)
REST = "_laredo_rest"


def write(columns: Sequence[Column], lines: Sequence[bytes]) -> tuple[bytes, EncodedFile]:
    sink = io.BytesIO()
    encoder = ParquetSnapshotEncoder(sink, columns)
    for number, line in enumerate(lines):
        encoder.write([b"%06d" % number], [line])
    encoded = encoder.close()
    return sink.getvalue(), encoded


def read(columns: Sequence[Column] | None, data: bytes) -> list[bytes]:
    blocks = codec.read_snapshot("parquet", columns, io.BytesIO(data), key_fields=["id"])
    return [line for _, lines in blocks for line in lines]


def rows_seen(data: bytes) -> list[dict[str, Any]]:
    """By pyarrow alone, as any other tool."""
    return pq.read_table(io.BytesIO(data)).to_pylist()


def of_column(column: Column, values: Sequence[bytes]) -> tuple[list[Column], list[bytes]]:
    rows = [lines_.join(["id", column.name], [b"%d" % n, v]) for n, v in enumerate(values)]
    return [KEY, column], rows


def test_other_tools_see_typed_columns() -> None:
    columns = [
        KEY,
        PRICE,
        Column("at", "timestamptz", -1, True, 3),
        Column("day", "date", -1, True, 4),
        Column("tags", "_text", -1, True, 5),
        Column("doc", "jsonb", -1, True, 6),
        Column("raw", "bytea", -1, True, 7),
        Column("any", "numeric", -1, True, 8),
    ]
    line = (
        b'{"id":7,"price":"1.50","at":"2024-02-29T10:00:00.1+00:00","day":"2024-02-29",'
        b'"tags":["a",null],"doc":{"a": 1},"raw":"\\\\x00ff","any":"1e5"}'
    )
    nulls = lines_.join([c.name for c in columns], [b"8", *[b"null"] * 7])
    data, encoded = write(columns, [line, nulls])
    assert rows_seen(data)[0] == {
        "id": 7,
        "price": Decimal("1.50"),
        "at": datetime(2024, 2, 29, 10, 0, 0, 100000, tzinfo=UTC),
        "day": date(2024, 2, 29),
        "tags": ["a", None],
        "doc": '{"a": 1}',
        "raw": b"\x00\xff",
        "any": "1e5",
        REST: None,
    }
    assert set(rows_seen(data)[1].values()) == {8, None}
    assert read(columns, data) == [line, nulls]
    assert (encoded.size_bytes, encoded.records) == (len(data), 2)


LACKED = [
    (PRICE, b'"NaN"'),
    (Column("at", "timestamptz", -1, True, 2), b'"-infinity"'),
    (Column("at", "timestamp", -1, True, 2), b'"0044-03-15T10:00:00 BC"'),
    (Column("day", "date", -1, True, 2), b'"10000-01-01"'),
    (Column("grid", "_int4", -1, True, 2), b"[[1,2],[3,4]]"),
    (Column("near", "float8", -1, True, 2), b"9.999999999999999e+22"),
    (Column("counts", "_quantity", -1, True, 2), b"[1,2]"),
]


@pytest.mark.parametrize(("column", "value"), LACKED)
def test_a_value_that_arrow_lacks_is_null_and_beside_the_columns(
    column: Column, value: bytes
) -> None:
    plain = {"numeric": b'"1.50"', "float8": b"0.1", "_int4": b"[7]", "_quantity": b'["x"]'}
    fitting = plain.get(column.type, b"null")
    columns, lines = of_column(column, [fitting, value, fitting, b"null"])
    data, _ = write(columns, lines)
    seen = rows_seen(data)
    assert [row[REST] for row in seen] == [
        None,
        f'{{"{column.name}":{value.decode()}}}',
        None,
        None,
    ]
    assert seen[1][column.name] is None
    assert fitting == b"null" or seen[0][column.name] == seen[2][column.name] is not None
    assert read(columns, data) == lines


def test_an_array_column_is_as_deep_as_its_first_array() -> None:
    columns, lines = of_column(
        Column("grid", "_int4", -1, True, 2), [b"null", b"[]", b"[[1,2],[3,4]]", b"[5]", b"[[6]]"]
    )
    data, _ = write(columns, lines)
    seen = rows_seen(data)
    assert [row["grid"] for row in seen] == [None, [], [[1, 2], [3, 4]], None, [[6]]]
    assert seen[3][REST] == '{"grid":[5]}'
    assert read(columns, data) == lines


def test_a_column_with_the_name_of_ours() -> None:
    columns, lines = of_column(Column(REST, "text", -1, True, 2), [b'"mine"', b"null"])
    data, _ = write(columns, lines)
    assert [row[REST] for row in rows_seen(data)] == ["mine", None]
    assert read(columns, data) == lines


def test_a_table_without_rows() -> None:
    data, encoded = write([KEY, PRICE], [])
    assert (encoded.records, encoded.splits) == (0, ())
    assert pq.read_table(io.BytesIO(data)).column_names == ["id", "price", REST]
    assert read([KEY, PRICE], data) == []


def test_files_of_other_programs_read_by_their_own_types() -> None:
    sink = io.BytesIO()
    table = {
        "id": pa.array([1, 2], pa.int32()),
        "name": pa.array(['a"b', None], pa.large_string()),
        "at": pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("ms", "UTC")),
        "tags": pa.array([["x"], []], pa.list_(pa.string())),
    }
    pq.write_table(pa.table(table), sink)
    expected = [
        b'{"id":1,"name":"a\\"b","at":"2024-01-01T00:00:00+00:00","tags":["x"]}',
        b'{"id":2,"name":null,"at":"2024-01-01T00:00:00+00:00","tags":[]}',
    ]
    assert read(None, sink.getvalue()) == expected
    with pytest.raises(
        BadBytes, match="must have one column price; its columns are id, name, at, tags"
    ):
        read([KEY, PRICE], sink.getvalue())


def test_a_changed_byte_in_any_page_is_told() -> None:
    columns, lines = of_column(
        Column("name", "text", -1, True, 2), [b'"name %d"' % (n * n) for n in range(3000)]
    )
    data, _ = write(columns, lines)
    end_of_pages = len(data) - 2000
    for at in range(200, end_of_pages, end_of_pages // 7):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(BadBytes):
            read(columns, bytes(damaged))


def test_slices_begin_and_end_where_row_groups_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_codec, "SNAPSHOT_BLOCK", 1000)
    columns, lines = of_column(PRICE, [b'"1.00"'] * 100)
    data, encoded = write(columns, lines)
    [(_, start), (key, stop), *_] = encoded.splits

    def between(start: int, stop: int | None) -> list[bytes]:
        found = codec.read_snapshot("parquet", columns, io.BytesIO(data), start, stop)
        return [line for _, some in found for line in some]

    assert between(start, stop) == lines[: int(key)]
    assert between(stop, None) == lines[int(key) :]
    assert between(0, len(data)) == lines
    for wrong in ((start, stop - 1), (stop + 1, None), (stop - 1, len(data)), (len(data), None)):
        with pytest.raises(BadBytes, match="no row group begins at byte"):
            between(*wrong)


def test_dictionaries_are_for_values_that_repeat() -> None:
    columns = [KEY, Column("tags", "_text", -1, True, 2), Column("state", "text", -1, True, 3)]
    rows = [[b"%d" % n, b'["t%d","a","a","a"]' % n, b'"s%d"' % (n % 9)] for n in range(100)]
    lines = [lines_.join([column.name for column in columns], row) for row in rows]
    data, _ = write(columns, lines)
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    found = map(group.column, range(group.num_columns))
    with_one = {column.path_in_schema for column in found if column.has_dictionary_page}
    assert with_one == {"tags.list.element", "state", REST}
    assert read(columns, data) == lines


def test_splits_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_codec, "SNAPSHOT_BLOCK", 1)
    monkeypatch.setattr(output, "MAX_SPLITS", 10)
    columns, lines = of_column(PRICE, [b'"1.00"'] * 100)
    data, encoded = write(columns, lines)
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.num_row_groups == 100
    assert [key for key, _ in encoded.splits] == [f"{n:06d}" for n in range(0, 100, 16)]
    starts = [min(o for o in _offsets(file, n) if o) for n in range(0, 100, 16)]
    assert [offset for _, offset in encoded.splits] == starts


def _offsets(file: pq.ParquetFile, group: int) -> tuple[int | None, int]:
    first = file.metadata.row_group(group).column(0)
    return first.dictionary_page_offset, first.data_page_offset


class _Full(Exception):
    pass


class _FullSink:
    def write(self, data: bytes, /) -> None:
        raise _Full


def test_a_sink_that_fails_fails_with_its_own_error() -> None:
    encoder = ParquetSnapshotEncoder(_FullSink(), [KEY])
    encoder.write([b"1"], [b'{"id":1}'])
    with pytest.raises(_Full):
        encoder.close()


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    printed = without_pyarrow(
        "import io\n"
        "from laredo_archive import codec\n"
        "for format_id in ('jsonl', 'parquet'):\n"
        "    try:\n"
        "        codec.snapshot_encoder(format_id, (), io.BytesIO())\n"
        "        print(format_id)\n"
        "    except codec.PyarrowMissing as missing:\n"
        "        print(missing)\n"
    )
    assert printed == (
        "jsonl\nparquet needs pyarrow, which isn't installed: pip install"
        " 'laredo-snapshotter[parquet]'\n"
    )
