"""Spark reads an archive whose diffs were merged: at every boundary, and from every boundary on."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from laredo_archive.manifest import merged
from laredo_archive.storage.local import LocalDestination
from laredo_model import position as positions
from laredo_model.position import Position
from laredo_spark import read_changes, read_table, read_tables
from laredo_spark.sync.merging import Merge
from tests.spark.change_stream import Stream
from tests.spark.merged_copy import MergedCopy
from tests.support.archive.archiving import PREFIX, opened
from tests.support.archive.long_archive import LongArchive, compacted
from tests.support.archive.truth import State


@pytest.fixture(autouse=True)
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged, "LISTED_AT_MOST", 3)


def made(directory: Path, seed: int = 0, rounds: int = 8) -> tuple[LongArchive, str]:
    long = compacted(LongArchive(opened([LocalDestination(directory)]), seed), rounds)
    return long, str(directory / PREFIX)


def text(position: int) -> str:
    return positions.text(Position(position))


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row.id, row.v) for row in frame.select("id", "v").collect())


def held(state: State) -> list[tuple[Any, ...]]:
    return sorted((int(key), line.decode().split('"')[5]) for key, line in state.items())


def apply(changes: list[Row], state: dict[int, str]) -> None:
    """Apply changes in their order; each finds the row that it replaces."""
    for row in sorted(changes, key=lambda row: positions.parse(row.position)):
        if row.old is not None:
            assert state.pop(row.old.id) == row.old.v
        if row.new is not None:
            state[row.new.id] = row.new.v


def hidden(long: LongArchive) -> list[int]:
    """Boundaries that the manifest's own diffs don't have."""
    manifest = long.archive.manifest
    assert manifest is not None
    shown = {artifact.to_position for artifact in manifest.artifacts}
    found = [position for position in long.states if position not in shown]
    assert len(found) > 40
    return found


def test_the_table_at_boundaries_inside(spark: SparkSession, tmp_path: Path) -> None:
    long, uri = made(tmp_path)
    for position in hidden(long)[::25]:
        frame = read_table(spark, uri, text(position), exact=True)
        assert rows_of(frame) == held(long.states[position])


def test_changes_between_boundaries_inside(spark: SparkSession, tmp_path: Path) -> None:
    long, uri = made(tmp_path, seed=2)
    inside = hidden(long)
    start, end = inside[3], inside[-5]
    ends = {"after": text(start), "until": text(end), "exact": True}
    changes = read_changes(spark, uri, **ends).collect()
    in_steps = {positions.parse(row.position) for row in changes}
    assert in_steps <= {position for position in long.states if start < position <= end}
    assert len(in_steps) > 50, "step by step, as if none were merged"
    net = read_changes(spark, uri, merged=True, **ends).collect()
    assert len({row.position for row in net}) < len(in_steps) / 3, "from merged diffs"
    for each in (changes, net):
        state = dict(held(long.states[start]))
        apply(each, state)
        assert sorted(state.items()) == held(long.states[end])


def test_a_synced_copy_goes_on_from_a_boundary_that_was_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    long, uri = made(tmp_path / "archive", rounds=1)
    copy = MergedCopy(spark, tmp_path / "copy")
    copy.sync(uri)
    at = long.head
    compacted(long, 7)
    assert at in hidden(long)
    assert isinstance(copy.sync(uri), Merge)
    assert rows_of(copy.rows()) == held(long.states[long.head])


def test_several_tables_at_a_moment_inside(spark: SparkSession, tmp_path: Path) -> None:
    one, first = made(tmp_path / "one", 1)
    two, second = made(tmp_path / "two", 2)
    both = {"one": first, "two": second}
    for position in hidden(one)[2::20]:
        found = read_tables(spark, both, text(position))
        assert found.position == text(position)
        assert rows_of(found["one"]) == held(one.states[position])
        assert rows_of(found["two"]) == held(two.states[position])


@pytest.mark.thorough
def test_a_stream_goes_on_from_a_boundary_that_was_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    long, uri = made(tmp_path / "archive", rounds=1)
    at, state = long.head, dict(held(long.states[10]))
    stream = Stream(spark, uri, tmp_path, after=text(10))
    for _ in range(2):
        stream.run()
        compacted(long, 4)
    assert at in hidden(long)
    long_head = max(p for p in long.states if p <= at + 400)
    apply(stream.rows().collect(), state)
    assert sorted(state.items()) == held(long.states[long_head])
