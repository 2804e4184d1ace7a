"""Spark as what does a sync's work, and what it says when that fails."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from laredo_spark.errors import said
from laredo_spark.frames.table import read_table
from laredo_spark.sync.errors import SyncFailed
from laredo_spark.sync.parquet import Engine


def engine(spark: SparkSession, target: object) -> Engine:
    """Spark as what runs a sync's tasks."""
    context = spark.sparkContext

    def run(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        with failing_as(target):
            return context.parallelize(items, len(items)).map(task).collect() if items else []

    def write(pinned: Mapping[str, str], place: Path) -> None:
        with failing_as(target):
            frame_of(spark, pinned).write.mode("append").parquet(file_uri(place))

    return Engine(run, write, context.defaultParallelism)


def frame_of(spark: SparkSession, pinned: Mapping[str, str]) -> DataFrame:
    """read_table() with options that mean one boundary."""
    given: dict[str, Any] = dict(pinned)
    for name in ("columns", "key_fields"):
        if name in given:
            given[name] = given[name].split(",")
    return read_table(spark, given.pop("path"), given.pop("as_of"), **given)


def file_uri(path: Path) -> str:
    """A path as Spark takes it: what Path.as_uri() encodes would be in the names of its files."""
    return f"file://{path.absolute()}"


@contextmanager
def failing_as(target: object) -> Iterator[None]:
    """What goes wrong in Spark as a SyncFailed with one message."""
    try:
        yield
    except (Py4JError, PySparkException) as failure:
        raise SyncFailed(target, said(failure) or _first_line(failure)) from failure


def _first_line(failure: Exception) -> str:
    """Without the JVM's stack, which the exception that is the cause has still."""
    return str(failure).strip().split("\n", 1)[0].rstrip(".")
