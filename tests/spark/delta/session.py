"""A Spark session with Delta Lake, its jars in the virtual environment after the first one."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from laredo_spark.sync import delta_fit
from tests.support.spark import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IN_SPARK = ("org.apache.hadoop", "org.apache.parquet", "org.apache.logging.log4j", "org.slf4j")


def delta_session(directory: Path) -> "SparkSession":
    """As the other tests' sessions; without what Delta asks for and Spark has."""
    settings = {
        **delta_fit.settings(),
        "spark.jars.ivy": str(Path(sys.prefix, "ivy")),
        "spark.jars.ivySettings": str(Path(__file__).with_name("ivysettings.xml")),
        "spark.jars.excludes": ",".join(f"{group}:*" for group in _IN_SPARK),
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    return session_of(directory, settings)
