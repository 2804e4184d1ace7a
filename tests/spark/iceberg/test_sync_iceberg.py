"""``sync_table(to="iceberg")``: equal rows at each step, the position in the snapshot with them."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from laredo_archive.manifest import merged
from laredo_archive.storage.local import LocalDestination
from laredo_spark import sync_table
from laredo_spark.sync.errors import IcebergMissing, TargetBusy, TargetDiffers, TargetRefused
from laredo_spark.sync.iceberg import IcebergTable
from laredo_spark.sync.sync import SyncOutcome
from tests.support import lakehouse
from tests.support.archive.archiving import PREFIX, opened
from tests.support.archive.long_archive import LongArchive, compacted
from tests.support.evolving_table import rows_after_each_step
from tests.support.postgres import Database
from tests.support.spark_reading import Reading


class IcebergKept(lakehouse.Kept):
    to = "iceberg"

    def found(self, tag: str | None = None) -> DataFrame:
        version = f" VERSION AS OF '{tag}'" if tag else ""
        return self.spark.sql(f"SELECT * FROM {self.target}{version}")

    def commits(self) -> list[Row]:
        """Snapshots."""
        return self.spark.sql(f"TABLE {self.target}.snapshots ORDER BY committed_at").collect()

    def refs(self) -> dict[str, int]:
        found = self.spark.sql(f"TABLE {self.target}.refs").collect()
        return {row["name"]: row["snapshot_id"] for row in found}

    def said(self) -> tuple[int, str]:
        described = json.loads(self.commits()[-1]["summary"]["laredo"])
        return described["epoch"], described["position"]


@pytest.fixture
def kept(spark: SparkSession, tmp_path: Path, catalog: str) -> IcebergKept:
    return IcebergKept(spark, tmp_path, f"{catalog}.db.{tmp_path.name}")


by_either_catalog = pytest.mark.parametrize("catalog", ["hadoop", "rest"], indirect=True)


@by_either_catalog
def test_equal_at_each_boundary(kept: IcebergKept) -> None:
    """Each sync is a tag, too; the first is the table's own snapshot, and that with the rows."""
    lakehouse.equal_at_each_boundary(kept, tags=True)
    positions = ("10", "20", "30", "70", "80", "90")
    assert {*kept.refs()} == {"main", *(f"epoch_1_at_0_{position}" for position in positions)}
    assert len(kept.commits()) == len(("its own", *positions))
    first = kept.found("epoch_1_at_0_10").collect()
    assert {row.id: row.name for row in first} == lakehouse.FIRST


def test_only_new_diffs_are_read(kept: IcebergKept) -> None:
    lakehouse.only_new_diffs_are_read(kept)


