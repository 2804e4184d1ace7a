"""Spark sessions with a lakehouse in them, and a job with such a session, to be killed.

python -m tests.support.lakehouse_session delta|iceberg DIRECTORY WAREHOUSE ARCHIVE TARGET...
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from laredo_spark import sync_table
from laredo_spark.sync import delta, iceberg
from laredo_spark.sync.errors import SyncError
from tests.support.spark import kept_jars, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# hadoop-aws 3.5.0 asks for a bundle of the whole SDK, 686 MB; all these are 30 MB with Delta's.
_SDK = ("s3", "s3-transfer-manager", "apache-client", "netty-nio-client", "sts")
_S3A = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{module}:2.35.4" for module in _SDK),
)


def delta_session(directory: Path) -> "SparkSession":
    """As the other tests' sessions; without what Delta and S3A ask for and Spark has."""
    settings = {**delta.settings(), "spark.databricks.delta.snapshotPartitions": "1"}
    settings["spark.jars.packages"] = ",".join((settings["spark.jars.packages"], *_S3A))
    return session_of(directory, kept_jars(settings))


def iceberg_session(directory: Path, warehouse: Path) -> "SparkSession":
    """As the other tests' sessions, with the catalog ``lake`` below ``warehouse``."""
    catalog = "spark.sql.catalog.lake"
    settings = {
        **iceberg.settings(),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(warehouse),
    }
    return session_of(directory, kept_jars(settings))


def main(to: str, directory: str, warehouse: str, archive: str, *targets: str) -> None:
    """Sync the archive to each target; print a line for each outcome."""
    own = Path(directory)
    spark = iceberg_session(own, Path(warehouse)) if to == "iceberg" else delta_session(own)
    for target in targets:
        try:
            print(sync_table(spark, archive, to=to, target=target), flush=True)
        except SyncError as failure:
            print(failure, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
