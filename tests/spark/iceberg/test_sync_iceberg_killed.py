"""Jobs that are killed at each step, and two at once: each change once, or an error."""

import json
import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from laredo_archive import failpoint
from laredo_spark import read_table, sync_table
from laredo_spark.sync.sync import SyncOutcome
from tests.support.archive.building import Builder
from tests.support.archive.many_rows import many
from tests.support.process_group import group
from tests.support.processes import wait_until

JOB = "tests.spark.iceberg.job"
COUNT = 20_000
PATIENCE_S = 400
TAGS = ("epoch_1_at_0_10", "epoch_1_at_0_20")


class Target:
    """An Iceberg table as its files show it, whoever writes."""

    def __init__(self, spark: SparkSession, warehouse: Path, name: str) -> None:
        self.spark = spark
        self.name = f"lake.killed.{name}"
        self.path = warehouse / "killed" / name
        self._before: set[str] = set()

    def expect_new_files(self) -> None:
        self._before = self._files()

    def _files(self) -> set[str]:
        return {file.name for file in self.path.glob("data/*.parquet")}

    def is_being_written(self) -> bool:
        return bool(self._files() - self._before)

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


def assert_rows(found: list[Row], archive: Path, spark: SparkSession, as_of: str) -> None:
    wanted = read_table(spark, str(archive), as_of).collect()
    assert sorted(found) == sorted(wanted) and found


def assert_equal(spark: SparkSession, archive: Path, target: Target) -> None:
    """Each change is there once, and tags have the rows of both boundaries."""
    assert target.position() == "0/20"
    assert {*target.refs()} == {"main", *TAGS}
    for tag, as_of in zip(TAGS, ("0/10", "0/20"), strict=True):
        found = spark.sql(f"SELECT * FROM {target.name} VERSION AS OF '{tag}'").collect()
        assert_rows(found, archive, spark, as_of)
    assert_rows(spark.table(target.name).collect(), archive, spark, "0/20")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return Builder(tmp_path / "archive").base(0x10, many(count=COUNT)).write()


def test_killed_and_two_at_once(
    spark: SparkSession, warehouse: Path, archive: Path, tmp_path: Path
) -> None:
    names = ("both", "committed", "staged")
    targets = [Target(spark, warehouse, name) for name in names]
    both, committed, staged = targets
    for target in targets:
        sync_table(spark, str(archive), to="iceberg", target=target.name)
        target.expect_new_files()
    builder = Builder(tmp_path / "archive").base(0x10, many(count=COUNT))
    builder.diff(0x20, many({7: "new", 8: None, COUNT: "more"}, COUNT)).write()
    started = (tmp_path / "one", warehouse, archive)

    died = {failpoint.VARIABLE: "sync.committed"}
    with group(JOB, *started, both.name, committed.name, more=died) as process:
        wait_until(both.is_being_written, "rows written", PATIENCE_S)
        os.killpg(process.pid, signal.SIGSTOP)
        assert both.position() == "0/10"
        done = sync_table(spark, str(archive), to="iceberg", target=both.name)
        assert done.outcome is SyncOutcome.MERGED
        os.killpg(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        # Ivy, too, writes there.
        said = next(line for line in process.stdout if both.name in line)
        assert f"{both.name}: another sync is writing to it now" in said
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert_equal(spark, archive, both)
    # Its rows are there, and its tag isn't.
    assert committed.position() == "0/20" and TAGS[1] not in committed.refs()
    done = sync_table(spark, str(archive), to="iceberg", target=committed.name)
    assert done.outcome is SyncOutcome.UNCHANGED
    assert {*committed.refs()} == {"main", *TAGS}
    assert_rows(spark.table(committed.name).collect(), archive, spark, "0/20")

    died = {failpoint.VARIABLE: "sync.staged"}
    with group(JOB, *started, staged.name, more=died) as process:
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert staged.position() == "0/10" and len(staged.refs()) == len(("main", TAGS[0], "its own"))
    done = sync_table(spark, str(archive), to="iceberg", target=staged.name)
    assert done.outcome is SyncOutcome.MERGED
    assert_equal(spark, archive, staged)
