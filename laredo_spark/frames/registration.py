"""Registers the data source with Spark sessions: as ``laredo``, and by names that say what is read.

All that ``explain`` shows of a Python data source is its name and its columns. So each table that
``read_table`` reads has a data source of its own name: the archive, the boundary, the key.
"""

from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from laredo_archive.manifest import object_keys
from laredo_archive.reader import Archive
from laredo_spark.source import LaredoDataSource

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
