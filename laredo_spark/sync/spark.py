"""Reads one boundary with Spark, and turns Spark's exceptions into SyncFailed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from laredo_spark.errors import own_message
from laredo_spark.frames import read_table
from laredo_spark.sync.errors import SyncFailed

FAILURES: tuple[type[Exception], ...] = (PySparkException,)
try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ModuleNotFoundError:  # the client of Spark Connect has no Java at its side
    pass
else:
    FAILURES += (Py4JError,)


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
