"""``sync_table(to="iceberg")``: equal rows at each step, the position in the snapshot with them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from laredo_archive.manifest import merged
from laredo_archive.storage.local import LocalDestination
from laredo_model.column import Column
from laredo_spark import sync_table
from laredo_spark.sync.errors import (
    IcebergMissing,
    OlderThanTarget,
    TargetBusy,
    TargetDiffers,
    TargetRefused,
)
from laredo_spark.sync.iceberg import IcebergTable
from laredo_spark.sync.sync import Synced, SyncOutcome
from tests.support.archive.archiving import PREFIX, opened
from tests.support.archive.building import HISTORY, Builder
from tests.support.archive.long_archive import LongArchive
from tests.support.spark_reading import Reading, manifest_of, names

FIRST = {number: f"name {number}" for number in range(100)}


class Kept:
    """An archive and the Iceberg table that is kept up to date with it."""

    def __init__(self, spark: SparkSession, directory: Path, target: str) -> None:
        self.spark = spark
        self.archive = Builder(directory / "archive").base(0x10, names(FIRST))
        self.target = target

    def sync(self, **given: Any) -> Synced:
        return sync_table(
            self.spark, str(self.archive.write()), to="iceberg", target=self.target, **given
        )

    def change(self, position: int, changed: Mapping[int, str | None], **given: Any) -> None:
        rows = {**FIRST, **changed}
        state = names({number: name for number, name in rows.items() if name is not None})
        self.archive.diff(position, state, **given)

    def assert_equal(self, tag: str | None = None) -> None:
        """The newest rows, or those of a tag, are the ones that the archive's reader has."""
        wanted = Reading(self.archive.write())
        version = f" VERSION AS OF '{tag}'" if tag else ""
        found = self.spark.sql(f"SELECT * FROM {self.target}{version}")
        assert found.schema == wanted.schema
        rows = sorted((row.asDict() for row in found.collect()), key=lambda row: row["id"])
        assert rows == sorted(wanted.rows(), key=lambda row: row["id"])
        assert len(rows) == len(self.archive.states[-1])

    def snapshots(self) -> list[Row]:
        return self.spark.sql(f"TABLE {self.target}.snapshots ORDER BY committed_at").collect()

    def refs(self) -> dict[str, int]:
        found = self.spark.sql(f"TABLE {self.target}.refs").collect()
        return {row["name"]: row["snapshot_id"] for row in found}

    def said(self) -> tuple[int, str]:
        """Epoch and position of the newest snapshot."""
        described = json.loads(self.snapshots()[-1]["summary"]["laredo"])
        return described["epoch"], described["position"]


@pytest.fixture
def kept(spark: SparkSession, tmp_path: Path, catalog: str) -> Kept:
    return Kept(spark, tmp_path, f"{catalog}.db.{tmp_path.name}")


by_either_catalog = pytest.mark.parametrize("catalog", ["hadoop", "rest"], indirect=True)


@by_either_catalog
def test_equal_at_each_boundary(kept: Kept) -> None:
    """Each sync is one snapshot, which says where its rows are, and a tag."""
    assert kept.sync().outcome is SyncOutcome.REBUILT
    # The table's own, without rows, and that with the rows.
    assert (len(kept.snapshots()), kept.said()) == (2, (1, "0/10"))
    for number, (position, changed) in enumerate(
        ((0x20, {7: "new", 8: None}), (0x30, {7: None, 999: "only here"})), 3
    ):
        kept.change(position, changed)
        done = kept.sync()
        assert (done.outcome, done.position) == (SyncOutcome.MERGED, position)
        assert (len(kept.snapshots()), kept.said()) == (number, (1, f"0/{position:X}"))
        kept.assert_equal()
        kept.assert_equal(f"epoch_1_at_0_{position:X}")
    assert kept.sync().outcome is SyncOutcome.UNCHANGED
    kept.change(0x50, {1: "once", 2: None})
    kept.change(0x60, {1: "twice", 2: "back"})
    kept.change(0x70, {1: "twice", 2: "back", 3: None})
    assert kept.sync().outcome is SyncOutcome.MERGED
    kept.assert_equal()
    kept.archive.diff(0x80, kept.archive.states[-1])
    assert kept.sync().outcome is SyncOutcome.MERGED and kept.said() == (1, "0/80")
    kept.archive.diff(0x90, names({1: "alone"}), truncate=True)
    assert kept.sync().reason == "the table was truncated"
    kept.assert_equal()
    positions = ("10", "20", "30", "70", "80", "90")
    assert {*kept.refs()} == {"main", *(f"epoch_1_at_0_{position}" for position in positions)}
    first = kept.spark.sql(f"SELECT * FROM {kept.target} VERSION AS OF 'epoch_1_at_0_10'")
    assert {row.id: row.name for row in first.collect()} == FIRST


