"""``sync_table(to="delta")``: level at each step, the position in the commit that has the rows."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession

from laredo_spark.cli import main
from laredo_spark.sync.delta import AGED_S, DeltaLog
from laredo_spark.sync.errors import TargetBusy, TargetRefused
from laredo_spark.sync.sync import SyncOutcome
from tests.support import lakehouse
from tests.support.archive.building import Builder
from tests.support.evolving_table import rows_after_each_step
from tests.support.postgres import Database
from tests.support.spark_reading import names


class DeltaKept(lakehouse.Kept):
    to = "delta"

    def found(self, tag: str | None = None) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.target))

    def commits(self) -> list[Row]:
        return DeltaTable.forPath(self.spark, str(self.target)).history().collect()

    def said(self) -> tuple[int, str]:
        described = json.loads(self.commits()[0]["userMetadata"])["laredo"]
        return described["epoch"], described["position"]


@pytest.fixture
def kept(spark: SparkSession, tmp_path: Path) -> DeltaKept:
    return DeltaKept(spark, tmp_path, tmp_path / "target")


def test_level_at_each_boundary(kept: DeltaKept) -> None:
    lakehouse.equal_at_each_boundary(kept, tags=False)
    operations = [commit["operation"] for commit in kept.commits()]
    assert operations[2] == "MERGE" and len(operations) == 6


def test_only_new_diffs_are_read(kept: DeltaKept) -> None:
    assert lakehouse.only_new_diffs_are_read(kept).files_written == 1


def test_through_epochs(kept: DeltaKept) -> None:
    lakehouse.through_epochs(kept, tags=False)


@pytest.mark.parametrize("why", lakehouse.REASONS)
def test_written_anew(kept: DeltaKept, why: str) -> None:
    lakehouse.written_anew(kept, why)


def test_a_time_without_a_zone_is_added(kept: DeltaKept) -> None:
    lakehouse.a_time_without_a_zone_is_added(kept)


def test_through_changes_of_columns_and_key(
    kept: DeltaKept, database: Database, tmp_path: Path
) -> None:
    rows_after_each_step(kept, database, tmp_path)


def test_keys_that_are_one_value_to_spark(kept: DeltaKept, tmp_path: Path) -> None:
    lakehouse.keys_that_are_one_value_to_spark(kept, tmp_path)


def test_where_it_is_stays_in_the_log(kept: DeltaKept) -> None:
    """Delta forgets old commits when there are later ones, of whoever."""
    kept.sync()
    [commit] = kept.target.glob("_delta_log/*.json")
    week_ago = time.time() - AGED_S - 60
    os.utime(commit, (week_ago, week_ago))
    assert kept.sync().outcome is SyncOutcome.UNCHANGED and len(kept.commits()) == 2
    assert kept.sync().outcome is SyncOutcome.UNCHANGED and len(kept.commits()) == 2
    assert kept.said() == (1, "0/10")


def test_what_someone_else_did_is_undone(kept: DeltaKept) -> None:
    kept.sync()
    table = DeltaTable.forPath(kept.spark, str(kept.target))
    table.update("id = 1", {"name": "'mine'"})
    assert kept.sync().reason == "another program has written to it (UPDATE, version 1)"
    kept.assert_equal()
    table.optimize().executeCompaction()
    assert kept.sync().outcome is SyncOutcome.UNCHANGED
    table.restoreToVersion(1)
    assert "RESTORE" in kept.sync().reason
    kept.assert_equal()


def test_other_rows_than_the_manifest_says(kept: DeltaKept) -> None:
    """They are taken back, and the target says where it is; also where there was nothing."""
    lakehouse.other_rows_than_the_manifest_says(kept, 0)
    assert kept.sync().reason == "nothing was synced to it yet"
    kept.assert_equal()
    kept.change(0x20, {1: None})
    lakehouse.other_rows_than_the_manifest_says(kept, 1)
    assert kept.said() == (1, "0/10")
    assert kept.sync().outcome is SyncOutcome.MERGED
    kept.assert_equal()


def test_what_is_refused(kept: DeltaKept, tmp_path: Path) -> None:
    kept.spark.range(3).write.format("delta").save(str(kept.target))
    with pytest.raises(TargetRefused, match="without a commit of laredo's"):
        kept.sync(rebuild=True)
    kept.target = tmp_path / "other"
    kept.target.mkdir()
    (kept.target / "mine.csv").write_text("x")
    with pytest.raises(TargetRefused, match=r"contains other files \(mine.csv\)"):
        kept.sync()
    (kept.target / "mine.csv").unlink()
    kept.sync()
    lakehouse.an_older_archive_and_another_table_are_refused(kept, tmp_path)


def test_planned_before_another_ones_commit(kept: DeltaKept) -> None:
    """Delta passes over what is written on an older log, which isn't taken for done."""
    kept.sync()
    log = DeltaLog(kept.spark, str(kept.target))
    held = log.held()
    assert held.state is not None
    kept.change(0x20, {1: "a"})
    kept.sync()
    planned = replace(held.state, version=2, position=0x18)
    nothing = kept.spark.read.format("delta").load(str(kept.target))
    with log.committing(planned, planned.table, held):
        nothing.write.format("delta").mode("append").save(str(kept.target))
    with pytest.raises(TargetBusy, match="another sync"):
        log.committed(planned)
    kept.assert_equal()
    assert kept.said() == (1, "0/20")


