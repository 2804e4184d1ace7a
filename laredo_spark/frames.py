"""``read_table``, ``read_changes`` and ``count_rows``: one archive as DataFrames."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from laredo_archive.manifest import object_keys
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_spark import options
from laredo_spark.changes.plan import ChangesRead
from laredo_spark.options import ReadMode
from laredo_spark.read import unsorted
from laredo_spark.read.table_read import TableRead
from laredo_spark.session import cores
from laredo_spark.source import LaredoDataSource

# Registers the data source with Spark sessions: as ``laredo``, and by names of what is read.
#
# All that ``explain`` shows of a Python data source is its name and its columns. So each table that
# ``read_table`` reads has a data source of its own name: the archive, the boundary, the key.

MOST_NAMES = 1_000
"""The names of a session: Spark forgets none of them, and a job may read a new boundary every few
seconds for months. What is read beyond them is named ``laredo``."""

_names: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def register(spark: SparkSession) -> None:
    """Register ``format("laredo")`` with the session; doing it twice is harmless."""
    _register(spark, LaredoDataSource)


def directory_of(archive: Archive) -> str:
    """The URI of the directory that the archive's manifest is in."""
    return archive.uri.removesuffix(object_keys.MANIFEST)


def named(spark: SparkSession, name: str, most: int = MOST_NAMES) -> str:
    """The format to read by, so that ``explain`` shows ``name``: this name, or ``laredo``."""
    known = _names.setdefault(spark, set())
    if name in known:
        return name
    if len(known) >= most:
        return LaredoDataSource.name()

    class NamedDataSource(LaredoDataSource):
        """The data source by a name of its own."""

        @classmethod
        def name(cls) -> str:
            return name

    _register(spark, NamedDataSource)
    known.add(name)
    return name


def _register(spark: SparkSession, source: type[LaredoDataSource]) -> None:
    try:
        spark.dataSource.register(source)
    except AnalysisException as refused:
        before = SparkSession.getActiveSession()
        if refused.getCondition() != "DATA_SOURCE_ALREADY_EXISTS" or before is None:
            raise
        # Spark searches the thread's active session for the name, not the one that registers.
        _activate(spark)
        try:
            spark.dataSource.register(source)
        finally:
            _activate(before)


def _activate(spark: SparkSession) -> None:
    """Make it the thread's active session, as any new DataFrame of rows does."""
    spark.createDataFrame([], "nothing int")


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
    """The table at the last boundary at or before ``as_of``, a position or a time; default: head.

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
    register(spark)
    if verify:
        whole = {name: value for name, value in pinned.items() if name not in _PARTIAL}
        unsorted.check(table, _frame(spark, table, {**whole, **_WHOLE_TABLE}))
    return _frame(spark, table, pinned)


def _frame(spark: SparkSession, table: TableRead, pinned: Mapping[str, str]) -> DataFrame:
    asked = table.asking(options.parse(pinned))
    if not table.key_names:
        return unsorted.appended(spark, asked, pinned)
    if not table.has_ranges:
        return unsorted.folded(spark, asked, pinned)
    name = named(spark, _name(asked))
    reader = spark.read.format(name).options(**pinned)
    if asked.asked.mode is ReadMode.TABLE:
        # Known here already, so Spark needn't have the manifest read once more for it.
        reader = reader.schema(asked.spark_schema())
    return reader.load()


def _name(table: TableRead) -> str:
    """Name of the scan in ``explain``."""
    boundary = positions.text(table.boundary.position)
    name = f"laredo {directory_of(table.archive)} as of {boundary}"
    return name if table.asked.key is None else f"{name}, key {table.asked.key}"


# ``read_changes``: the changes between two boundaries of an archive, as a DataFrame.


def read_changes(
    spark: SparkSession,
    path: str,
    after: str | datetime | None = None,
    until: str | datetime | None = None,
    *,
    exact: bool = False,
    on_gap: str = "fail",
    **given: object,
) -> DataFrame:
    """The changes after one boundary up to another: action, position, key, old, new.

    A diff holds the net change of each key in its window, and ``position`` is the window's end;
    so a key comes once at most for each position, but for a TRUNCATE, which comes before the
    rest of its position. Without ``after``: from the archive's first boundary on; without
    ``until``: up to its head. At a gap between diffs (retention, another history, other
    columns), ``on_gap`` decides: "fail", or "snapshot": a TRUNCATE, and the next
    base's rows with action SNAPSHOT; then, without ``after``, the first base's rows come first.
    ``given``: the other options of :mod:`laredo_spark.options`. The columns are listed in
    :mod:`laredo_archive.arrow.changes`.

    :raises ArchiveError: if there is no such archive, or no such boundary.
    :raises ChangesGone: at a gap.
    :raises OptionRefused: if an option can't be used.
    """
    asked = options.as_options(
        {
            "path": path,
            "mode": ReadMode.CHANGES.value,
            "after": after,
            "until": until,
            "exact": exact,
            "on_gap": on_gap,
            "push_filters": spark.conf.get(PUSH_FILTERS, "false"),
            "partitions_at_least": cores(spark),
            **given,
        }
    )
    found = ChangesRead.of(options.parse(asked))
    register(spark)
    name = named(spark, _changes_name(directory_of(found.archive), asked))
    return spark.read.format(name).options(**asked).load()


def _changes_name(uri: str, asked: Mapping[str, str]) -> str:
    """Name of the scan in ``explain``."""
    ends = [f"{end} {asked[end]}" for end in ("after", "until", "key") if end in asked]
    return " ".join([f"laredo changes of {uri}", *ends])


def count_rows(
    spark: SparkSession, path: str, as_of: str | datetime | None = None, **given: object
) -> int:
    """Number of rows of the table at the last boundary at or before ``as_of``; default: head.

    It comes from the manifest, so no row is read. Only with ``key``, or in archives of other
    writers, Spark counts the rows.
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
