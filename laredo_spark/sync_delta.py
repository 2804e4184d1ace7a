"""``sync_table(to="delta")``."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from laredo_spark.sync_errors import DeltaMissing
from laredo_spark.sync_parquet import Written


def sync_delta(
    spark: SparkSession, given: Mapping[str, str], target: str, *, rebuild: bool
) -> Written:
    """Not there yet."""
    raise DeltaMissing(f"Spark {spark.version}")