def test_a_users_settings_and_writes_are_left_alone(
    kept: DeltaKept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users table"

    def write() -> None:
        kept.spark.range(1).write.format("delta").mode("append").save(str(users))

    setting = "spark.databricks.delta.commitInfo.userMetadata"
    lakehouse.a_users_settings_and_writes_are_left_alone(kept, setting, write, monkeypatch)
    logged = [
        json.loads(line)
        for file in users.glob("_delta_log/*.json")
        for line in file.read_text().splitlines()
    ]
    described = [line["commitInfo"]["userMetadata"] for line in logged if "commitInfo" in line]
    assert described == ["mine"] * 3
    assert not [line for line in logged if "txn" in line]
    assert kept.spark.read.format("delta").load(str(users)).count() == len(described)


def test_the_command_syncs_a_catalog_and_a_table(kept: DeltaKept, tmp_path: Path) -> None:
    """One that fails doesn't stop the others."""
    archive, file = kept.archive.write(), tmp_path / "sync.conf"
    described = {"archives": {"users/": {"table": "public.users", "group": "g"}}, "groups": {}}
    catalog = {"catalog_version": 1, "updated_at": "2026-06-03T12:00:00Z", **described}
    (archive.parent / "catalog.json").write_text(json.dumps(catalog))
    damaged = Builder(tmp_path / "damaged").base(0x10, names(lakehouse.FIRST)).write()
    [cut] = damaged.glob("epoch=1/*.jsonl")
    cut.write_bytes(cut.read_bytes()[:-50])
    file.write_text(
        f"""
        sync {{
          parallel = 2
          tables = [ {{ archive = "{damaged}", to = delta, target = "{tmp_path}/one" }}
                     {{ archive = "{archive}", to = delta, target = "{kept.target}" }} ]
          catalogs = [ {{ catalog = "{archive.parent}", to = delta, target = "{tmp_path}/all" }} ]
        }}
        """
    )

    def run(*more: str) -> tuple[int, str, str]:
        ended = CliRunner().invoke(main, ["sync", str(file), *more])
        return ended.exit_code, ended.stdout, ended.stderr

    code, out, err = run()
    assert code == 1 and out.count("rebuilt (nothing was synced to it yet), at 0/10") == 2, err
    assert f"{cut.name}: cut off" in err and err.count("laredo-spark: ") == 1
    kept.assert_equal()
    both = ("--target", str(kept.target), "--target", f"{tmp_path}/all/public.users")
    code, out, _ = run(*both)
    assert code == 0 and out.count("unchanged, at 0/10 (epoch 1), 100 rows") == 2
    assert run(*both[:2], "--rebuild")[1].count("rebuilt (rebuild was requested)") == 1
