"""A Spark session with Iceberg and a catalog in a directory; its JAR is in the environment."""

from pathlib import Path
from typing import TYPE_CHECKING

from laredo_spark.sync import iceberg
from tests.support.spark import kept_jars, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "lake"


def iceberg_session(directory: Path, warehouse: Path) -> "SparkSession":
    """As the other tests' sessions, with the catalog ``lake`` below ``warehouse``."""
    catalog = f"spark.sql.catalog.{CATALOG}"
    settings = {
        **iceberg.settings(),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(warehouse),
    }
    return session_of(directory, kept_jars(settings))
