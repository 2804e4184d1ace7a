"""``read_table``: a table of an archive as a DataFrame."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from laredo_spark import options
from laredo_spark.cores import cores
from laredo_spark.options import ReadMode
from laredo_spark.read import keyless, proof, unsorted
from laredo_spark.read.table_read import TableRead
from laredo_spark.source import LaredoDataSource

PUSH_FILTERS = "spark.sql.python.filterPushdown.enabled"
TASKS_A_CORE = 2
_WHOLE_TABLE = {"lines": "true", "push_filters": "false"}
_PARTIAL = ("columns", "key")


def register(spark: SparkSession) -> None:
    """Register ``format("laredo")`` with the session; doing it twice is harmless."""
    try:
        spark.dataSource.register(LaredoDataSource)
    except AnalysisException as refused:
        before = SparkSession.getActiveSession()
        if refused.getCondition() != "DATA_SOURCE_ALREADY_EXISTS" or before is None:
            raise
        # Spark searches the thread's active session for the name, not the one that registers.
        _activate(spark)
        try:
            spark.dataSource.register(LaredoDataSource)
        finally:
            _activate(before)


def _activate(spark: SparkSession) -> None:
    """Make it the thread's active session, as any new DataFrame of rows does."""
    spark.createDataFrame([], "nothing int")


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
        "partitions_at_least": cores(spark) * TASKS_A_CORE,
        **given,
    }
    asked = options.as_options(wanted)
    table = TableRead.of(options.parse(asked))
    pinned = asked | table.pinned()
    register(spark)
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
    reader = spark.read.format(LaredoDataSource.name()).options(**pinned)
    if asked.asked.mode is ReadMode.TABLE:
        # Known here already, so Spark needn't have the manifest read once more for it.
        reader = reader.schema(asked.spark_schema())
    return reader.load()
