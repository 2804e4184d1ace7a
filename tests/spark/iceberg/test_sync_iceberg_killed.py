"""Jobs that are killed at each step, and two at once: each change once, or an error."""

import json
from pathlib import Path

from pyspark.sql import Row, SparkSession

from laredo_spark import read_table
from laredo_spark.sync.sync import SyncOutcome
from tests.support import lakehouse
from tests.support.archive.building import Builder

TAGS = ("epoch_1_at_0_10", "epoch_1_at_0_20")


class Target(lakehouse.Target):
    to = "iceberg"

    def refs(self) -> dict[str, int]:
        self.spark.sql(f"REFRESH TABLE {self.name}")
        rows = self.spark.sql(f"TABLE {self.name}.refs").collect()
        return {row["name"]: row["snapshot_id"] for row in rows}

    def position(self) -> str:
        """Position that main's snapshot records."""
        main = self.refs()["main"]
        rows = self.spark.sql(f"TABLE {self.name}.snapshots").collect()
        summary = next(row["summary"] for row in rows if row["snapshot_id"] == main)
        return str(json.loads(summary["laredo"])["position"])

    def is_at_the_base(self) -> bool:
        return self.position() == "0/10"

    def assert_rows(self, found: list[Row], as_of: str) -> None:
        wanted = read_table(self.spark, str(self.archive), as_of).collect()
        assert sorted(found) == sorted(wanted) and found

    def assert_synced(self) -> None:
        """Each change is there once, and tags have the rows of both boundaries."""
        assert self.position() == "0/20"
        assert {*self.refs()} == {"main", *TAGS}
        for tag, as_of in zip(TAGS, ("0/10", "0/20"), strict=True):
            found = self.spark.sql(f"SELECT * FROM {self.name} VERSION AS OF '{tag}'").collect()
            self.assert_rows(found, as_of)
        self.assert_rows(self.spark.table(self.name).collect(), "0/20")


def test_killed_and_two_at_once(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    builder = Builder(tmp_path / "archive").base(0x10, lakehouse.many({}))
    archive = builder.write()
    targets = [
        Target(spark, archive, f"lake.killed.{name}", warehouse / "killed" / name / "data")
        for name in ("both", "committed", "staged")
    ]
    both, committed, staged = targets
    for target in targets:
        target.sync()
        target.expect_new_files()
    builder.diff(0x20, lakehouse.many({7: "new", 8: None, lakehouse.COUNT: "more"})).write()
    started = ("iceberg", tmp_path / "job", warehouse, archive)

    lakehouse.stopped_in_a_commit_and_killed_after_the_next(started, both, committed)
    # Its rows are there, and its tag isn't.
    assert committed.position() == "0/20" and TAGS[1] not in committed.refs()
    assert committed.sync() is SyncOutcome.UNCHANGED
    assert {*committed.refs()} == {"main", *TAGS}
    committed.assert_rows(spark.table(committed.name).collect(), "0/20")

    with lakehouse.job(*started, staged.name, dies_at="sync.staged") as process:
        assert lakehouse.was_killed(process)
    assert staged.is_at_the_base() and len(staged.refs()) == len(("main", TAGS[0], "its own"))
    assert staged.sync() is SyncOutcome.MERGED
    staged.assert_synced()
