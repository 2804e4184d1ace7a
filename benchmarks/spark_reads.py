"""One way to read the table, in a process of its own: ``python -m benchmarks.spark_reads ...``.

Prints JSON lines. What is read is consumed whole: Spark's noop sink takes every column.
"""

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import median

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from benchmarks import spark_archive
from benchmarks.counting_client import tell
from benchmarks.processes import cpu_seconds
from benchmarks.spark_memory import SparkMemory
from laredo_spark import read_table
from laredo_spark.session import session

CORES = 2
LOOKUPS = 11
TWO = ("id", "price")
ROUNDS = 9
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
}


def main(arguments: Namespace) -> None:
    """Session start and first jobs aren't measured: all ways have them."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = session("laredo benchmark", f"local[{CORES}]", _SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    _warm(spark)
    measured = _WAYS[arguments.what]
    with SparkMemory() as memory:
        facts = measured(spark, arguments)
    most = {"jvm": memory.jvm, "workers": memory.workers, "worker": memory.worker}
    tell(**facts, **most, tree=memory.tree)
    spark.stop()


def _warm(spark: SparkSession) -> None:
    """The JVM's own start, and the Python workers'."""
    spark.sparkContext.parallelize(range(1000), CORES).map(str).count()
    _consumed(spark.range(1000).toDF("id"))


def _consumed(frame: DataFrame) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def table(spark: SparkSession, arguments: Namespace) -> dict[str, object]:
    """The table with every diff folded in."""
    began = time.perf_counter()
    frame = read_table(spark, arguments.archive, arguments.as_of, format=arguments.format)
    planned = time.perf_counter() - began
    return {"seconds": planned + _consumed(frame), **_again(frame)}


def _again(frame: DataFrame) -> dict[str, object]:
    before = cpu_seconds(os.getpid())
    return {"again": _consumed(frame), "cpu": cpu_seconds(os.getpid()) - before}


def two_columns(spark: SparkSession, arguments: Namespace) -> dict[str, object]:
    """Two columns of ten and all of them, by turns, when the JVM has compiled its code: of the
    table, and of its base alone."""
    frames = {}
    for count, columns in (("two", TWO), ("all", None)):
        asked = {"format": arguments.format, "columns": columns}
        frames[count] = read_table(spark, arguments.archive, **asked)
        frames[f"base_{count}"] = read_table(spark, arguments.archive, spark_archive.BASE, **asked)
    rounds = [[_consumed(frame) for frame in frames.values()] for _ in range(1 + ROUNDS)][1:]
    return dict(zip(frames, map(median, zip(*rounds, strict=True)), strict=True))


def lookup(spark: SparkSession, arguments: Namespace) -> dict[str, object]:
    """Keys one after the other, each from nothing known to its row."""
    seconds = []
    for number in range(1, LOOKUPS + 1):
        began = time.perf_counter()
        found = read_table(spark, arguments.archive, format=arguments.format)
        rows = found.where(found.id == arguments.rows * number // LOOKUPS).collect()
        seconds.append(time.perf_counter() - began)
        if len(rows) > 1:
            raise RuntimeError(f"{len(rows)} rows have one key")
    return {"seconds": seconds[0], "again": median(seconds[1:])}


def plain_json(spark: SparkSession, arguments: Namespace) -> dict[str, object]:
    """Spark's own reader over the same bytes, with the schema given; nothing is folded."""
    row = read_table(spark, arguments.archive).schema
    # A jsonb column is a struct in a line: as text it is what read_table gives.
    change = StructType(
        [
            StructField("action", StringType()),
            StructField("key", StringType()),
            StructField("old", row),
            StructField("new", row),
        ]
    )
    base = spark.read.schema(row).json(_files(arguments, "snapshot-*.jsonl"))
    diffs = spark.read.schema(change).json(_files(arguments, "diff-*.jsonl"))
    first = [_consumed(base), _consumed(diffs)]
    again = [_consumed(base), _consumed(diffs)]
    return {"seconds": sum(first), "again": sum(again), "base": first[0], "diffs": first[1]}


def base_json(spark: SparkSession, arguments: Namespace) -> dict[str, object]:
    """Spark's own reader over the base's lines alone, with the schema given."""
    row = read_table(spark, arguments.archive).schema
    frame = spark.read.schema(row).json(_files(arguments, "snapshot-*.jsonl"))
    return {"seconds": _consumed(frame), **_again(frame)}


def plain_parquet(spark: SparkSession, arguments: Namespace) -> dict[str, object]:
    """Spark's own reader over the base alone."""
    frame = spark.read.parquet(*_files(arguments, "snapshot-*.parquet"))
    return {"seconds": _consumed(frame), **_again(frame)}


def _files(arguments: Namespace, pattern: str) -> list[str]:
    return [str(path) for path in sorted(Path(arguments.archive).rglob(pattern))]


_WAYS: dict[str, Callable[[SparkSession, Namespace], dict[str, object]]] = {
    "table": table,
    "two_columns": two_columns,
    "lookup": lookup,
    "plain_json": plain_json,
    "base_json": base_json,
    "plain_parquet": plain_parquet,
}


def _arguments() -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("what", choices=list(_WAYS))
    parser.add_argument("archive", help="the directory with the manifest")
    parser.add_argument("--format", default="jsonl")
    parser.add_argument("--as-of")
    parser.add_argument("--rows", type=int, default=1_000_000)
    return parser.parse_args()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    main(_arguments())
