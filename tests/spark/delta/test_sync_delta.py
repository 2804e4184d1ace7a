"""``sync_table(to="delta")``: level at each step, the position in the commit that has the rows."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from delta.tables import DeltaTable
from pyspark.sql import Row, SparkSession

from laredo_model import position as positions
from laredo_model.column import Column
from laredo_spark import sync_table
from laredo_spark.cli import main
from laredo_spark.sync.delta import AGED_S, DeltaLog
from laredo_spark.sync.errors import OlderThanTarget, TargetBusy, TargetDiffers, TargetRefused
from laredo_spark.sync.sync import Synced, SyncOutcome
from tests.support.archive.building import HISTORY, Builder
from tests.support.spark_reading import Reading, manifest_of, names

FIRST = {number: f"name {number}" for number in range(100)}


class Kept:
    """An archive and the Delta table that is kept level with it."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.archive = Builder(directory / "archive").base(0x10, names(FIRST))
        self.target = directory / "target"

    def sync(self, **given: Any) -> Synced:
        return sync_table(
            self.spark, str(self.archive.write()), to="delta", target=self.target, **given
        )

    def change(self, position: int, changed: Mapping[int, str | None], **given: Any) -> None:
        rows = {**FIRST, **changed}
        state = names({number: name for number, name in rows.items() if name is not None})
        self.archive.diff(position, state, **given)

    def assert_level(self) -> None:
        wanted = Reading(self.archive.write())
        found = self.spark.read.format("delta").load(str(self.target))
        assert found.schema == wanted.schema
        rows = sorted((row.asDict() for row in found.collect()), key=lambda row: row["id"])
        assert rows == sorted(wanted.rows(), key=lambda row: row["id"])
        assert len(rows) == len(self.archive.states[-1])

    def commits(self) -> list[Row]:
        return DeltaTable.forPath(self.spark, str(self.target)).history().collect()

    def said(self) -> tuple[int, str]:
        """Epoch and position of the newest commit."""
        described = json.loads(self.commits()[0]["userMetadata"])["laredo"]
        return described["epoch"], described["position"]


@pytest.fixture
def kept(spark: SparkSession, tmp_path: Path) -> Kept:
    return Kept(spark, tmp_path)


def test_level_at_each_boundary(kept: Kept) -> None:
    """Each sync is one commit, which says where its rows are."""
    assert (kept.sync().outcome, len(kept.commits())) == (SyncOutcome.REBUILT, 1)
    for number, (position, changed) in enumerate(
        ((0x20, {7: "new", 8: None}), (0x30, {7: None, 999: "only here"})), 2
    ):
        kept.change(position, changed)
        done = kept.sync()
        assert (done.outcome, done.position) == (SyncOutcome.MERGED, position)
        assert (len(kept.commits()), kept.said()) == (number, (1, positions.text(position)))
        kept.assert_level()
    assert kept.sync().outcome is SyncOutcome.UNCHANGED
    kept.change(0x50, {1: "once", 2: None})
    kept.change(0x60, {1: "twice", 2: "back"})
    kept.change(0x70, {1: "twice", 2: "back", 3: None})
    assert kept.sync().outcome is SyncOutcome.MERGED and kept.commits()[0]["operation"] == "MERGE"
    kept.assert_level()
    kept.archive.diff(0x80, kept.archive.states[-1])
    assert kept.sync().outcome is SyncOutcome.MERGED and kept.said() == (1, "0/80")
    kept.archive.diff(0x90, names({1: "alone"}), truncate=True)
    assert kept.sync().reason == "the table was truncated"
    kept.assert_level()


def test_only_new_diffs_are_read(kept: Kept) -> None:
    kept.change(0x20, {7: "new"})
    kept.sync()
    for file in kept.archive.write().glob("epoch=1/*"):
        file.unlink()
    kept.change(0x30, {7: "newer", 8: None})
    done = kept.sync()
    assert (done.outcome, done.rows, done.files_written) == (SyncOutcome.MERGED, 99, 1)


def test_through_epochs(kept: Kept) -> None:
    kept.sync()
    kept.change(0x20, {1: "a"})
    kept.archive.base(0x20, kept.archive.states[-1])
    kept.change(0x30, {1: "b"})
    done = kept.sync()
    assert (done.outcome, kept.said()) == (SyncOutcome.MERGED, (2, "0/30"))
    kept.assert_level()
    # Nothing changes, each base follows the one before, and retention keeps one epoch.
    for epoch in (3, 4):
        kept.archive.base(0x30, kept.archive.states[-1])
        assert kept.sync().outcome is SyncOutcome.UNCHANGED and kept.said() == (epoch, "0/30")
        kept.archive.artifacts = kept.archive.artifacts[-1:]
    before = len(kept.commits())
    assert kept.sync().outcome is SyncOutcome.UNCHANGED and len(kept.commits()) == before
    kept.change(0x40, {1: "c"})
    assert kept.sync().outcome is SyncOutcome.MERGED
    kept.assert_level()


@pytest.mark.parametrize("why", ["gap", "history", "columns", "options"])
def test_written_anew(kept: Kept, why: str) -> None:
    kept.sync()
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
    kept.assert_level()
    assert len(kept.commits()) == 2


