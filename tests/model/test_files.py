"""Files that are replaced durably, and survive a power failure."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_service import files
from laredo_service.files import Digest
from laredo_service.record_file import BLOCK_BYTES, Record, RecordFile, RecordFileDamaged


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes that were synced, in order."""
    inodes: list[int] = []
    fsync: Callable[[int], None] = os.fsync

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        inodes.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noting)
    return inodes


def replace(path: Path, text: str) -> None:
    beside = path.with_name(".beside")
    with beside.open("w") as file, files.replacing(path, beside, file):
        file.write(text)
        if not text:
            raise ValueError("nothing to write")


def test_the_file_and_then_its_name_are_synced(tmp_path: Path, synced: list[int]) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    replace(path, "new")
    assert path.read_text() == "new"
    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_half_way_changes_nothing(tmp_path: Path, synced: list[int]) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    with pytest.raises(ValueError, match="nothing to write"):
        replace(path, "")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    assert synced == []


def test_a_name_that_cant_be_taken_leaves_nothing_beside(tmp_path: Path) -> None:
    taken = tmp_path / "d"
    taken.mkdir()
    with pytest.raises(IsADirectoryError):
        replace(taken, "new")
    assert list(tmp_path.iterdir()) == [taken]


def test_a_directory_is_synced_by_its_descriptor_too(tmp_path: Path, synced: list[int]) -> None:
    above = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        files.sync_directory(".", dir_fd=above)
    finally:
        os.close(above)
    assert synced == [tmp_path.stat().st_ino]


# The sha256 and the size of what passes.


@given(st.lists(st.binary(max_size=40)))
def test_pieces_come_to_what_the_whole_does(pieces: list[bytes]) -> None:
    digest, whole = Digest(), b"".join(pieces)
    for number, piece in enumerate(pieces):
        digest.update(memoryview(piece) if number % 2 else piece)
    assert digest.size == len(whole)
    assert digest.hex() == hashlib.sha256(whole).hexdigest()
    assert digest.digest() == hashlib.sha256(whole).digest()


# Temporary files of records: they come back, or the file is refused.


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
