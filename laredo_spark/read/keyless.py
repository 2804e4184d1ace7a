"""Reads tables without a key (``append_only``): what the base has, and what the diffs insert.

Equal rows are as many as the table has. Diffs that only insert are taken as they are; the manifest
shows that, as each of their changes is one more row. Where one doesn't, keys are compared:
the digest of a row's line, and its number among equal ones, which are all the same.
"""

from collections.abc import Mapping
from itertools import pairwise

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_archive.manifest.model import Artifact
from laredo_archive.manifest.timeline import Boundary
from laredo_spark.read import unsorted
from laredo_spark.read.table_read import TableRead
from laredo_spark.read.unfolded_reader import ACTION, KEY, ORDER, PUT, TRUNCATE

_NUMBER = "__laredo_number"
_DIGITS = 10


def appended(spark: SparkSession, table: TableRead, options: Mapping[str, str]) -> DataFrame:
    """The table at its boundary, to which ``options`` are pinned."""
    names = table.spark_schema().names
    base, diffs = unsorted.base_and_diffs(spark, options)
    if not table.boundary.diffs:
        return unsorted.chosen(base, names)
    if only_inserts(table.boundary):
        inserted = diffs.where(F.col(ACTION) == PUT)
        return unsorted.chosen(base, names).unionByName(unsorted.chosen(inserted, names))
    equal = Window.partitionBy(KEY).orderBy(ORDER)
    number = F.lpad(F.col(_NUMBER).cast("string"), _DIGITS, "0")
    base = base.withColumn(_NUMBER, F.row_number().over(equal)).withColumn(
        KEY, F.concat(F.col(KEY), F.lit("-"), number)
    )
    return unsorted.newest(base, diffs.where(F.col(ACTION) != TRUNCATE), names)


def only_inserts(boundary: Boundary) -> bool:
    """True if each change up to the boundary, since the last TRUNCATE, adds a row."""
    steps = list(pairwise(boundary.artifacts))
    truncating = [number for number, (_, diff) in enumerate(steps) if diff.truncate]
    return all(
        _only_inserts(before, diff) for before, diff in steps[truncating[-1] if truncating else 0 :]
    )


def _only_inserts(before: Artifact, diff: Artifact) -> bool:
    rows = 0 if diff.truncate else before.rows
    if rows is None or diff.rows is None:
        return False
    return diff.rows - rows == diff.change_count
