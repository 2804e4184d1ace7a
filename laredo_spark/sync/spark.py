"""Runs a sync's tasks on Spark, and turns Spark's exceptions into SyncFailed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from laredo_spark.errors import own_message
from laredo_spark.frames.table import read_table
from laredo_spark.sync.errors import SyncFailed
from laredo_spark.sync.parquet import Engine


def engine(spark: SparkSession, target: object) -> Engine:
    """An engine that runs a sync's tasks on Spark."""
    context = spark.sparkContext

    def run(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        with failing_as(target):
            return context.parallelize(items, len(items)).map(task).collect() if items else []

    def write(pinned: Mapping[str, str], directory: Path) -> None:
        with failing_as(target):
            frame_of(spark, pinned).write.mode("append").parquet(file_uri(directory))

    return Engine(run, write, context.defaultParallelism)


def frame_of(spark: SparkSession, pinned: Mapping[str, str]) -> DataFrame:
    """read_table() with options of one boundary."""
    given: dict[str, Any] = dict(pinned)
    for name in ("columns", "key_fields"):
        if name in given:
            given[name] = given[name].split(",")
    return read_table(spark, given.pop("path"), given.pop("as_of"), **given)


def file_uri(path: Path) -> str:
    """A path for Spark, unencoded: Path.as_uri()'s escapes would be in the names of its files."""
    return f"file://{path.absolute()}"


@contextmanager
def failing_as(target: object) -> Iterator[None]:
    """Raise Spark's exceptions in the block as SyncFailed, with one message."""
    try:
        yield
    except (Py4JError, PySparkException) as failure:
        raise SyncFailed(target, own_message(failure) or _first_line(failure)) from failure


def _first_line(failure: Exception) -> str:
    """The message without the JVM's stack, which the cause still has."""
    return str(failure).strip().split("\n", 1)[0].rstrip(".")
