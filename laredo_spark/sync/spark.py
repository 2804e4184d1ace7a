"""Runs a sync's tasks on Spark, and turns Spark's exceptions into SyncFailed."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_spark.cores import cores
from laredo_spark.errors import own_message
from laredo_spark.frames.table import read_table
from laredo_spark.sync.errors import SyncFailed
from laredo_spark.sync.parquet import Engine

FAILURES: tuple[type[Exception], ...] = (PySparkException,)
try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ModuleNotFoundError:  # the client of Spark Connect has no Java at its side
    pass
else:
    FAILURES += (Py4JError,)


def engine(spark: SparkSession, target: object) -> Engine:
    """An engine that runs a sync's tasks on Spark."""

    def run(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        if not items:
            return []
        # A function over a range, not an RDD: over Spark Connect there are no RDDs.
        # Without Arrow: that way it would ask for pandas.
        work = F.udf(
            lambda number: pickle.dumps(task(items[number])), "binary", useArrow=False
        ).asNondeterministic()
        numbers = spark.range(0, len(items), 1, len(items))
        with failing_as(target):
            done = numbers.select("id", work("id").alias("result")).collect()
        return [pickle.loads(row["result"]) for row in sorted(done, key=lambda row: row["id"])]

    def write(pinned: Mapping[str, str], directory: Path) -> None:
        with failing_as(target):
            frame_of(spark, pinned).write.mode("append").parquet(file_uri(directory))

    return Engine(run, write, cores(spark))


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
    except FAILURES as failure:
        raise SyncFailed(target, own_message(failure) or _cause(failure)) from failure


def _cause(failure: Exception) -> str:
    """Error of a failed task, or the message without the JVM's stack, which the cause still has."""
    text = str(failure).strip()
    _, traceback, frames = text.partition("Traceback (most recent call last):")
    if traceback:
        for line in frames.splitlines()[1:]:
            if line and not line.startswith(" "):
                return f"a Python worker failed: {line.strip()}"
    return text.split("\n", 1)[0].rstrip(".")
