"""Syncs to a table of a lakehouse: what holds for Delta Lake and for Iceberg alike."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from laredo_archive import failpoint
from laredo_model import position as positions
from laredo_model.column import Column
from laredo_spark import sync_table
from laredo_spark.sync.errors import OlderThanTarget, TargetDiffers, TargetRefused
from laredo_spark.sync.sync import Synced, SyncOutcome
from tests.support.archive.building import HISTORY, Builder, State
from tests.support.processes import wait_until
from tests.support.spark_reading import Reading, manifest_of, names

FIRST = {number: f"name {number}" for number in range(100)}
REASONS = {
    "gap": "doesn't continue",
    "history": "new history",
    "columns": "columns",
    "options": "options",
}
"""For a table that is written anew."""


class Kept:
    """An archive and the table that is kept up to date with it."""

    to: str

    def __init__(self, spark: SparkSession, directory: Path, target: Any) -> None:
        self.spark = spark
        self.archive = Builder(directory / "archive").base(0x10, names(FIRST))
        self.target = target

    def sync(self, **given: Any) -> Synced:
        return self.sync_as_written(self.archive.write(), **given)

    def sync_as_written(self, archive: Path, **given: Any) -> Synced:
        """With a manifest that was changed by hand."""
        return sync_table(self.spark, str(archive), to=self.to, target=self.target, **given)

    def change(self, position: int, changed: Mapping[int, str | None], **given: Any) -> None:
        rows = {**FIRST, **changed}
        state = names({number: name for number, name in rows.items() if name is not None})
        self.archive.diff(position, state, **given)

    def found(self, tag: str | None = None) -> DataFrame:
        """The table now, or at a tag."""
        raise NotImplementedError

    def commits(self) -> list[Row]:
        raise NotImplementedError

    def said(self) -> tuple[int, str]:
        """Epoch and position of the newest commit."""
        raise NotImplementedError

    def assert_equal(self, tag: str | None = None) -> None:
        """The rows are the ones that the archive's reader has."""
        wanted, found = Reading(self.archive.write()), self.found(tag)
        assert found.schema == wanted.schema
        rows = sorted((row.asDict() for row in found.collect()), key=lambda row: row["id"])
        assert rows == sorted(wanted.rows(), key=lambda row: row["id"])
        assert len(rows) == len(self.archive.states[-1])


def equal_at_each_boundary(kept: Kept, tags: bool) -> None:
    """Each sync is one commit, which says where its rows are."""
    assert kept.sync().outcome is SyncOutcome.REBUILT and kept.said() == (1, "0/10")
    first = len(kept.commits())
    for number, (position, changed) in enumerate(
        ((0x20, {7: "new", 8: None}), (0x30, {7: None, 999: "only here"})), first + 1
    ):
        kept.change(position, changed)
        done = kept.sync()
        assert (done.outcome, done.position) == (SyncOutcome.MERGED, position)
        assert (len(kept.commits()), kept.said()) == (number, (1, positions.text(position)))
        kept.assert_equal()
        if tags:
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


def only_new_diffs_are_read(kept: Kept) -> Synced:
    kept.change(0x20, {7: "new"})
    kept.sync()
    for file in kept.archive.write().glob("epoch=1/*"):
        file.unlink()
    kept.change(0x30, {7: "newer", 8: None})
    done = kept.sync()
    assert (done.outcome, done.rows) == (SyncOutcome.MERGED, 99)
    return done