def test_keys_that_are_one_value_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    """1.0 becomes 1.00 by DELETE and INSERT of two keys, which are one row to MERGE."""
    columns = (Column("k", "numeric", -1, False, 1, 1), Column("v", "int4", -1, False, 2))
    builder = Builder(tmp_path / "archive", columns=columns, key_fields=("k",))

    def state(*keys: str) -> dict[bytes, bytes]:
        return {key.encode(): f'{{"k":"{key}","v":{len(key)}}}'.encode() for key in sorted(keys)}

    archive, target = builder.base(0x10, state("1.0", "2.0")).write(), tmp_path / "target"
    given: dict[str, Any] = {"to": "delta", "target": target, "numeric_as": "decimal(38,18)"}
    sync_table(spark, str(archive), **given)
    builder.diff(0x20, state("1.00", "2.0")).write()
    assert sync_table(spark, str(archive), **given).outcome is SyncOutcome.MERGED
    found = spark.read.format("delta").load(str(target)).collect()
    assert sorted((int(row.k), row.v) for row in found) == [(1, 4), (2, 3)]


def test_where_it_is_stays_in_the_log(kept: Kept) -> None:
    """Delta forgets old commits when there are later ones, of whoever."""
    kept.sync()
    [commit] = kept.target.glob("_delta_log/*.json")
    week_ago = time.time() - AGED_S - 60
    os.utime(commit, (week_ago, week_ago))
    assert kept.sync().outcome is SyncOutcome.UNCHANGED and len(kept.commits()) == 2
    assert kept.sync().outcome is SyncOutcome.UNCHANGED and len(kept.commits()) == 2
    assert kept.said() == (1, "0/10")


def test_what_someone_else_did_is_undone(kept: Kept) -> None:
    kept.sync()
    table = DeltaTable.forPath(kept.spark, str(kept.target))
    table.update("id = 1", {"name": "'mine'"})
    assert kept.sync().reason == "another program has written to it (UPDATE, version 1)"
    kept.assert_level()
    table.optimize().executeCompaction()
    assert kept.sync().outcome is SyncOutcome.UNCHANGED
    table.restoreToVersion(1)
    assert "RESTORE" in kept.sync().reason
    kept.assert_level()


def test_other_rows_than_the_manifest_says(kept: Kept) -> None:
    """They are taken back, and the target says where it is; also where there was nothing."""
    archive = kept.archive.write()
    manifest_of(archive, lambda described: described["artifacts"][0].update(rows=7))
    given: dict[str, Any] = {"to": "delta", "target": kept.target}
    with pytest.raises(TargetDiffers, match=r"has 7 rows .* has 100"):
        sync_table(kept.spark, str(archive), **given)
    assert kept.spark.read.format("delta").load(str(kept.target)).count() == 0
    assert kept.sync().reason == "nothing was synced to it yet"
    kept.assert_level()
    kept.change(0x20, {1: None})
    archive = kept.archive.write()
    manifest_of(archive, lambda described: described["artifacts"][1].update(rows=7))
    with pytest.raises(TargetDiffers, match=r"has 7 rows .* has 99"):
        sync_table(kept.spark, str(archive), **given)
    assert kept.spark.read.format("delta").load(str(kept.target)).count() == 100
    assert kept.said() == (1, "0/10")
    assert kept.sync().outcome is SyncOutcome.MERGED
    kept.assert_level()


def test_what_is_refused(kept: Kept, tmp_path: Path) -> None:
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
    older = Kept(kept.spark, tmp_path / "older")
    older.archive = Builder(tmp_path / "older").base(0x8, names(FIRST))
    older.target = kept.target
    with pytest.raises(OlderThanTarget, match=r"is at 0/10, .* ends at 0/8"):
        older.sync()
    manifest_of(kept.archive.write(), lambda described: described.update(table="public.orders"))
    with pytest.raises(TargetRefused, match=r"holds public.users, .* is of public.orders"):
        sync_table(
            kept.spark, str(kept.archive.directory / "users"), to="delta", target=kept.target
        )


def test_planned_before_another_ones_commit(kept: Kept) -> None:
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
    kept.assert_level()
    assert kept.said() == (1, "0/20")


def test_the_command_syncs_a_catalog_and_a_table(kept: Kept, tmp_path: Path) -> None:
    """One that fails doesn't stop the others."""
    archive, file = kept.archive.write(), tmp_path / "sync.conf"
    described = {"archives": {"users/": {"table": "public.users", "group": "g"}}, "groups": {}}
    catalog = {"catalog_version": 1, "updated_at": "2026-06-03T12:00:00Z", **described}
    (archive.parent / "catalog.json").write_text(json.dumps(catalog))
    damaged = Builder(tmp_path / "damaged").base(0x10, names(FIRST)).write()
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
    kept.assert_level()
    both = ("--target", str(kept.target), "--target", f"{tmp_path}/all/public.users")
    code, out, _ = run(*both)
    assert code == 0 and out.count("unchanged, at 0/10 (epoch 1), 100 rows") == 2
    assert run(*both[:2], "--rebuild")[1].count("rebuilt (it was asked for)") == 1
