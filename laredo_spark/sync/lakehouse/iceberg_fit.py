"""Checks that a Spark session has Iceberg, one made for its Spark, and the target's catalog.

Iceberg's runtime is compiled for one minor release of Spark, which its JAR is named after.
"""

import re

import pyspark
from pyspark.sql import SparkSession

from laredo_spark.sync.errors import IcebergMissing, IcebergUnfit, TargetRefused
from laredo_spark.sync.spark import FAILURES

EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
EXTENSIONS_SETTING = "spark.sql.extensions"
RUNTIMES = {"4.0": "1.12.0", "4.1": "1.12.0"}
"""Spark's minor releases for which there is a runtime, and its version."""
_SCALA = "2.13"
_CATALOGS = "org.apache.iceberg.spark.Spark"
_RUNTIME = re.compile(r"iceberg-spark-runtime-(\d+\.\d+)_[\d.]+-(\d[\w.]*?)\.jar")
_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.\s/]+)")
_LEAST_PARTS = 3


def refuse_unfit(spark: SparkSession, target: str) -> None:
    """Refuse a session that can't write the Iceberg table ``target``.

    :raises TargetRefused: if that isn't the name of a table in a catalog.
    :raises IcebergMissing: if Iceberg, its extension or the catalog isn't in the session.
    :raises IcebergUnfit: if its runtime is for another Spark.
    """
    catalog = parts_of(target)[0]
    refuse_other_spark(spark.version, _jars(spark))
    if not _is_loaded(spark):
        raise IcebergMissing("there is no iceberg-spark-runtime in it")
    if EXTENSION not in (spark.conf.get(EXTENSIONS_SETTING, "") or ""):
        raise IcebergMissing(f"{EXTENSIONS_SETTING} lacks {EXTENSION}")
    setting = f"spark.sql.catalog.{catalog}"
    if not (spark.conf.get(setting, "") or "").startswith(_CATALOGS):
        raise IcebergMissing(f"{setting} isn't org.apache.iceberg.spark.SparkCatalog")


def refuse_other_spark(version: str, jars: str) -> None:
    """Refuse a runtime of Iceberg among ``jars`` (names or paths) that is for another Spark.

    :raises IcebergUnfit: if there is one.
    """
    for spark, iceberg in _RUNTIME.findall(jars):
        if spark != _minor(version):
            raise IcebergUnfit(iceberg, spark, version)


def settings() -> dict[str, str]:
    """Spark's settings that load Iceberg's runtime for the installed PySpark; no catalog.

    :raises IcebergMissing: if there is none for it.
    """
    spark = _minor(pyspark.__version__)
    if spark not in RUNTIMES:
        raise IcebergMissing(f"there is none for Spark {spark}")
    package = f"org.apache.iceberg:iceberg-spark-runtime-{spark}_{_SCALA}:{RUNTIMES[spark]}"
    return {"spark.jars.packages": package, EXTENSIONS_SETTING: EXTENSION}


def parts_of(target: str) -> tuple[str, ...]:
    """The parts of CATALOG.NAMESPACE.TABLE; those with other characters are in backticks.

    :raises TargetRefused: if it isn't such a name.
    """
    parts, at = [], 0
    while found := _PART.match(target, at):
        parts.append(found[1].replace("``", "`") if found[1] else found[2])
        at = found.end() + 1
        if at > len(target) or target[at - 1] != ".":
            break
    if at != len(target) + 1 or len(parts) < _LEAST_PARTS:
        raise TargetRefused(target, "an Iceberg target is a table's name: CATALOG.NAMESPACE.TABLE")
    return tuple(parts)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _jars(spark: SparkSession) -> str:
    """The session's JARs and the JVM's class path; by SQL, as there may be no JVM at our side."""
    added = [row[0] for row in spark.sql("LIST JARS").collect()]
    path = _java(spark, "'java.lang.System', 'getProperty', 'java.class.path'")
    return "\n".join([*added, path])


def _is_loaded(spark: SparkSession) -> bool:
    try:
        _java(spark, "'org.apache.iceberg.IcebergBuild', 'version'")
    except FAILURES:
        return False
    return True


def _java(spark: SparkSession, call: str) -> str:
    found: str = spark.sql(f"SELECT java_method({call})").collect()[0][0]
    return found
