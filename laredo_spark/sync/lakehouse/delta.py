"""``sync_table(to="delta")``: changes merged into a Delta table, the position in the same commit.

Of two jobs at once one commits, and the other fails with TargetBusy and does the rest when it is
run again. The table is rewritten after a truncation, after another program changed its rows, and
where its row count differs from the manifest's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column, SparkSession

from laredo_archive.failpoint import reach
from laredo_spark import options
from laredo_spark.read.table_read import TableRead
from laredo_spark.sync import plan
from laredo_spark.sync.errors import TargetDiffers
from laredo_spark.sync.lakehouse import merging
from laredo_spark.sync.lakehouse.delta_fit import refuse_unfit
from laredo_spark.sync.lakehouse.delta_log import NO_TABLE, DeltaLog, Held
from laredo_spark.sync.plan import Merge, Rebuild, SyncResult, UpToDate
from laredo_spark.sync.spark import failing_as, frame_of
from laredo_spark.sync.state import SyncState


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
        merging.refuse_substituted(self.spark, self.target, self.table.spark_schema().names)
        held = self.log.held()
        step = merging.step(
            self.target, held.state, held.by_others, self.table, self._is_counted, rebuild=rebuild
        )
        reach("sync.planned")
        if isinstance(step, UpToDate) and held.state is not None:
            return self._up_to_date(held, held.state)
        state = merging.next_state(held.state, self.table)
        after = held
        if isinstance(step, Merge) and held.state is not None:
            after = self._merged(held, held.state, state)
            if not self._is_counted():
                step, state = Rebuild(merging.MISCOUNTED), replace(state, version=state.version + 1)
        if isinstance(step, Rebuild):
            after = self._rebuilt(held, after, state)
        reach("sync.committed")
        return SyncResult(step, replace(state, rows=self._rows()), after.files_written)

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

        changes = merging.net_changes(self.spark, self.given, self.table, before)
        quoted = map(merging.quoted, self.table.spark_schema().names)
        all_columns: dict[str, str | Column] = {name: f"new.{name}" for name in quoted}
        with self.log.committing(state, state.table, held):
            reach("sync.committing")
            DeltaTable.forPath(self.spark, self.target).alias("held").merge(
                changes.alias("new"), merging.same_key(self.table)
            ).whenMatchedDelete("new.__laredo_action = 'DELETE'").whenMatchedUpdate(
                set=all_columns
            ).whenNotMatchedInsert("new.__laredo_action != 'DELETE'", values=all_columns).execute()
        return self.log.committed(state)

    def _is_counted(self) -> bool:
        return plan.expected_rows(self.table) in (None, self._rows())

    def _rows(self) -> int:
        return self.spark.read.format("delta").load(self.target).count()
