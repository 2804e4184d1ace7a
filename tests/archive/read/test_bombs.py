"""Small files that come to gigabytes: they are read in bounded memory, or refused."""

import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laredo_archive.codec import struct_rows
from laredo_archive.manifest import parser
from laredo_archive.manifest.model import Manifest
from laredo_archive.storage.local import LocalDestination
from laredo_model.column import Column
from tests.support import drawn
from tests.support.archive.archiving import ONE, PREFIX, opened, rebased
from tests.support.processes import completed

MEMORY_BYTES = 1 << 30
ENVIRONMENT = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
"""Without the address space that allocators and thread pools reserve and don't use."""
"""Beside what Python, pyarrow and their threads map."""
LIMITED = """
import resource, sys
from laredo_archive.cli import main
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + {memory}, mapped + {memory}))
"""
READING = """
sys.stdout = open("/dev/null", "w")
for command in {commands!r}:
    try:
        main(command)
    except SystemExit as end:
        print("ended by", end.code, file=sys.stderr)
"""
ROWS = 16_384
COLUMNS = (Column("id", "int4", ordinal=1, key_ordinal=1), Column("v", "text", ordinal=2))
ARRAYS = (COLUMNS[0], Column("v", "_text", ordinal=2))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    with opened([LocalDestination(tmp_path)]) as archive:
        rebased(archive, 10, ONE, continues=False)
    return tmp_path / PREFIX


def replaced(archive: Path, data: bytes, format_id: str, rows: int, columns=COLUMNS) -> None:  # type: ignore[no-untyped-def]
    """The base is ``data`` instead, and the manifest says so."""
    path = archive / "manifest.json"
    manifest: Manifest = parser.parse(path.read_bytes(), str(path))
    [base] = manifest.artifacts
    entry = base.formats["jsonl"]
    (archive.parent / entry.key).write_bytes(data)
    entry = replace(
        entry,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        splits=(),
        blocks=(),
        sorted=False,
    )
    base = replace(
        base, formats={format_id: entry}, row_count=rows, rows=None, state_checksum=None,
        columns=columns, key_fields=("id",),
    )  # fmt: skip
    path.write_bytes(replace(manifest, artifacts=(base,)).to_bytes())


def parquet(tmp_path: Path, ids: pa.Array, values: pa.Array) -> bytes:
    file = tmp_path / "made.parquet"
    pq.write_table(
        pa.table({"id": ids, "v": values}),
        file,
        compression="zstd",
        write_page_checksum=True,
        write_batch_size=16,
        store_schema=False,
    )
    return file.read_bytes()


def refused(archive: Path, *commands: str) -> list[str]:
    """The refusal of the archive by each command, all in one process."""
    code = LIMITED + READING
    given = [[command, str(archive)] for command in commands]
    limited = code.format(memory=MEMORY_BYTES, commands=given)
    done = completed([sys.executable, "-c", limited], timeout=600, env=ENVIRONMENT)
    assert "Traceback" not in done.stderr
    *told, rest = done.stderr.split("ended by 1\n")
    assert (done.returncode, len(told), rest) == (0, len(commands), ""), done.stderr[-2000:]
    return told


ONE_VALUE = pa.DictionaryArray.from_arrays(
    pa.array([0] * ROWS, pa.int32()), pa.array(["x" * 360_000])
)


def test_a_dictionary_is_no_bomb(archive: Path, tmp_path: Path) -> None:
    """One value of 360 kB in each of 16,384 rows: 5.9 GB out of some kilobytes."""
    data = parquet(tmp_path, pa.array([7] * ROWS, pa.int32()), ONE_VALUE)
    assert len(data) < 10_000
    replaced(archive, data, "parquet", 100)
    [told] = refused(archive, "cat")
    assert "it has more rows than the 100 in the manifest" in told


@pytest.mark.thorough
def test_an_array_of_dictionary_values_is_no_bomb(archive: Path, tmp_path: Path) -> None:
    arrays = pa.ListArray.from_arrays(pa.array([0, ROWS], pa.int32()), ONE_VALUE)
    data = parquet(tmp_path, pa.array([7], pa.int32()), arrays)
    replaced(archive, data, "parquet", 1, ARRAYS)
    [told] = refused(archive, "cat")
    assert "more than PostgreSQL's arrays can have" in told
    refused(archive, "verify")


@pytest.mark.thorough
def test_long_values_are_read_all_the_same(archive: Path, tmp_path: Path) -> None:
    """Honest ones, of which some thousand at once wouldn't fit."""
    numbers = list(range(2000))
    values = [chr(97 + number % 20) * 300_000 for number in numbers]
    data = parquet(tmp_path, pa.array(numbers, pa.int32()), pa.array(values))
    replaced(archive, data, "parquet", len(numbers))
    path = archive.parent / f"{PREFIX}epoch=1/snapshot-0_A.jsonl"
    assert path.stat().st_size == len(data) < 1 << 20
    code = (
        "from laredo_archive.codec import read_snapshot\n"
        "from laredo_model.column import Column\n"
        f"columns = {COLUMNS!r}\n"
        f"rows = read_snapshot('parquet', columns, open({str(path)!r}, 'rb'))\n"
        "print(sum(len(lines) for _, lines in rows))\n"
    )
    limited = LIMITED.format(memory=MEMORY_BYTES) + code
    done = completed([sys.executable, "-c", limited], timeout=600, env=ENVIRONMENT)
    assert done.stdout.split() == ["2000"], done.stderr[-2000:]


@pytest.mark.parametrize("length", drawn.first(1, [1 << 69, 1 << 60, 1 << 31]))
def test_a_messages_length_takes_no_memory(archive: Path, length: int) -> None:
    replaced(archive, struct_rows.varint(length) + b"x" * 100, "protobuf", 1)
    [told] = refused(archive, "cat")
    assert "snapshot-0_A.jsonl" in told


def test_a_part_with_an_endless_length_is_told_at_once(archive: Path) -> None:
    """A number that is read bit by bit takes time with the square of its length."""
    body = b"\x0a" + b"\xff" * 3_000_000
    replaced(archive, struct_rows.varint(len(body)) + body, "protobuf", 1)
    refused(archive, "cat")


def test_a_line_without_an_end_is_refused(archive: Path) -> None:
    path = archive / "epoch=1/snapshot-0_A.jsonl"
    replaced(archive, b"{", "jsonl", 1)
    os.truncate(path, 1 << 32)
    [told] = refused(archive, "cat")
    assert "it has 4294967296 bytes, the manifest has 1" in told


def test_a_manifest_without_an_end_is_refused(archive: Path) -> None:
    os.truncate(archive / "manifest.json", 5 << 30)
    for told in refused(archive, "ls", "cat", "verify", "gc"):
        assert "no manifest is as large" in told
