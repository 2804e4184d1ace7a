"""A client behind the journal is caught up from an archive whose diffs were merged."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

import pytest

from laredo_archive.maintain import compact
from laredo_archive.manifest import merged as merged_
from laredo_archive.storage.local import LocalDestination
from laredo_fanout.serving import archives
from laredo_fanout.serving.replay import Outcome
from tests.support.processes import PATIENCE_S
from tests.support.server.archived import Archived
from tests.support.server.replay_reader import FULL, REPLAY, archived, read

HOUR = timedelta(hours=1)


class Hanging(LocalDestination):
    """A directory whose lists of merged diffs' parts can't be read until they are released."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.released = threading.Event()

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        if "parts-" in key:
            assert self.released.wait(PATIENCE_S)
        return super().open(key, offset)


def merged(table: Archived) -> None:
    """All but the last diff, as they are of one time, and the last of a later one."""
    done = compact.merge_next(table.archive.merging, [HOUR], formats=table.formats)
    assert done is not None
    assert len(done.run.diffs) > 3


def with_merged_diffs(table: Archived) -> int:
    """Merge most of six diffs; return a boundary that is hidden by that."""
    ends = []
    for number in range(5):
        table.commit((number, f"at {number}"))
        table.cut()
        ends.append(table.position)
    table.commit((1, "late"))
    table.cut(later=2 * HOUR)
    merged(table)
    table.prune()
    return ends[1]


@pytest.mark.parametrize("listed", [64, 1])
async def test_a_client_at_a_boundary_that_was_merged(
    tmp_path: Path, listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_, "LISTED_AT_MOST", listed)
    async with archived(tmp_path, rows=5) as (world, table):
        first, ends = table.position, []
        for number in range(6):
            # It comes and goes: nobody is caught up from inside of the merged diff's window.
            table.commit((50, None if number % 2 else "here"), (number, f"at {number}"))
            table.cut()
            ends.append(table.position)
        table.commit((1, "late"))
        table.cut(later=2 * HOUR)
        merged(table)
        table.prune()
        for start in (first, *ends[:-1]):
            found = await read(world, table, start)
            assert (found.mode, found.state) == (REPLAY, table.state), start
            assert len(found.positions) <= 8
        whole = await read(world, table, first)
        assert len(whole.positions) == 2, "what leads on from there stays merged"
        assert set(table.outcomes) == {Outcome.COMPLETE}


async def test_a_list_that_is_gone_means_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_, "LISTED_AT_MOST", 1)
    async with archived(tmp_path, rows=5) as (world, table):
        start = with_merged_diffs(table)
        [file] = (tmp_path / "archive").rglob("parts-*")
        file.unlink()
        found = await read(world, table, start)
        assert (found.mode, found.state) == (FULL, table.state)
        assert table.outcomes == [Outcome.UNREADABLE]


async def test_a_list_that_cannot_be_read_in_time_means_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_, "LISTED_AT_MOST", 1)
    monkeypatch.setattr(archives, "MANIFEST_WAIT_S", 1.0)
    (tmp_path / "archive").mkdir()
    directory = Hanging(tmp_path / "archive")
    monkeypatch.setattr(archives, "destination_of", lambda _: directory)
    async with archived(tmp_path, rows=5) as (world, table):
        start = with_merged_diffs(table)
        try:
            found = await read(world, table, start)
            assert not directory.released.is_set()
        finally:
            directory.released.set()
        assert (found.mode, found.state) == (FULL, table.state)
        assert table.outcomes == [Outcome.UNREADABLE]
