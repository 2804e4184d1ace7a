"""PostgreSQL, both programs, and a copy for each format: the rows of PostgreSQL, after each sync.

Syncs read a copy of the archive that has no files but those that are new since the sync before:
what a merge opens is that, or it fails.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laredo_spark.sync.merging import Merge, Rebuild, SyncAction, UpToDate
from tests.spark.merged_copy import MergedCopy
from tests.support.postgres import Database
from tests.support.postgres_road import (
    DEEP,
    FORMATS,
    ROW,
    Road,
    collected,
    expected,
    in_order,
    insert,
    road,
)


class Copies:
    """The copies of one table, one of each format."""

    def __init__(self, spark: SparkSession, made: Road, table: str, directory: Path) -> None:
        self.made, self.table, self.directory = made, table, directory
        self.seen: set[Path] = set()
        self._copies = {name: MergedCopy(spark, directory / name) for name in FORMATS}

    def sync(self, *, anew: bool = False) -> Sequence[SyncAction]:
        """Bring all up to date; then each has the rows that PostgreSQL has.

        ``anew``: with all files of the archive.
        """
        archive = self._archive(anew=anew)
        options = DEEP if self.table == "kinds" else {}
        done = [copy.sync(archive, format=name, **options) for name, copy in self._copies.items()]
        state = self.made.states[self.table][-1]
        for copy in self._copies.values():
            frame = copy.rows()
            assert frame.columns == state.columns
            assert in_order(collected(frame)) == in_order(expected(state))
        return done

    def _archive(self, *, anew: bool) -> Path:
        place, copy = self.made.place(self.table), self.directory / "archive" / self.table
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir(parents=True)
        shutil.copy(place / "manifest.json", copy)
        there = {file.relative_to(place) for file in place.glob("epoch=*/*.*")}
        for file in there if anew else there - self.seen:
            (copy / file).parent.mkdir(exist_ok=True)
            shutil.copy(place / file, copy / file)
        self.seen |= there
        return copy


def all_are(steps: Sequence[SyncAction], kind: type[SyncAction]) -> bool:
    return all(isinstance(step, kind) for step in steps)


def lose_history(made: Road, database: Database) -> None:
    """The server begins anew, and what was committed meanwhile is in no journal."""
    made.snapshotter.stop()
    made.server.program.stop()
    made.connection.execute("UPDATE kinds SET words = 'unseen'")
    made.connection.execute("SELECT pg_drop_replication_slot(%s)", (database.name,))
    shutil.rmtree(made.server.directory / "state")
    made.server.program.start()
    made.server.program.wait_ready()
    made.snapshotter.start()
    made.snapshotter.wait_ready()


@pytest.mark.thorough
def test_level_with_postgres(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    with road(tmp_path, database) as made:
        kinds = Copies(spark, made, "kinds", tmp_path / "kinds")
        assert all_are(kinds.sync(anew=True), Rebuild)
        made.do("kinds", insert(1), insert(2), insert(3), parameters=ROW)
        assert all_are(kinds.sync(), Merge)
        made.do(
            "kinds",
            "UPDATE kinds SET words = NULL, big = 9007199254740993, doc = '[]' WHERE id = 2",
            "DELETE FROM kinds WHERE id = 3",
        )
        made.do(
            "kinds",
            "INSERT INTO kinds (id, real8) SELECT n, n / 7.0 FROM generate_series(10, 60) n",
        )
        assert all_are(kinds.sync(), Merge)
        made.re_base("kinds")
        kinds.sync()
        made.do("kinds", "UPDATE kinds SET real8 = real8 * 3 WHERE id % 7 = 0")
        assert all_are(kinds.sync(), Merge) and all_are(kinds.sync(), UpToDate)
        made.do("kinds", "TRUNCATE kinds", insert(7), parameters=ROW)
        assert _reasons(kinds.sync(), "truncated")
        made.do("kinds", "ALTER TABLE kinds ADD added numeric(5,1)", insert(8), parameters=ROW)
        assert _reasons(kinds.sync(anew=True), "columns")
        made.do("kinds", "UPDATE kinds SET added = 1234.5")
        assert all_are(kinds.sync(), Merge)
        lose_history(made, database)
        made.do("kinds", insert(9), parameters=ROW)
        assert _reasons(kinds.sync(anew=True), "continue")
        made.do("kinds", "DELETE FROM kinds WHERE id = 7")
        assert all_are(kinds.sync(), Merge)

        pairs = Copies(spark, made, "pairs", tmp_path / "pairs")
        made.do(
            "pairs",
            "INSERT INTO pairs SELECT n, chr(97 + n % 3) || '\"', n FROM generate_series(1, 30) n",
        )
        pairs.sync(anew=True)
        made.do(
            "pairs",
            "UPDATE pairs SET at = at + 100 WHERE at % 5 = 0",
            "DELETE FROM pairs WHERE at = 7",
        )
        assert all_are(pairs.sync(), Merge)


def _reasons(steps: Sequence[SyncAction], reason: str) -> bool:
    return all(isinstance(step, Rebuild) and reason in step.reason for step in steps)
