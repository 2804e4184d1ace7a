"""Rows that were exported as csv load into PostgreSQL unchanged."""

import tracemalloc
from pathlib import Path

import pytest

from laredo_archive import codec
from laredo_archive.codec.zstd_frames import PlainBytes
from laredo_archive.errors import ExportRefused
from laredo_archive.maintain.export import csv_value, export
from laredo_archive.reader import Archive
from laredo_model.column import Column
from laredo_model.key import of_line
from tests.support import drawn
from tests.support.archive.building import Builder
from tests.support.archive.command_line import printed
from tests.support.archive.several_epochs import rows_at, several_epochs
from tests.support.postgres import Database

TABLE = """
CREATE TABLE {name} (id bigint PRIMARY KEY, t text, n numeric, f float8, b boolean, ts timestamptz,
    d date, j json, jb jsonb, ta text[], ia int[], ja jsonb[], bx box[], by bytea, u uuid)
"""
ROWS = r"""
INSERT INTO given VALUES
    (1, 'plain', 1.50, 1e300, true, '2024-02-29 10:00:00.1+02', '0044-03-15 BC', '{"a": [1]}',
     '{"b": "x,y"}', '{a,NULL,"b c","d\"e",NULL}', '{{1,2},{3,NULL}}',
     ARRAY['{"a": [1, "]"]}'::jsonb, NULL, '2'], '{(1,2),(0,0);(3,4),(1,1)}', '\xdeadbeef',
     'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'),
    (2, '', 'NaN', '-Infinity', false, 'infinity', NULL, '"text"', '"te\"xt"', '{}', '{}', '{}',
     '{}', '', NULL),
    (3, E'two\nlines, "quoted" \\. and \\', NULL, -0.0, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL, NULL, NULL),
    (4, '\.', NULL, NULL, NULL, NULL, NULL, '[ ]', '[[1], [2]]', '{"",NULL,"NULL","\\"}', NULL,
     NULL, NULL, NULL, NULL)
"""


def test_csv_loads_into_postgresql_as_the_same_rows(database: Database, tmp_path: Path) -> None:
    types = {
        "id": "int8", "t": "text", "n": "numeric", "f": "float8", "b": "bool", "ts": "timestamptz",
        "d": "date", "j": "json", "jb": "jsonb", "ta": "_text", "ia": "_int4", "ja": "_jsonb",
        "bx": "_box", "by": "bytea", "u": "uuid",
    }  # fmt: skip
    columns = tuple(
        Column(name, type_name, -1, name != "id", ordinal, 1 if name == "id" else None)
        for ordinal, (name, type_name) in enumerate(types.items(), 1)
    )
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(TABLE.format(name="given"))
        connection.execute(ROWS)
        found = connection.execute(
            "SELECT row_to_json(q)::text FROM (SELECT id, t, n::text, f, b, ts, d, j, jb, ta, ia,"
            " ja, bx, by, u FROM given) q"
        ).fetchall()
        lines = [str(line).encode() for (line,) in found]
        rows = {of_line(line, ["id"]): line for line in lines}
        archive = Archive.at(str(Builder(tmp_path, columns=columns).base(100, rows).write()))
        target = tmp_path / "rows.csv"
        assert export(archive, archive.boundary(), target, "csv").rows == 4
        connection.execute(TABLE.format(name="taken"))
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY taken FROM STDIN WITH (FORMAT csv, HEADER match)") as copy,
        ):
            copy.write(target.read_bytes())
        differing = connection.execute(
            "SELECT one::text, two::text FROM given one FULL JOIN taken two USING (id)"
            " WHERE one::text IS DISTINCT FROM two::text"
        ).fetchall()
    assert differing == []


@pytest.mark.parametrize("format_id", ["protobuf", "parquet"])
def test_an_export_gives_back_the_rows(tmp_path: Path, format_id: str) -> None:
    archive = Archive.at(str(several_epochs(tmp_path, base_formats=("parquet",)).write()))
    boundary = archive.boundary()
    target = tmp_path / "rows"
    written = export(archive, boundary, target, format_id)
    assert written.size_bytes == target.stat().st_size
    assert written.state_checksum == boundary.last.state_checksum
    with target.open("rb") as file:
        found = codec.read_snapshot(format_id, boundary.columns, file)
        rows = [row for keys, lines in found for row in zip(keys, lines, strict=True)]
    assert rows == list(rows_at(archive, boundary).items())


@pytest.mark.parametrize("name", ["t.jsonl.zst", "t.pb.zst"])
def test_a_file_is_compressed_if_its_name_says_so(tmp_path: Path, name: str) -> None:
    archive = several_epochs(tmp_path).write()
    plain = tmp_path / name.removesuffix(".zst")
    printed("export", archive, tmp_path / name)
    printed("export", archive, plain)
    with (tmp_path / name).open("rb") as compressed:
        assert PlainBytes(compressed).read() == plain.read_bytes()


def test_rows_that_aren_t_the_manifest_s_state_are_not_exported(tmp_path: Path) -> None:
    built = several_epochs(tmp_path)
    built.artifacts[-1]["state_checksum"] = "0" * 32
    archive = Archive.at(str(built.write()))
    with pytest.raises(ExportRefused, match="see laredo-archive verify"):
        export(archive, archive.boundary(), tmp_path / "rows.jsonl", "jsonl")
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize("format_id", ["protobuf", "parquet"])
def test_typed_formats_need_columns(tmp_path: Path, format_id: str) -> None:
    archive = Archive.at(str(several_epochs(tmp_path, plain=True).write()))
    with pytest.raises(ExportRefused, match=f"names no columns, which {format_id} needs"):
        export(archive, archive.boundary(), tmp_path / "rows", format_id)


@pytest.mark.parametrize(
    ("element", "type_name"),
    drawn.first(
        1,
        [
            ("[1]", "_json"),
            ("10", "_int4"),
            ('""', "_text"),
            ('"x"', "_json"),
            ('{"a":1}', "_jsonb"),
        ],
    ),
)
@pytest.mark.thorough
def test_a_long_array_takes_memory_in_proportion(element: str, type_name: str) -> None:
    array = "[" + ",".join([element] * (300_000 // len(element))) + "]"
    strings = '["' + r"\"" * 150_000 + '"]'
    for value, kind in ((array, type_name), (strings, "_text"), (strings, "_jsonb")):
        tracemalloc.start()
        try:
            csv_value(value, kind)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 16 * len(value)
