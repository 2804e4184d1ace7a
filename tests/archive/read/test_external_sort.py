"""Sorting in bounded memory."""

import os
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_archive.errors import TemporaryFileUnreadable, TemporarySpaceLacking
from laredo_archive.read import external_sort
from laredo_archive.read.external_sort import Sorter
from laredo_archive.reader import Archive
from tests.support import drawn
from tests.support.archive.building import Builder, row

KEYS = st.lists(st.binary(max_size=3), max_size=200)


@given(keys=KEYS, memory=st.integers(300, 20_000), at_once=st.integers(2, 5))
def test_records_come_out_in_order(keys: list[bytes], memory: int, at_once: int) -> None:
    records = [(key, number, None, b"value") for number, key in enumerate(keys)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "MERGED_AT_ONCE", at_once)
        sorter = Sorter(memory)
        for record in records:
            sorter.add(record, 10)
        assert list(sorter.sorted()) == sorted(records, key=lambda found: found[:2])


def test_open_files_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_sort, "MERGED_AT_ONCE", 4)
    before = len(list(Path("/proc/self/fd").iterdir()))
    sorter = Sorter(300)
    for number in range(500):
        sorter.add((b"%d" % number, number), 100)
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 20
    assert len(list(sorter.sorted())) == 500


def test_what_was_cleared_is_gone() -> None:
    sorter = Sorter(300)
    for number in range(10):
        sorter.add((b"a", number), 100)
    sorter.clear()
    sorter.add((b"b", 11), 1)
    assert list(sorter.sorted()) == [(b"b", 11)]


def test_no_room_names_the_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    sorter = Sorter(300)
    with pytest.raises(TemporarySpaceLacking, match=r"gone: no room for sorting .* TMPDIR"):
        for number in range(10):
            sorter.add((b"a", number), 100)


def test_a_file_that_was_cut_off_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_sort, "MERGED_AT_ONCE", 3)
    for runs in (2, 3):
        sorter = Sorter(300)
        with pytest.raises(TemporaryFileUnreadable, match="block at byte 0 is cut off"):
            for number in range(runs):
                sorter.add((b"a", number), 300)
                os.truncate(sorter._runs[-1][1].fileno, 20)
            list(sorter.sorted())
        sorter.clear()


@pytest.mark.parametrize("shuffled", drawn.first(1, [True, False]))
def test_memory_doesn_t_grow_with_the_archive(tmp_path: Path, shuffled: bool) -> None:
    """32 MB of rows, and as much in diffs, pass through a few."""
    rows = dict(sorted(row(number, "x" * 4000) for number in range(8000)))
    changed = {key: line.replace(b"xxxx", b"yyyy", 1) for key, line in rows.items()}
    built = Builder(tmp_path, shuffled=shuffled).base(100, rows).diff(200, changed)
    archive = Archive.at(str(built.write()))
    built.states.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sorter.__init__, "__defaults__", (2_000_000,))
        tracemalloc.start()
        try:
            count = 0
            for keys, _ in archive.rows(archive.boundary()):
                count += len(keys)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert count == 8000
    assert peak < 16_000_000
