"""Reads archives that aren't sorted by key, joined by Spark: base and each key's newest change."""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_spark.options import ReadMode
from laredo_spark.read.table_read import TableRead
from laredo_spark.read.unfolded_reader import ACTION, KEY, ORDER, PUT, TRUNCATE


def folded(spark: SparkSession, table: TableRead, options: Mapping[str, str]) -> DataFrame:
    """The table at its boundary, to which ``options`` are pinned."""

    names = table.spark_schema().names
    base, diffs = base_and_diffs(spark, options)
    if not table.boundary.diffs:
        return chosen(_of_key(base, table), names)
    if not all(diff.says_truncation for diff in table.boundary.diffs):
        base, diffs = _since_truncation(base, diffs)
    changes = diffs.where(F.col(ACTION) != TRUNCATE)
    unique = _with_unique_keys(_of_key(base, table), table.archive.uri)
    return newest(unique, _of_key(changes, table), names)


def base_and_diffs(spark: SparkSession, options: Mapping[str, str]) -> tuple[DataFrame, DataFrame]:
    """The base's rows and the diffs' changes, each with key, order and action."""

    def rows(mode: ReadMode) -> DataFrame:
        given = {**options, "mode": mode.value, "push_filters": "false"}
        return spark.read.format("laredo").options(**given).load()

    return rows(ReadMode.BASE), rows(ReadMode.DIFFS)


def newest(base: DataFrame, diffs: DataFrame, names: Sequence[str]) -> DataFrame:
    """The rows of the base with each key's newest change, without a TRUNCATE among these."""
    newest_first = Window.partitionBy(KEY).orderBy(F.col(ORDER).desc())
    changed = diffs.withColumn("__laredo_place", F.row_number().over(newest_first)).where(
        "__laredo_place = 1"
    )
    untouched = base.join(changed.select(KEY), KEY, "left_anti")
    written = changed.where(F.col(ACTION) == PUT)
    return chosen(untouched, names).unionByName(chosen(written, names))


def _with_unique_keys(base: DataFrame, uri: str) -> DataFrame:
    """The base's rows; two with one key are an error.

    The join is by key too, so this costs no shuffle of its own.
    """
    place = F.row_number().over(Window.partitionBy(KEY).orderBy(ORDER))
    reason = F.concat(
        F.lit(f"{uri}: two rows of its base have the key "),
        F.col(KEY),
        F.lit("; if another column is the key, name it with key_fields"),
    )
    refused = F.raise_error(reason).cast("boolean")
    return (
        base.withColumn("__laredo_place", place)
        .where(F.when(F.col("__laredo_place") > 1, refused).otherwise(F.lit(True)))
        .drop("__laredo_place")
    )


def chosen(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """The table's columns alone."""
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
