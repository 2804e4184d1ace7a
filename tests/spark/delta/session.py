"""A Spark session with Delta Lake and S3A, its JARs in the environment after the first one."""

from pathlib import Path
from typing import TYPE_CHECKING

from laredo_spark.sync import delta
from tests.support.spark import kept_jars, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# hadoop-aws 3.5.0 asks for a bundle of the whole SDK, 686 MB; all these are 30 MB with Delta's.
_SDK = ("s3", "s3-transfer-manager", "apache-client", "netty-nio-client", "sts")
S3A = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{module}:2.35.4" for module in _SDK),
)


def delta_session(directory: Path) -> "SparkSession":
    """As the other tests' sessions; without what Delta and S3A ask for and Spark has."""
    settings = {**delta.settings(), "spark.databricks.delta.snapshotPartitions": "1"}
    settings["spark.jars.packages"] = ",".join((settings["spark.jars.packages"], *S3A))
    return session_of(directory, kept_jars(settings))
