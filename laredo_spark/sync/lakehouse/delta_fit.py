"""Checks that a Spark session has Delta Lake, and one made for its Spark.

Delta's classes are compiled for one release of Spark. With another one some calls work and others
end in a NoSuchMethodError, also after a write: so the versions are compared first.
"""

import re
from importlib import metadata

import pyspark
from packaging.requirements import Requirement
from pyspark.sql import SparkSession

from laredo_spark.sync.errors import DeltaMissing, DeltaUnfit

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
EXTENSIONS_SETTING = "spark.sql.extensions"
_PACKAGE = "delta-spark"
_SCALA = "2.13"
_RELEASE = re.compile(r"\d+(\.\d+)*")


def refuse_unfit(spark: SparkSession) -> None:
    """Refuse a session that can't write Delta tables.

    :raises DeltaMissing: if Delta Lake isn't in the session.
    :raises DeltaUnfit: if it is for another Spark.
    """
    try:
        import delta.tables  # noqa: F401

        installed = metadata.version(_PACKAGE)
    except (ImportError, metadata.PackageNotFoundError):
        raise DeltaMissing("the Python package delta-spark isn't installed") from None
    required = [
        line for line in metadata.requires(_PACKAGE) or () if Requirement(line).name == "pyspark"
    ]
    if not all(fits(spark.version, line) for line in required):
        raise DeltaUnfit(installed, ", ".join(required), spark.version)
    if EXTENSION not in (spark.conf.get(EXTENSIONS_SETTING, "") or ""):
        raise DeltaMissing(
            f"{EXTENSIONS_SETTING} lacks {EXTENSION}, and spark.sql.catalog.spark_catalog is to be"
            f" {CATALOG}"
        )


def settings() -> dict[str, str]:
    """Spark's settings that load the installed Delta Lake.

    :raises DeltaMissing: if the Python package isn't installed.
    """
    try:
        installed = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise DeltaMissing("the Python package delta-spark isn't installed") from None
    spark = ".".join(pyspark.__version__.split(".")[:2])
    return {
        "spark.jars.packages": f"io.delta:{_PACKAGE}_{spark}_{_SCALA}:{installed}",
        EXTENSIONS_SETTING: EXTENSION,
        "spark.sql.catalog.spark_catalog": CATALOG,
    }


def fits(version: str, requirement: str) -> bool:
    """True if a release meets a requirement (``pyspark<=4.2.0,>=4.0.1``).

    A vendor's build counts as its release: ``4.2.0-amzn-1`` is 4.2.0.
    """
    wanted = Requirement(requirement)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return True
    release = _RELEASE.match(version)
    return release is not None and wanted.specifier.contains(release[0])