def test_only_merged_diffs_are_read(
    spark: SparkSession, tmp_path: Path, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that is far behind needs few objects: what was merged into them may be gone."""
    monkeypatch.setattr(merged, "LISTED_AT_MOST", 3)
    long = LongArchive.begun(opened([LocalDestination(tmp_path / "archive")]))
    archive = tmp_path / "archive" / PREFIX
    target = f"{catalog}.db.{tmp_path.name}"
    sync_table(spark, str(archive), to="iceberg", target=target)
    compacted(long)
    manifest = long.archive.manifest
    assert manifest is not None
    named = {entry.key for each in manifest.artifacts for entry in each.formats.values()}
    parts = [
        file
        for file in archive.rglob("epoch=*/*.jsonl")
        if f"{PREFIX}{file.relative_to(archive).as_posix()}" not in named
    ]
    assert len(parts) > 3 * len(manifest.artifacts)
    for file in parts:
        file.unlink()
    done = sync_table(spark, str(archive), to="iceberg", target=target)
    assert done.outcome is SyncOutcome.MERGED, done
    found = sorted((row.id, row.v) for row in spark.table(target).select("id", "v").collect())
    wanted = {int(key): json.loads(line)["v"] for key, line in long.states[long.head].items()}
    assert found == sorted(wanted.items())


@by_either_catalog
def test_through_epochs(kept: IcebergKept) -> None:
    lakehouse.through_epochs(kept, tags=True)


@pytest.mark.parametrize(
    ("why", "catalog"),
    [*((why, "hadoop") for why in lakehouse.REASONS), ("columns", "rest")],
    indirect=["catalog"],
)
def test_written_anew(kept: IcebergKept, why: str) -> None:
    lakehouse.written_anew(kept, why)
    if why in ("gap", "columns"):
        first = kept.found("epoch_1_at_0_10")
        assert first.columns == ["id", "name", "doc"]
        assert {row.id: row.name for row in first.collect()} == lakehouse.FIRST


def test_a_time_without_a_zone_is_added(kept: IcebergKept) -> None:
    lakehouse.a_time_without_a_zone_is_added(kept)


@pytest.mark.thorough
def test_through_changes_of_columns_and_key(
    kept: IcebergKept, database: Database, tmp_path: Path
) -> None:
    rows_after_each_step(kept, database, tmp_path)


def test_keys_that_are_one_value_to_spark(kept: IcebergKept, tmp_path: Path) -> None:
    lakehouse.keys_that_are_one_value_to_spark(kept, tmp_path)


def test_what_someone_else_did_is_undone(kept: IcebergKept) -> None:
    kept.sync()
    kept.spark.sql(f"UPDATE {kept.target} SET name = 'mine' WHERE id = 1")
    assert "another program has written to it (overwrite, snapshot" in kept.sync().reason
    kept.assert_equal()
    name = kept.target.removeprefix("lake.")
    kept.spark.sql(
        f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all',"
        " 'true'))"
    )
    assert kept.commits()[-1]["operation"] == "replace"
    assert kept.sync().outcome is SyncOutcome.UNCHANGED
    kept.spark.sql(f"ALTER TABLE {kept.target} DROP COLUMN doc")
    assert "columns were altered" in kept.sync().reason
    kept.assert_equal()


def test_other_rows_than_the_manifest_says(kept: IcebergKept) -> None:
    """They are never seen, and the target says where it is; also where there was nothing."""
    lakehouse.other_rows_than_the_manifest_says(kept, 0)
    assert {*kept.refs()} == {"main"}
    assert kept.sync().reason == "nothing was synced to it yet"
    kept.assert_equal()
    kept.change(0x20, {1: None})
    before = kept.refs()
    lakehouse.other_rows_than_the_manifest_says(kept, 1)
    assert kept.refs() == before
    archive = kept.archive.directory / "users"
    with pytest.raises(TargetDiffers, match=r"has 7 rows .* wrote 99"):
        kept.sync_as_written(archive, special_values="null")
    assert kept.refs() == before and kept.found().count() == 100
    assert kept.sync().outcome is SyncOutcome.MERGED
    kept.assert_equal()


def test_what_is_refused(kept: IcebergKept, tmp_path: Path) -> None:
    kept.spark.range(3).writeTo(kept.target).using("iceberg").create()
    with pytest.raises(TargetRefused, match="that no sync has made"):
        kept.sync(rebuild=True)
    kept.target = "/data/users"
    with pytest.raises(TargetRefused, match=r"CATALOG.NAMESPACE.TABLE"):
        kept.sync()
    kept.target = "spark_catalog.default.users"
    with pytest.raises(IcebergMissing, match=r"spark.sql.catalog.spark_catalog isn't"):
        kept.sync()
    kept.target = "lake.`odd ``space`.`a.b 'c`"
    kept.sync()
    kept.assert_equal()
    lakehouse.an_older_archive_and_another_table_are_refused(kept, tmp_path)


@by_either_catalog
def test_planned_before_another_ones_commit(kept: IcebergKept) -> None:
    """Main isn't moved to a snapshot of an earlier plan, and a new table isn't put over another."""
    kept.sync()
    table = IcebergTable(kept.spark, kept.target)
    held = table.held()
    assert held.state is not None
    kept.change(0x20, {1: "a"})
    kept.sync()
    before = kept.refs()
    frame = kept.spark.table(kept.target)
    with pytest.raises(TargetBusy, match="another sync"), table.branch(held.state, held) as branch:
        frame.limit(0).writeTo(table.name_of(branch)).append()
        table.publish(branch, held)
    with pytest.raises(TargetBusy, match="another sync"):
        table.replace(frame, held.state, held)
    with pytest.raises(TargetBusy, match="another sync"):
        table.create(frame.limit(0), held.state.shape)
    assert kept.refs() == before
    kept.assert_equal()


def test_a_users_settings_and_writes_are_left_alone(
    kept: IcebergKept, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = f"{kept.target}_of_user"
    kept.spark.range(1).writeTo(users).using("iceberg").create()

    def write() -> None:
        kept.spark.range(1).writeTo(users).append()

    setting = "spark.sql.iceberg.snapshot-property.author"
    lakehouse.a_users_settings_and_writes_are_left_alone(kept, setting, write, monkeypatch)
    found = kept.spark.sql(f"TABLE {users}.snapshots ORDER BY committed_at").collect()
    authors = [(row["summary"].get("author"), "laredo" in row["summary"]) for row in found]
    assert authors == [(None, False), *[("mine", False)] * 3]


@by_either_catalog
def test_a_lost_tag_is_made_again(kept: IcebergKept) -> None:
    kept.sync()
    before = kept.refs()
    kept.spark.sql(f"ALTER TABLE {kept.target} DROP TAG epoch_1_at_0_10")
    kept.spark.sql(f"ALTER TABLE {kept.target} CREATE BRANCH laredo_sync_0123abcd")
    kept.spark.sql(f"ALTER TABLE {kept.target} CREATE BRANCH mine")
    assert kept.sync().outcome is SyncOutcome.UNCHANGED
    assert kept.refs()["epoch_1_at_0_10"] == before["epoch_1_at_0_10"]
    kept.change(0x20, {1: "a"})
    kept.sync()
    assert {*kept.refs()} == {"main", "mine", "epoch_1_at_0_10", "epoch_1_at_0_20"}
    kept.assert_equal()


def test_an_unfinished_first_sync(kept: IcebergKept) -> None:
    """The table was made, and the job was killed before it had rows."""
    table = IcebergTable(kept.spark, kept.target)
    frame = kept.spark.createDataFrame([], Reading(kept.archive.write()).schema)
    table.create(frame, "others")
    assert kept.sync().reason == "nothing was synced to it yet"
    kept.assert_equal()
