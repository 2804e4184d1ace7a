"""A Spark session: made after a check of the installed Java; its cores, schemas and names."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.errors import PySparkAttributeError, PySparkImportError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from laredo_spark.errors import ConnectMissing, JavaMissing

OLDEST_JAVA = 17
"""https://spark.apache.org/docs/latest/#downloading"""
_VERSION = re.compile(r'version "(\d+)')
_PATIENCE_S = 60


def session(
    name: str = "laredo", master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The active session, or a new one with filters on the key pushed down.

    ``master``: Spark's own setting; default: spark-submit's, else all cores of this machine.
    ``settings``: other settings of Spark, by their names.

    :raises JavaMissing: if no Java that Spark could run on is found.
    :raises ConnectMissing: if it is one of Spark Connect, and a package for that is missing.
    """
    if not remote(settings or {}):
        check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    builder = builder.config("spark.sql.python.filterPushdown.enabled", "true")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for setting, value in (settings or {}).items():
        builder = builder.config(setting, value)
    try:
        return builder.getOrCreate()
    except PySparkImportError as missing:
        raise ConnectMissing(str(missing).rstrip(".")) from missing


def remote(settings: Mapping[str, str]) -> bool:
    """True if the session is one of Spark Connect, whose Spark runs elsewhere."""
    return "spark.remote" in settings or "SPARK_REMOTE" in os.environ


def check_java() -> None:
    """Check the version of the Java that Spark would run on.

    :raises JavaMissing: if there is none, or one that is too old.
    """
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else "java"
    where = f"JAVA_HOME is {home}" if home else "on PATH"
    try:
        answer = subprocess.run(
            [command, "-version"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise JavaMissing(f"none found, {where}") from None
    found = _VERSION.search(answer.stderr + answer.stdout)
    if found is None:
        raise JavaMissing(f"{command} -version prints no version, {where}")
    if int(found[1]) < OLDEST_JAVA:
        raise JavaMissing(f"found {found[1]}, {where}")


# Number of tasks that a Spark session runs at the same time.

_MANY = 1 << 20
_known: "WeakKeyDictionary[SparkSession, int]" = WeakKeyDictionary()


def cores(spark: SparkSession) -> int:
    """Spark's ``defaultParallelism``; over Spark Connect, found by one small job a session.

    A client of Spark Connect has no SparkContext
    (https://spark.apache.org/docs/latest/spark-connect-overview.html), but a range is cut into as
    many partitions.
    """
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:
        pass
    if spark not in _known:
        partition = F.spark_partition_id()
        _known[spark] = spark.range(_MANY).select(partition).distinct().count()
    return _known[spark]


# The Arrow schema of a DataFrame, in whichever PySpark is installed.

_NAMES_ZONE = "timezone" in signature(to_arrow_schema).parameters


def arrow_schema(schema: StructType) -> pa.Schema:
    """The types of the batches that Spark takes; timestamps are in UTC."""
    if _NAMES_ZONE:
        return to_arrow_schema(schema, timezone="UTC")
    # PySpark 4.1 knows no other zone.
    return to_arrow_schema(schema)


def quoted(name: str) -> str:
    """A name as Spark's SQL has it."""
    return "`" + name.replace("`", "``") + "`"
