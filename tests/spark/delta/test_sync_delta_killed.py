"""Jobs that are killed in a commit and after it, and two at once: each change once, or an error."""

import json
import shutil
from pathlib import Path

from pyspark.sql import SparkSession

from laredo_spark import read_table
from laredo_spark.sync.sync import SyncOutcome
from tests.support import lakehouse
from tests.support.archive.building import Builder
from tests.support.processes import wait_until


class Target(lakehouse.Target):
    to = "delta"

    def commits(self) -> list[Path]:
        return sorted(Path(self.name).glob("_delta_log/*.json"))

    def is_at_the_base(self) -> bool:
        return len(self.commits()) == 1

    def assert_synced(self) -> None:
        wanted = read_table(self.spark, str(self.archive))
        found = self.spark.read.format("delta").load(self.name)
        assert not wanted.exceptAll(found).count() and not found.exceptAll(wanted).count()
        [operation] = [
            line["commitInfo"]["operation"]
            for line in map(json.loads, self.commits()[-1].read_text().splitlines())
            if "commitInfo" in line
        ]
        assert (len(self.commits()), operation) == (2, "MERGE")


def test_killed_and_two_at_once(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path / "archive").base(0x10, lakehouse.many({}))
    archive = builder.write()
    targets = [
        Target(spark, archive, str(tmp_path / name), tmp_path / name)
        for name in ("both", "committed", "within")
    ]
    both, committed, within = targets
    both.sync()
    for target in (committed, within):
        shutil.copytree(both.name, target.name)
    for target in targets:
        target.expect_new_files()
    builder.diff(0x20, lakehouse.many({7: "new", 8: None, lakehouse.COUNT: "more"})).write()
    started = ("delta", tmp_path / "job", "none", archive)

    lakehouse.stopped_in_a_commit_and_killed_after_the_next(started, both, committed)
    committed.assert_synced()
    assert committed.sync() is SyncOutcome.UNCHANGED
    committed.assert_synced()

    with lakehouse.job(*started, within.name):
        wait_until(within.is_being_written, "a commit begun", lakehouse.PATIENCE_S)
    assert within.is_at_the_base()
    assert within.sync() is SyncOutcome.MERGED
    within.assert_synced()
