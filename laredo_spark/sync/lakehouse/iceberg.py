"""``sync_table(to="iceberg")``: changes merged into an Iceberg table, the position in its snapshot.

Of two jobs at once one commits, and the other fails with TargetBusy and does the rest when it is
run again. The table is rewritten for the reasons for which a Delta table is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from secrets import token_hex

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_archive.failpoint import reach
from laredo_spark import options
from laredo_spark.read.table_read import TableRead
from laredo_spark.sync import plan
from laredo_spark.sync.errors import TargetDiffers
from laredo_spark.sync.lakehouse import merging
from laredo_spark.sync.lakehouse.iceberg_fit import refuse_unfit
from laredo_spark.sync.lakehouse.iceberg_table import HeldSnapshot, IcebergTable
from laredo_spark.sync.plan import Merge, Rebuild, SyncResult, UpToDate
from laredo_spark.sync.spark import failing_as, frame_of
from laredo_spark.sync.state import SyncState


def sync_iceberg(
    spark: SparkSession, given: Mapping[str, str], target: str, *, rebuild: bool
) -> SyncResult:
    """Bring the Iceberg table ``target``, CATALOG.NAMESPACE.TABLE, up to the archive's head.

    :raises IcebergMissing: if the session can't write Iceberg tables.
    :raises IcebergUnfit: if its Iceberg is for another Spark.
    :raises ArchiveError, SyncError: as sync_table().
    """
    refuse_unfit(spark, target)
    with failing_as(target):
        table = TableRead.of(options.parse(given))
        found = IcebergTable(spark, target)
        return IcebergSync(spark, given, table, found).run(rebuild=rebuild)


@dataclass(frozen=True)
class IcebergSync:
    """One table's sync into one Iceberg table."""

    spark: SparkSession
    given: Mapping[str, str]
    table: TableRead
    found: IcebergTable

    def run(self, *, rebuild: bool) -> SyncResult:
        """Plan the sync and do it."""
        target = self.found.target
        merging.refuse_substituted(self.spark, target, (target, *self._names()))
        held = self.found.held()
        step = merging.step(
            target,
            held.state,
            self._by_others(held),
            self.table,
            self._is_counted,
            rebuild=rebuild,
        )
        reach("sync.planned")
        self.found.tag(held)
        if isinstance(step, UpToDate) and held.state is not None:
            return self._up_to_date(held, held.state)
        state = merging.next_state(held.state, self.table)
        is_merged = isinstance(step, Merge) and self._merged(held, state)
        if isinstance(step, Merge) and not is_merged:
            step = Rebuild(merging.MISCOUNTED)
        if isinstance(step, Rebuild):
            self._rebuilt(held, state)
        return self._committed(step, state)

    def _by_others(self, held: HeldSnapshot) -> str | None:
        is_ours = held.state is not None and held.state.shape == plan.shape_of(self.table)
        if is_ours and held.columns != self._names():
            return "its columns were altered"
        return held.by_others

    def _committed(self, step: Merge | Rebuild | UpToDate, state: SyncState) -> SyncResult:
        reach("sync.committed")
        done = self.found.held()
        self.found.tag(done)
        self.found.drop_abandoned(done)
        files = 0 if isinstance(step, UpToDate) else done.files_written
        return SyncResult(step, replace(state, rows=self._rows(self.found.name)), files)

    def _up_to_date(self, held: HeldSnapshot, state: SyncState) -> SyncResult:
        """Keep the rows; commit their epoch before retention removes it from the archive."""
        epoch = self.table.boundary.epoch
        if state.epoch == epoch:
            return SyncResult(UpToDate(), replace(state, rows=self._rows(self.found.name)), 0)
        state = replace(state, version=state.version + 1, epoch=epoch)
        with self.found.branch(state, held) as branch:
            name = self.found.name_of(branch)
            self.spark.table(name).limit(0).writeTo(name).append()
            self.found.publish(branch, held)
        return self._committed(UpToDate(), state)

    def _rebuilt(self, held: HeldSnapshot, state: SyncState) -> None:
        """Rewrite all rows in one commit, unless the row count isn't the manifest's."""
        frame = frame_of(self.spark, {**self.given, **self.table.pinned()})
        if held.head is None:
            self.found.create(self.spark.createDataFrame([], frame.schema), state.shape)
            held = self.found.held()
        if (held.shape, held.columns) != (state.shape, self._names()):
            # New columns are seen at once on all branches: the rows are counted before.
            [counted] = frame.agg(F.count(frame[self.table.key_names[0]])).collect()
            self._refuse_other_count(counted[0])
            reach("sync.committing")
            self.found.replace(frame, state, held)
            return
        with self.found.branch(state, held) as branch:
            reach("sync.committing")
            frame.writeTo(self.found.name_of(branch)).overwrite(F.lit(True))
            self._refuse_other_count(self._rows(self.found.name_of(branch)))
            reach("sync.staged")
            self.found.publish(branch, held)

    def _merged(self, held: HeldSnapshot, state: SyncState) -> bool:
        """Merge what changed since ``held``; False, and nothing, if the row count isn't right."""
        assert held.state is not None
        changes = merging.net_changes(self.spark, self.given, self.table, held.state)
        view = f"laredo_changes_{token_hex(4)}"
        changes.createOrReplaceTempView(view)
        names = [merging.quoted(name) for name in self._names()]
        try:
            with self.found.branch(state, held) as branch:
                reach("sync.committing")
                self.spark.sql(
                    f"MERGE INTO {self.found.name_of(branch)} AS held USING {view} AS new"
                    f" ON {merging.same_key(self.table)}"
                    " WHEN MATCHED AND new.__laredo_action = 'DELETE' THEN DELETE"
                    f" WHEN MATCHED THEN UPDATE SET {', '.join(f'{n} = new.{n}' for n in names)}"
                    " WHEN NOT MATCHED AND new.__laredo_action != 'DELETE' THEN INSERT"
                    f" ({', '.join(names)}) VALUES ({', '.join(f'new.{n}' for n in names)})"
                )
                is_right = self._is_right(self._rows(self.found.name_of(branch)))
                reach("sync.staged")
                if is_right:
                    self.found.publish(branch, held)
        finally:
            self.spark.catalog.dropTempView(view)
        return is_right

    def _names(self) -> tuple[str, ...]:
        return tuple(self.table.spark_schema().names)

    def _refuse_other_count(self, found: int) -> None:
        if not self._is_right(found):
            expected = plan.expected_rows(self.table) or 0
            raise TargetDiffers(self.found.target, self.table.boundary, expected, found)

    def _is_counted(self) -> bool:
        return self._is_right(self._rows(self.found.name))

    def _is_right(self, rows: int) -> bool:
        return plan.expected_rows(self.table) in (None, rows)

    def _rows(self, name: str) -> int:
        return self.spark.table(name).count()
