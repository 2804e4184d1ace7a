"""A copy that is synced as a lakehouse's table is, by Spark alone: for Spark without Delta or
Iceberg. The plan and the net changes are laredo_spark's; MERGE is a join."""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_spark import options
from laredo_spark.read.table_read import TableRead
from laredo_spark.sync import merging
from laredo_spark.sync.merging import Rebuild, SyncAction, SyncState, UpToDate
from laredo_spark.sync.spark import frame_of
from laredo_spark.sync.sync import given_options


class MergedCopy:
    """Parquet files below ``directory``, a folder for each sync that changed them."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self.state: SyncState | None = None

    def sync(self, archive: Path | str, **given: object) -> SyncAction:
        asked = given_options({**given, "path": archive})
        table = TableRead.of(options.parse(asked))
        step = merging.step(self, self.state, None, table, lambda: True, rebuild=False)
        if isinstance(step, UpToDate):
            return step
        if isinstance(step, Rebuild) or self.state is None:
            rows = frame_of(self._spark, {**asked, **table.pinned()})
        else:
            changes = merging.net_changes(self._spark, asked, table, self.state).cache()
            rows = self._with(changes, table.key_names)
        self.state = merging.next_state(self.state, table)
        rows.write.parquet(str(self._path))
        return step

    def rows(self) -> DataFrame:
        return self._spark.read.parquet(str(self._path))

    def _with(self, changes: DataFrame, keys: Sequence[str]) -> DataFrame:
        left = self.rows().join(changes, list(keys), "left_anti")
        made = changes.where(F.col("__laredo_action") != "DELETE").drop("__laredo_action")
        return made.unionByName(left)  # a join puts the keys first

    @property
    def _path(self) -> Path:
        assert self.state is not None
        return self._directory / str(self.state.version)
