"""Reads archives that aren't sorted by key, joined by Spark: base and each key's newest change."""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_spark.options import ReadMode
from laredo_spark.read.table_read import TableRead
from laredo_spark.read.unfolded_reader import ACTION, KEY, ORDER, PUT, TRUNCATE


def folded(spark: SparkSession, table: TableRead, options: Mapping[str, str]) -> DataFrame:
    """The table at its boundary, to which ``options`` are pinned."""

    def rows(mode: ReadMode) -> DataFrame:
        given = {**options, "mode": mode.value, "push_filters": "false"}
        return spark.read.format("laredo").options(**given).load()

    names = table.spark_schema().names
    base, diffs = rows(ReadMode.BASE), rows(ReadMode.DIFFS)
    if not table.boundary.diffs:
        return _chosen(_of_key(base, table), names)
    if not all(diff.says_truncation for diff in table.boundary.diffs):
        base, diffs = _since_truncation(base, diffs)
    base, diffs = _of_key(base, table), _of_key(diffs.where(F.col(ACTION) != TRUNCATE), table)
    newest_first = Window.partitionBy(KEY).orderBy(F.col(ORDER).desc())
    newest = diffs.withColumn("__laredo_place", F.row_number().over(newest_first)).where(
        "__laredo_place = 1"
    )
    untouched = base.join(newest.select(KEY), KEY, "left_anti")
    written = newest.where(F.col(ACTION) == PUT)
    return _chosen(untouched, names).unionByName(_chosen(written, names))


def _chosen(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    return frame.select(*(_column(name) for name in names))


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _of_key(frame: DataFrame, table: TableRead) -> DataFrame:
    key = table.asked.key
    return frame if key is None else frame.where(F.col(KEY) == key)


def _since_truncation(base: DataFrame, diffs: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Base and diffs without the rows before the diffs' last TRUNCATE."""
    truncated = diffs.where(F.col(ACTION) == TRUNCATE)
    last = F.broadcast(truncated.agg(F.coalesce(F.max(ORDER), F.lit(-1)).alias("__laredo_last")))
    base = base.crossJoin(last).where("__laredo_last = -1").drop("__laredo_last")
    diffs = diffs.crossJoin(last).where(f"{ORDER} > __laredo_last").drop("__laredo_last")
    return base, diffs