def a_users_settings_and_writes_are_left_alone(
    kept: Kept, setting: str, write: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread writes in the session during each commit; ``setting`` describes its writes."""
    kept.spark.conf.set(setting, "mine")
    # Delta has settings of its own, some from a session's first use and some from each write.
    write()
    settings, views = kept.spark.conf.getAll, kept.spark.catalog.listTables()

    def as_they_were() -> bool:
        return (kept.spark.conf.getAll, kept.spark.catalog.listTables()) == (settings, views)

    with ThreadPoolExecutor(1) as thread:

        def write_in_commit(point: str) -> None:
            nonlocal settings
            if point == "sync.committing":
                assert as_they_were() and SparkSession.getActiveSession() is kept.spark
                thread.submit(write).result()
                settings = kept.spark.conf.getAll

        monkeypatch.setattr(failpoint, "_reached", write_in_commit)
        try:
            for position, outcome in ((0x20, SyncOutcome.REBUILT), (0x30, SyncOutcome.MERGED)):
                kept.change(position, {position: None})
                assert kept.sync().outcome is outcome
                assert kept.said() == (1, positions.text(position))
                assert as_they_were()
                kept.assert_equal()
        finally:
            kept.spark.conf.unset(setting)


def through_epochs(kept: Kept, tags: bool) -> None:
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
        if tags:
            kept.assert_equal(f"epoch_{epoch}_at_0_30")
        kept.archive.artifacts = kept.archive.artifacts[-1:]
    before = len(kept.commits())
    assert kept.sync().outcome is SyncOutcome.UNCHANGED and len(kept.commits()) == before
    # The epoch goes on over a failover.
    kept.archive.history = HISTORY.replace(":1:", ":2:")
    kept.change(0x40, {1: "c"})
    assert kept.sync().outcome is SyncOutcome.MERGED
    kept.assert_equal()


def written_anew(kept: Kept, why: str) -> None:
    """For one of REASONS; one commit more."""
    kept.sync()
    before = len(kept.commits())
    if why == "history":
        kept.archive.history = HISTORY.replace(":1:", ":2:")
    rows = names({**FIRST, 1: "a"})
    if why == "columns":
        kept.archive.columns += (Column("added", "numeric", (5 << 16 | 1) + 4, True, 4),)
        rows = {key: line[:-1] + b',"added":"1.5"}' for key, line in names(FIRST).items()}
    if why != "options":
        kept.archive.base(0x10 if why == "history" else 0x30, rows, continues=False)
    done = kept.sync(**({"special_values": "null"} if why == "options" else {}))
    assert done.outcome is SyncOutcome.REBUILT and REASONS[why] in done.reason
    kept.assert_equal()
    assert len(kept.commits()) == before + 1


def a_time_without_a_zone_is_added(kept: Kept) -> None:
    """It stays without one, whatever zone the session is in."""
    kept.sync()
    kept.archive.columns += (
        Column("local", "timestamp", -1, True, 4),
        Column("zoned", "timestamptz", -1, True, 5),
        Column("several", "_timestamp", -1, True, 6),
    )
    added = (
        b',"local":"2026-01-02 03:04:05.5","zoned":"2026-01-02 03:04:05.5+00"'
        b',"several":["2026-01-02 03:04:05"]}'
    )
    rows = {key: line[:-1] + added for key, line in names(FIRST).items()}
    kept.archive.base(0x20, rows, continues=False)
    kept.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert "columns" in kept.sync().reason
        kinds = {field.name: field.dataType.simpleString() for field in kept.found().schema}
        assert (kinds["local"], kinds["zoned"]) == ("timestamp_ntz", "timestamp")
        assert kinds["several"] == "array<timestamp_ntz>"
        shown = kept.found().selectExpr("string(local)", "string(zoned)", "string(several[0])")
        [[local, zoned, several]] = shown.distinct().collect()
        assert local == "2026-01-02 03:04:05.5"
        assert (zoned, several) == ("2026-01-01 22:04:05.5", "2026-01-02 03:04:05")
        rows = {**rows, b"1": rows[b"1"].replace(b'"local":"2026', b'"local":"2027')}
        kept.archive.diff(0x30, rows)
        assert kept.sync().outcome is SyncOutcome.MERGED
        [[local]] = kept.found().where("id = 1").selectExpr("string(local)").collect()
        assert local == "2027-01-02 03:04:05.5"
    finally:
        kept.spark.conf.set("spark.sql.session.timeZone", "UTC")


def keys_that_are_one_value_to_spark(kept: Kept, tmp_path: Path) -> None:
    """1.0 becomes 1.00 by DELETE and INSERT of two keys, which are one row to MERGE."""
    columns = (Column("k", "numeric", -1, False, 1, 1), Column("v", "int4", -1, False, 2))
    kept.archive = Builder(tmp_path / "numeric", columns=columns, key_fields=("k",))

    def state(*keys: str) -> dict[bytes, bytes]:
        return {key.encode(): f'{{"k":"{key}","v":{len(key)}}}'.encode() for key in sorted(keys)}

    kept.archive.base(0x10, state("1.0", "2.0"))
    kept.sync(numeric_as="decimal(38,18)")
    kept.archive.diff(0x20, state("1.00", "2.0"))
    assert kept.sync(numeric_as="decimal(38,18)").outcome is SyncOutcome.MERGED
    assert sorted((int(row.k), row.v) for row in kept.found().collect()) == [(1, 4), (2, 3)]


def other_rows_than_the_manifest_says(kept: Kept, artifact: int) -> None:
    """Of an artifact: the sync is refused, and the table has the rows that it had."""
    archive, had = kept.archive.write(), 100 * artifact
    manifest_of(archive, lambda described: described["artifacts"][artifact].update(rows=7))
    with pytest.raises(TargetDiffers, match=rf"has 7 rows .* wrote {100 - artifact}"):
        kept.sync_as_written(archive)
    assert kept.found().count() == had


def an_older_archive_and_another_table_are_refused(kept: Kept, tmp_path: Path) -> None:
    current, older = kept.archive, Builder(tmp_path / "older").base(0x8, names(FIRST))
    with pytest.raises(OlderThanTarget, match=r"is at 0/10 .* ends at 0/8"):
        kept.sync_as_written(older.write())
    archive = current.write()
    manifest_of(archive, lambda described: described.update(table="public.orders"))
    with pytest.raises(TargetRefused, match=r"holds public.users, .* is of public.orders"):
        kept.sync_as_written(archive)


PATIENCE_S = 400
COUNT = 20_000


def many(changed: Mapping[int, str | None]) -> State:
    """A table of so many long rows that a job can be stopped while it writes them."""
    rows = {number: f"name {number} " + "x" * 600 for number in range(COUNT)}
    kept = {**rows, **changed}
    return names({number: name for number, name in kept.items() if name is not None})


@contextmanager
def job(*arguments: object, dies_at: str = "") -> Iterator[subprocess.Popen[str]]:
    """A job in a process group with its JVM; none of them is left."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.lakehouse_session", *map(str, arguments)],
        env={**os.environ, failpoint.VARIABLE: dies_at},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Target:
    """A table as its files show it, whoever writes."""

    to: str

    def __init__(self, spark: SparkSession, archive: Path, name: str, data: Path) -> None:
        self.spark = spark
        self.archive = archive
        #: What a sync calls it.
        self.name = name
        self._data = data
        self._before: set[Path] = set()

    def expect_new_files(self) -> None:
        self._before = {*self._data.glob("*.parquet")}

    def is_being_written(self) -> bool:
        return bool({*self._data.glob("*.parquet")} - self._before)

    def is_at_the_base(self) -> bool:
        """Nothing was committed since the first sync."""
        raise NotImplementedError

    def assert_synced(self) -> None:
        """Each change is there once, by one commit."""
        raise NotImplementedError

    def sync(self) -> SyncOutcome:
        return sync_table(self.spark, str(self.archive), to=self.to, target=self.name).outcome


def stopped_in_a_commit_and_killed_after_the_next(
    started: Sequence[object], both: Target, committed: Target
) -> None:
    """While a job is stopped, another syncs the table; the job's failure is one line."""
    with job(*started, both.name, committed.name, dies_at="sync.committed") as process:
        wait_until(both.is_being_written, "a commit begun", PATIENCE_S)
        os.killpg(process.pid, signal.SIGSTOP)
        assert both.is_at_the_base()
        assert both.sync() is SyncOutcome.MERGED
        os.killpg(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        # Ivy, too, writes there.
        said = next(line for line in process.stdout if both.name in line)
        assert f"{both.name}: another sync is writing to it now" in said
        assert was_killed(process)
    both.assert_synced()


def was_killed(process: subprocess.Popen[str]) -> bool:
    """Wait for its end."""
    return process.wait(PATIENCE_S) == -signal.SIGKILL
