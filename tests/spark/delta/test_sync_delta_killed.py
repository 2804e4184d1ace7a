"""Jobs that are killed in a commit and after it, and two at once: each change once, or an error."""

import json
import os
import shutil
import signal
from pathlib import Path

from pyspark.sql import SparkSession

from laredo_archive import failpoint
from laredo_spark import read_table, sync_table
from laredo_spark.sync.sync import SyncOutcome
from tests.support.archive.building import Builder
from tests.support.archive.many_rows import many
from tests.support.process_group import group
from tests.support.processes import wait_until

JOB = "tests.spark.delta.job"
COUNT = 20_000
PATIENCE_S = 400


class Target:
    """A Delta table as its files show it, whoever writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = self._files()

    def _files(self) -> set[str]:
        return {file.name for file in self.path.glob("part-*.parquet")}

    def is_being_written(self) -> bool:
        return bool(self._files() - self._before)

    def commits(self) -> list[Path]:
        return sorted(self.path.glob("_delta_log/*.json"))


def assert_level(spark: SparkSession, archive: Path, target: Target) -> None:
    """Each change is there once, by one commit."""
    wanted, found = (
        read_table(spark, str(archive)),
        spark.read.format("delta").load(str(target.path)),
    )
    assert not wanted.exceptAll(found).count() and not found.exceptAll(wanted).count()
    [operation] = [
        line["commitInfo"]["operation"]
        for line in map(json.loads, target.commits()[-1].read_text().splitlines())
        if "commitInfo" in line
    ]
    assert (len(target.commits()), operation) == (2, "MERGE")


def test_killed_and_two_at_once(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path / "archive").base(0x10, many(count=COUNT))
    archive = builder.write()
    targets = [tmp_path / name for name in ("both", "committed", "within")]
    sync_table(spark, str(archive), to="delta", target=targets[0])
    for copy in targets[1:]:
        shutil.copytree(targets[0], copy)
    both, committed, within = map(Target, targets)
    builder.diff(0x20, many({7: "new", 8: None, COUNT: "more"}, COUNT)).write()

    died = {failpoint.VARIABLE: "sync.committed"}
    with group(JOB, tmp_path / "one", archive, both.path, committed.path, more=died) as process:
        wait_until(both.is_being_written, "a commit begun", PATIENCE_S)
        os.killpg(process.pid, signal.SIGSTOP)
        assert len(both.commits()) == 1
        done = sync_table(spark, str(archive), to="delta", target=both.path)
        assert done.outcome is SyncOutcome.MERGED
        os.killpg(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        # Ivy, too, writes there.
        said = next(line for line in process.stdout if str(both.path) in line)
        assert f"{both.path}: another sync is writing to it now" in said
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert_level(spark, archive, both)
    assert len(committed.commits()) == 2
    done = sync_table(spark, str(archive), to="delta", target=committed.path)
    assert done.outcome is SyncOutcome.UNCHANGED
    assert_level(spark, archive, committed)

    with group(JOB, tmp_path / "two", archive, within.path) as process:
        wait_until(within.is_being_written, "a commit begun", PATIENCE_S)
    assert len(within.commits()) == 1
    done = sync_table(spark, str(archive), to="delta", target=within.path)
    assert done.outcome is SyncOutcome.MERGED
    assert_level(spark, archive, within)
