"""``count_rows``: how many rows a table has, which the manifest says."""

from datetime import datetime

from pyspark.sql import SparkSession

from laredo_spark import options
from laredo_spark.frames.table import read_table
from laredo_spark.read.table_read import TableRead


def count_rows(
    spark: SparkSession, path: str, as_of: str | datetime | None = None, **given: object
) -> int:
    """The rows of the table at the last boundary at or before ``as_of``; at the head.

    No row is read, and Spark isn't asked: the writer puts the number down with each base and
    diff. Only with ``key``, or in archives of other writers, are rows counted by Spark.
    ``given``: the other options of :mod:`laredo_spark.options`.

    :raises ArchiveError: if there is no such archive, or no such boundary.
    :raises OptionRefused: if an option can't be used.
    """
    asked = options.as_options({"path": path, "as_of": as_of, **given})
    table = TableRead.of(options.parse(asked))
    if table.row_count is not None and table.asked.key is None:
        return table.row_count
    wanted: dict[str, object] = {**asked, **table.pinned(), "columns": table.key_names}
    return read_table(spark, **wanted).count()  # type: ignore[arg-type]  # options by their names
