"""``read_table``: a table of an archive as a DataFrame."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from laredo_model import position as positions
from laredo_spark import options
from laredo_spark.cores import cores
from laredo_spark.frames import registration
from laredo_spark.options import ReadMode
from laredo_spark.read import keyless, proof, unsorted
from laredo_spark.read.table_read import TableRead

PUSH_FILTERS = "spark.sql.python.filterPushdown.enabled"
_WHOLE_TABLE = {"lines": "true", "push_filters": "false"}
_PARTIAL = ("columns", "key")


def read_table(
    spark: SparkSession,
    path: str,
    as_of: str | datetime | None = None,
    *,
    exact: bool = False,
    epoch: int | None = None,
    verify: bool = False,
    columns: Sequence[str] | None = None,
    key_fields: Sequence[str] | None = None,
    **given: object,
) -> DataFrame:
    """The table at the last boundary at or before ``as_of``, a position or a time; at the head.

    The DataFrame stays at that boundary, whatever is committed later. ``verify`` reads the
    whole table once, and compares its rows and its checksum with the manifest's. ``given``: the
    other options of :mod:`laredo_spark.options`.

    :raises ArchiveError: if there is no such archive, or no such boundary.
    :raises OptionRefused: if an option can't be used.
    :raises NotEqual, NotProvable: if ``verify`` finds another table, or nothing to compare with.
    """
    wanted: dict[str, object] = {
        "path": path,
        "as_of": as_of,
        "exact": exact,
        "epoch": epoch,
        "columns": columns,
        "key_fields": key_fields,
        "push_filters": spark.conf.get(PUSH_FILTERS, "false"),
        "partitions_at_least": cores(spark),
        **given,
    }
    asked = options.as_options(wanted)
    table = TableRead.of(options.parse(asked))
    pinned = asked | table.pinned()
    registration.register(spark)
    if verify:
        whole = {name: value for name, value in pinned.items() if name not in _PARTIAL}
        proof.check(table, _frame(spark, table, {**whole, **_WHOLE_TABLE}))
    return _frame(spark, table, pinned)


def _frame(spark: SparkSession, table: TableRead, pinned: Mapping[str, str]) -> DataFrame:
    asked = table.asking(options.parse(pinned))
    if not table.key_names:
        return keyless.appended(spark, asked, pinned)
    if not table.has_ranges:
        return unsorted.folded(spark, asked, pinned)
    name = registration.named(spark, _name(asked))
    reader = spark.read.format(name).options(**pinned)
    if asked.asked.mode is ReadMode.TABLE:
        # Known here already, so Spark needn't have the manifest read once more for it.
        reader = reader.schema(asked.spark_schema())
    return reader.load()


def _name(table: TableRead) -> str:
    """Name of the scan in ``explain``."""
    boundary = positions.text(table.boundary.position)
    name = f"laredo {registration.directory_of(table.archive)} as of {boundary}"
    return name if table.asked.key is None else f"{name}, key {table.asked.key}"