def test_only_new_diffs_are_read(kept: Kept) -> None:
    kept.change(0x20, {7: "new"})
    kept.sync()
    for file in kept.archive.write().glob("epoch=1/*"):
        file.unlink()
    kept.change(0x30, {7: "newer", 8: None})
    done = kept.sync()
    assert (done.outcome, done.rows) == (SyncOutcome.MERGED, 99)


def test_only_merged_diffs_are_read(
    spark: SparkSession, tmp_path: Path, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that is far behind needs few objects: what was merged into them may be gone."""
    monkeypatch.setattr(merged, "LISTED_AT_MOST", 3)
    long = LongArchive(opened([LocalDestination(tmp_path / "archive")]))
    long.begin()
    archive = tmp_path / "archive" / PREFIX
    target = f"{catalog}.db.{tmp_path.name}"
    sync_table(spark, str(archive), to="iceberg", target=target)
    for _ in range(8):
        long.grow(10)
        long.compacted()
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
def test_through_epochs(kept: Kept) -> None:
    kept.sync()
    kept.change(0x20, {1: "a"})
    kept.archive.base(0x20, kept.archive.states[-1])
    kept.change(0x30, {1: "b"})
    done = kept.sync()
    assert (done.outcome, kept.said()) == (SyncOutcome.MERGED, (2, "0/30"))
    kept.assert_equal()
    # Nothing changes, each base follows the one before, and retention keeps one epoch.
    for epoch in (3, 4):
        kept.archive.base(0x30, kept.archive.states[-1])
        assert kept.sync().outcome is SyncOutcome.UNCHANGED and kept.said() == (epoch, "0/30")
        kept.assert_equal(f"epoch_{epoch}_at_0_30")
        kept.archive.artifacts = kept.archive.artifacts[-1:]
    before = len(kept.snapshots())
    assert kept.sync().outcome is SyncOutcome.UNCHANGED and len(kept.snapshots()) == before
    kept.change(0x40, {1: "c"})
    assert kept.sync().outcome is SyncOutcome.MERGED
    kept.assert_equal()


@pytest.mark.parametrize(
    ("why", "catalog"),
    [*((why, "hadoop") for why in ("gap", "history", "columns", "options")), ("columns", "rest")],
    indirect=["catalog"],
)
def test_written_anew(kept: Kept, why: str) -> None:
    kept.sync()
    before = kept.snapshots()
    if why == "history":
        kept.archive.history = HISTORY.replace(":1:", ":2:")
    rows = names({**FIRST, 1: "a"})
    if why == "columns":
        kept.archive.columns += (Column("added", "numeric", (5 << 16 | 1) + 4, True, 4),)
        rows = {key: line[:-1] + b',"added":"1.5"}' for key, line in names(FIRST).items()}
    if why != "options":
        kept.archive.base(0x10 if why == "history" else 0x30, rows, continues=False)
    done = kept.sync(**({"special_values": "null"} if why == "options" else {}))
    reasons = {
        "gap": "doesn't continue",
        "history": "new history",
        "columns": "columns",
        "options": "options",
    }
    assert done.outcome is SyncOutcome.REBUILT and reasons[why] in done.reason
    kept.assert_equal()
    assert len(kept.snapshots()) == len(before) + 1
    if why in ("gap", "columns"):
        first = kept.spark.sql(f"SELECT * FROM {kept.target} VERSION AS OF 'epoch_1_at_0_10'")
        assert first.columns == ["id", "name", "doc"]
        assert {row.id: row.name for row in first.collect()} == FIRST


def test_keys_that_are_one_value_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    """1.0 becomes 1.00 by DELETE and INSERT of two keys, which are one row to MERGE."""
    columns = (Column("k", "numeric", -1, False, 1, 1), Column("v", "int4", -1, False, 2))
    builder = Builder(tmp_path / "archive", columns=columns, key_fields=("k",))

    def state(*keys: str) -> dict[bytes, bytes]:
        return {key.encode(): f'{{"k":"{key}","v":{len(key)}}}'.encode() for key in sorted(keys)}

    archive, target = builder.base(0x10, state("1.0", "2.0")).write(), "lake.one_value.target"
    given: dict[str, Any] = {"to": "iceberg", "target": target, "numeric_as": "decimal(38,18)"}
    sync_table(spark, str(archive), **given)
    builder.diff(0x20, state("1.00", "2.0")).write()
    assert sync_table(spark, str(archive), **given).outcome is SyncOutcome.MERGED
    found = spark.table(target).collect()
    assert sorted((int(row.k), row.v) for row in found) == [(1, 4), (2, 3)]


def test_what_someone_else_did_is_undone(kept: Kept) -> None:
    kept.sync()
    kept.spark.sql(f"UPDATE {kept.target} SET name = 'mine' WHERE id = 1")
    assert "another program has written to it (overwrite, snapshot" in kept.sync().reason
    kept.assert_equal()
    name = kept.target.removeprefix("lake.")
    kept.spark.sql(
        f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all',"
        " 'true'))"
    )
    assert kept.snapshots()[-1]["operation"] == "replace"
    assert kept.sync().outcome is SyncOutcome.UNCHANGED
    kept.spark.sql(f"ALTER TABLE {kept.target} DROP COLUMN doc")
    assert "columns were altered" in kept.sync().reason
    kept.assert_equal()


def test_other_rows_than_the_manifest_says(kept: Kept) -> None:
    """They are never seen, and the target says where it is; also where there was nothing."""
    archive = kept.archive.write()
    manifest_of(archive, lambda described: described["artifacts"][0].update(rows=7))
    given: dict[str, Any] = {"to": "iceberg", "target": kept.target}
    with pytest.raises(TargetDiffers, match=r"has 7 rows .* has 100"):
        sync_table(kept.spark, str(archive), **given)
    assert kept.spark.table(kept.target).count() == 0 and {*kept.refs()} == {"main"}
    assert kept.sync().reason == "nothing was synced to it yet"
    kept.assert_equal()
    kept.change(0x20, {1: None})
    archive = kept.archive.write()
    manifest_of(archive, lambda described: described["artifacts"][1].update(rows=7))
    before = kept.refs()
    with pytest.raises(TargetDiffers, match=r"has 7 rows .* has 99"):
        sync_table(kept.spark, str(archive), **given)
    assert kept.refs() == before and kept.spark.table(kept.target).count() == 100
    with pytest.raises(TargetDiffers, match=r"has 7 rows .* has 99"):
        sync_table(kept.spark, str(archive), special_values="null", **given)
    assert kept.refs() == before and kept.spark.table(kept.target).count() == 100
    assert kept.sync().outcome is SyncOutcome.MERGED
    kept.assert_equal()


def test_what_is_refused(kept: Kept, tmp_path: Path) -> None:
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
    older = Kept(kept.spark, tmp_path / "older", kept.target)
    older.archive = Builder(tmp_path / "older").base(0x8, names(FIRST))
    with pytest.raises(OlderThanTarget, match=r"is at 0/10, .* ends at 0/8"):
        older.sync()
    manifest_of(kept.archive.write(), lambda described: described.update(table="public.orders"))
    with pytest.raises(TargetRefused, match=r"holds public.users, .* is of public.orders"):
        sync_table(
            kept.spark, str(kept.archive.directory / "users"), to="iceberg", target=kept.target
        )


@by_either_catalog
def test_planned_before_another_ones_commit(kept: Kept) -> None:
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


@by_either_catalog
def test_a_lost_tag_is_made_again(kept: Kept) -> None:
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


def test_an_unfinished_first_sync(kept: Kept) -> None:
    """The table was made, and the job was killed before it had rows."""
    table = IcebergTable(kept.spark, kept.target)
    frame = kept.spark.createDataFrame([], Reading(kept.archive.write()).schema)
    table.create(frame, "others")
    assert kept.sync().reason == "nothing was synced to it yet"
    kept.assert_equal()
