"""``sync_table(to="delta")``: changes merged into a Delta table, the position in the same commit.

Of two jobs at once one commits, and the other fails with TargetBusy and does the rest when it is
run again. The table is rewritten after a truncation, after another program changed its rows, and
where its row count differs from the manifest's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_archive.failpoint import reach
from laredo_model import position as positions
from laredo_spark import options
from laredo_spark.frames.changes import read_changes
from laredo_spark.read.table_read import UNKNOWN_HISTORY, TableRead
from laredo_spark.sync import plan
from laredo_spark.sync.delta_fit import refuse_unfit
from laredo_spark.sync.delta_log import NO_TABLE, DeltaLog, Held
from laredo_spark.sync.errors import TargetDiffers
from laredo_spark.sync.files import comparable
from laredo_spark.sync.parquet import SyncResult
from laredo_spark.sync.plan import Merge, Rebuild, SyncAction, UpToDate
from laredo_spark.sync.spark import failing_as, frame_of
from laredo_spark.sync.state import SyncState

_OF_TABLE = frozenset({"path", "as_of", "exact", "epoch", "history", "partitions_at_least"})
_MISCOUNTED = "it hasn't as many rows as the archive says"


def sync_delta(
    spark: SparkSession, given: Mapping[str, str], target: str, *, rebuild: bool
) -> SyncResult:
    """Bring the Delta table at ``target`` up to the archive's head.

    :raises DeltaMissing: if the session can't write Delta tables.
    :raises DeltaUnfit: if its Delta Lake is for another Spark.
    :raises ArchiveError, SyncError: as sync_table().
    """
    refuse_unfit(spark)
    with failing_as(target):
        table = TableRead.of(options.parse(given))
        return DeltaSync(spark, given, target, table, DeltaLog(spark, target)).run(rebuild=rebuild)


@dataclass(frozen=True)
class DeltaSync:
    """One table's sync into one Delta table."""

    spark: SparkSession
    given: Mapping[str, str]
    target: str
    table: TableRead
    log: DeltaLog

    def run(self, *, rebuild: bool) -> SyncResult:
        """Plan the sync and do it."""
        held = self.log.held()
        step = self._step(held, rebuild=rebuild)
        reach("sync.planned")
        if isinstance(step, UpToDate) and held.state is not None:
            return self._up_to_date(held, held.state)
        state = self._next(held)
        after = held
        if isinstance(step, Merge) and held.state is not None:
            after = self._merged(held, held.state, state)
            if not self._is_counted():
                step, state = Rebuild(_MISCOUNTED), replace(state, version=state.version + 1)
        if isinstance(step, Rebuild):
            after = self._rebuilt(held, after, state)
        reach("sync.committed")
        return SyncResult(step, replace(state, rows=self._rows()), after.files_written)

    def _step(self, held: Held, *, rebuild: bool) -> SyncAction:
        if rebuild:
            return Rebuild("it was asked for")
        found = plan.step(self.target, held.state, self.table)
        if held.by_others is not None:
            return Rebuild(f"another program has written to it ({held.by_others})")
        if isinstance(found, UpToDate) and not self._is_counted():
            return Rebuild(_MISCOUNTED)
        if isinstance(found, Merge) and found.truncates:
            return Rebuild("the table was truncated")
        if isinstance(found, Merge) and not comparable(self.table.columns, self.table.shape):
            return Rebuild("rows can't be distinguished by their key columns")
        return found

    def _up_to_date(self, held: Held, state: SyncState) -> SyncResult:
        """Keep the rows; commit their epoch before retention removes it from the archive."""
        epoch = self.table.boundary.epoch
        if state.epoch != epoch or held.is_aged:
            state = replace(state, version=state.version + 1, epoch=epoch)
            nothing = self.spark.read.format("delta").load(self.target).limit(0)
            with self.log.committing(state, state.table, held):
                nothing.write.format("delta").mode("append").save(self.target)
            self.log.committed(state)
        return SyncResult(UpToDate(), replace(state, rows=self._rows()), 0)

    def _next(self, held: Held) -> SyncState:
        boundary = self.table.boundary
        return SyncState(
            version=1 if held.state is None else held.state.version + 1,
            table=self.table.archive.manifest.table,
            history=plan.history_text(boundary),
            epoch=boundary.epoch,
            position=boundary.position,
            shape=plan.shape_of(self.table),
            rows=plan.expected_rows(self.table) or 0,
            in_ranges=False,
            built_rows=0,
            files=(),
        )

    def _rebuilt(self, held: Held, after: Held, state: SyncState) -> Held:
        """Rewrite all rows; restore the version before if the row count isn't the manifest's."""
        frame = frame_of(self.spark, {**self.given, **self.table.pinned()})
        with self.log.committing(state, state.table, after):
            reach("sync.committing")
            frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(
                self.target
            )
        done = self.log.committed(state)
        if not self._is_counted():
            expected, found = plan.expected_rows(self.table) or 0, self._rows()
            self._take_back(held, done, state)
            raise TargetDiffers(self.target, self.table.boundary, expected, found)
        return done

    def _take_back(self, held: Held, done: Held, state: SyncState) -> None:
        from delta.tables import DeltaTable

        target = DeltaTable.forPath(self.spark, self.target)
        before = held.state if held.by_others is None else None
        with self.log.committing(before, state.table, done):
            if held.version == NO_TABLE:
                target.delete()
            else:
                target.restoreToVersion(held.version)

    def _merged(self, held: Held, before: SyncState, state: SyncState) -> Held:
        from delta.tables import DeltaTable

        keys, names = self.table.key_names, self.table.spark_schema().names
        same_key = " and ".join(f"held.{_quoted(key)} <=> new.{_quoted(key)}" for key in keys)
        all_columns: dict[str, str | Column] = {
            _quoted(name): f"new.{_quoted(name)}" for name in names
        }
        with self.log.committing(state, state.table, held):
            reach("sync.committing")
            DeltaTable.forPath(self.spark, self.target).alias("held").merge(
                self._changes(before).alias("new"), same_key
            ).whenMatchedDelete("new.__laredo_action = 'DELETE'").whenMatchedUpdate(
                set=all_columns
            ).whenNotMatchedInsert("new.__laredo_action != 'DELETE'", values=all_columns).execute()
        return self.log.committed(state)

    def _changes(self, held: SyncState) -> DataFrame:
        """The newest change of each key since ``held``."""
        known = held.history != UNKNOWN_HISTORY
        after: dict[str, Any] = {"history": held.history} if known else {}
        more: dict[str, Any] = {k: v for k, v in self.given.items() if k not in _OF_TABLE}
        changes = read_changes(
            self.spark,
            self.given["path"],
            positions.text(held.position),
            positions.text(self.table.boundary.position),
            exact=True,
            also="lsn",
            **after,
            **more,
        )
        names, keys = self.table.spark_schema().names, set(self.table.key_names)
        rows = changes.select(
            F.col("action").alias("__laredo_action"),
            F.col("lsn").alias("__laredo_lsn"),
            *(_value(name, name in keys).alias(name) for name in names),
        )
        # Two keys with one typed value (1.0 and 1.00) are one row to MERGE: the newest stays.
        newest_first = Window.partitionBy(*map(_quoted, self.table.key_names)).orderBy(
            F.col("__laredo_lsn").desc(), F.expr("__laredo_action = 'DELETE'")
        )
        ranked = rows.withColumn("__laredo_rank", F.row_number().over(newest_first))
        return ranked.where("__laredo_rank = 1").drop("__laredo_rank", "__laredo_lsn")

    def _is_counted(self) -> bool:
        return plan.expected_rows(self.table) in (None, self._rows())

    def _rows(self) -> int:
        return self.spark.read.format("delta").load(self.target).count()


def _value(name: str, is_key: bool) -> Column:
    """A column of the changed row; of a deleted row only the key has a value."""
    new = F.col(f"new.{_quoted(name)}")
    return F.coalesce(new, F.col(f"old.{_quoted(name)}")) if is_key else new


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
