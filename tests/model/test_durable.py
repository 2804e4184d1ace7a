"""Files that are replaced durably, and survive a power failure."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from laredo_service import files


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
