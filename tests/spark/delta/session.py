"""A Spark session with Delta Lake, its jars in the virtual environment after the first one."""

from pathlib import Path
from typing import TYPE_CHECKING

from laredo_spark.sync.lakehouse import delta_fit
from tests.support.spark import kept_jars, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delta_session(directory: Path) -> "SparkSession":
    """As the other tests' sessions; without what Delta asks for and Spark has."""
    settings = {**delta_fit.settings(), "spark.databricks.delta.snapshotPartitions": "1"}
    return session_of(directory, kept_jars(settings))
