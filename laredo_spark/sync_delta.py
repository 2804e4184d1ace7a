"""``sync_table(to="delta")``: changes merged into a Delta table, the position in the same commit.

The commit's userMetadata says which boundary its rows are at, and its transaction's version
(txnAppId, txnVersion) keeps a second job from committing beside it.
https://docs.delta.io/latest/delta-batch.html#idempotent-writes

A Delta table whose newest commits are of someone else and whose own are no longer in its log is
written anew, as is one whose rows aren't as many as the archive says after a merge.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_model import position as positions
from laredo_spark import options, sync_plan
from laredo_spark.changes import read_changes
from laredo_spark.sync_errors import DeltaMissing, TargetDiffers, TargetRefused
from laredo_spark.sync_parquet import Written
from laredo_spark.sync_plan import Level, Merge, Rebuild, Step
from laredo_spark.sync_spark import failing_as, frame_of
from laredo_spark.sync_state import StateUnreadable, SyncState
from laredo_spark.table_read import TableRead

_MARK = "laredo"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_APP = "spark.databricks.delta.write.txnAppId"
_TXN = "spark.databricks.delta.write.txnVersion"
_ONE_COMMIT = Lock()
"""Those settings are the session's, which other tables' syncs share."""
_OF_TABLE = frozenset({"path", "as_of", "exact", "epoch", "history", "partitions_at_least"})


def sync_delta(
    spark: SparkSession, given: Mapping[str, str], target: str, *, rebuild: bool
) -> Written:
    """Bring the Delta table at ``target`` level with the archive's head.

    :raises DeltaMissing: if the session can't write Delta tables.
    :raises ArchiveError, SyncError: as sync_table().
    """
    _refuse_without(spark)
    sync = DeltaSync(spark, given, target)
    with failing_as(target):
        return sync.run(rebuild=rebuild)


def _refuse_without(spark: SparkSession) -> None:
    try:
        import delta.tables  # noqa: F401
    except ImportError:
        raise DeltaMissing("the Python package delta-spark isn't installed") from None
    if "DeltaSparkSessionExtension" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise DeltaMissing(
            "spark.sql.extensions lacks io.delta.sql.DeltaSparkSessionExtension, and"
            " spark.sql.catalog.spark_catalog is to be"
            " org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )


@dataclass(frozen=True)
class DeltaSync:
    """One table's sync into one Delta table."""

    spark: SparkSession
    given: Mapping[str, str]
    target: str

    def run(self, *, rebuild: bool) -> Written:
        """What sync_delta() does."""
        table = TableRead.of(options.parse(self.given))
        held = self._held()
        step = self._step(held, table, rebuild=rebuild)
        if isinstance(step, Level) and held is not None:
            return Written(step, held, 0)
        state = self._state(held, table)
        if isinstance(step, Merge) and held is not None:
            self._merge(held, table, state)
            if sync_plan.rows_said(table) not in (None, self._rows()):
                step = Rebuild("after the merge it hadn't as many rows as the archive says")
                state = replace(state, version=state.version + 1)
        if isinstance(step, Rebuild):
            self._rebuild(table, state)
        found, said = self._rows(), sync_plan.rows_said(table)
        if said not in (None, found):
            raise TargetDiffers(self.target, table.boundary, said or 0, found)
        return Written(step, replace(state, rows=found), 0)

    def _step(self, held: SyncState | None, table: TableRead, *, rebuild: bool) -> Step:
        if rebuild:
            return Rebuild("it was asked for")
        found = sync_plan.step(self.target, held, table)
        if isinstance(found, Merge) and found.truncates:
            return Rebuild("the table was truncated")
        if isinstance(found, Merge) and not set(table.key_names) <= set(table.spark_schema().names):
            return Rebuild("the key isn't among its columns")
        return found

    def _held(self) -> SyncState | None:
        """What the newest commit of ours says.

        :raises TargetRefused: if it is a Delta table that no sync has made.
        """
        from delta.tables import DeltaTable

        if not DeltaTable.isDeltaTable(self.spark, self.target):
            return None
        commits = DeltaTable.forPath(self.spark, self.target).history()
        ours = commits.where(F.col("userMetadata").startswith(f'{{"{_MARK}"'))
        newest = ours.orderBy(F.col("version").desc()).select("userMetadata").first()
        if newest is None:
            raise TargetRefused(
                self.target,
                "is a Delta table without a commit of laredo's in its log; sync to another path",
            )
        try:
            return SyncState.parse(json.dumps(json.loads(newest[0])[_MARK]))
        except StateUnreadable as wrong:
            raise TargetRefused(self.target, str(wrong)) from wrong

    def _state(self, held: SyncState | None, table: TableRead) -> SyncState:
        boundary = table.boundary
        return SyncState(
            version=1 if held is None else held.version + 1,
            table=table.archive.manifest.table,
            history=sync_plan.history_text(boundary),
            epoch=boundary.epoch,
            position=boundary.position,
            shape=sync_plan.shape_of(table),
            rows=sync_plan.rows_said(table) or 0,
            in_ranges=False,
            built_rows=0,
            files=(),
        )

    def _rebuild(self, table: TableRead, state: SyncState) -> None:
        frame = frame_of(self.spark, {**self.given, **table.pinned()})
        with self._committing(state):
            frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(
                self.target
            )

    def _merge(self, held: SyncState, table: TableRead, state: SyncState) -> None:
        from delta.tables import DeltaTable

        keys, names = table.key_names, table.spark_schema().names
        same_key = " and ".join(f"held.{_quoted(key)} <=> new.{_quoted(key)}" for key in keys)
        all_columns: dict[str, str | Column] = {
            _quoted(name): f"new.{_quoted(name)}" for name in names
        }
        with self._committing(state):
            DeltaTable.forPath(self.spark, self.target).alias("held").merge(
                self._changes(held, table).alias("new"), same_key
            ).whenMatchedDelete("new.__laredo_action = 'DELETE'").whenMatchedUpdate(
                set=all_columns
            ).whenNotMatchedInsert("new.__laredo_action != 'DELETE'", values=all_columns).execute()

    def _changes(self, held: SyncState, table: TableRead) -> DataFrame:
        """The newest change of each key since ``held``."""
        after: dict[str, Any] = {} if held.history == "unknown" else {"history": held.history}
        more: dict[str, Any] = {k: v for k, v in self.given.items() if k not in _OF_TABLE}
        changes = read_changes(
            self.spark,
            self.given["path"],
            positions.text(held.position),
            positions.text(table.boundary.position),
            exact=True,
            also="lsn",
            **after,
            **more,
        )
        newest_first = Window.partitionBy("key").orderBy(F.col("lsn").desc())
        keys = set(table.key_names)
        return (
            changes.withColumn("__laredo_place", F.row_number().over(newest_first))
            .where("__laredo_place = 1")
            .select(
                F.col("action").alias("__laredo_action"),
                *(_value(name, name in keys).alias(name) for name in table.spark_schema().names),
            )
        )

    def _rows(self) -> int:
        return self.spark.read.format("delta").load(self.target).count()

    @contextmanager
    def _committing(self, state: SyncState) -> Iterator[None]:
        """What is written now says which boundary it is at; the session's settings tell Delta."""
        settings = {
            _METADATA: json.dumps({_MARK: json.loads(state.to_json())}),
            _APP: f"{_MARK}:{state.table}",
            _TXN: str(state.version),
        }
        with _ONE_COMMIT:
            for name, value in settings.items():
                self.spark.conf.set(name, value)
            try:
                yield
            finally:
                for name in settings:
                    self.spark.conf.unset(name)


def _value(name: str, is_key: bool) -> Column:
    """A deleted row has its key still."""
    new = F.col(f"new.{_quoted(name)}")
    return F.coalesce(new, F.col(f"old.{_quoted(name)}")) if is_key else new


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
