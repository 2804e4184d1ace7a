"""Temporary files of records: they come back, or the file is refused."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_service.record_file import BLOCK_BYTES, Record, RecordFile, RecordFileDamaged

PART = st.none() | st.integers(0, 2**64) | st.binary(max_size=40)
RECORDS = st.lists(st.tuples(PART, PART, PART), max_size=30)


@given(runs=st.lists(RECORDS, max_size=4), wide=st.integers(0, 3))
def test_each_run_comes_back(runs: list[list[Record]], wide: int) -> None:
    written = [run + [(b"x" * BLOCK_BYTES, number) for number in range(wide)] for run in runs]
    file = RecordFile()
    places = [file.write(iter(run)) for run in written]
    readers = [file.read(start, end) for start, end in places]
    assert [list(reader) for reader in readers[::-1]] == written[::-1]
    assert list(file.read()) == [record for run in written for record in run]
    file.close()


@pytest.mark.parametrize(
    ("at", "data", "why"),
    [
        (0, b"\xff\xff\xff\x7f", "has another size"),
        (8, b"none", "has another checksum"),
        (70, b"?", "has another checksum"),
        (None, b"", "is cut off"),
    ],
)
def test_a_file_that_was_changed_is_refused(
    tmp_path: Path, at: int | None, data: bytes, why: str
) -> None:
    file = RecordFile(tmp_path)
    file.write([(b"a" * 100, 1)])
    if at is None:
        os.truncate(file.fileno, file.size - 1)
    else:
        os.pwrite(file.fileno, data, at)
    with pytest.raises(RecordFileDamaged, match=rf"{tmp_path} .* byte 0 {why}\. Check that disk"):
        list(file.read())
    file.close()


def test_of_a_run_that_breaks_off_nothing_stays() -> None:
    def breaks_off() -> Iterator[Record]:
        yield from [(b"x" * BLOCK_BYTES,)] * 3
        raise InterruptedError

    file = RecordFile()
    file.write([(b"a",)])
    with pytest.raises(InterruptedError):
        file.write(breaks_off())
    file.write([(b"b",)])
    assert list(file.read()) == [(b"a",), (b"b",)]
    file.close()
