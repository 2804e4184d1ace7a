"""A streaming query as a process of its own, to be killed: archive, directory, once or for ever."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from laredo_spark import register
from tests.fix_spark import session_of

OPTIONS = {"mode": "changes", "lines": "true", "max_diffs_per_trigger": "3"}


def main(archive: str, directory: str, how: str) -> None:
    """Append the archive's changes to the Parquet files in ``directory``/rows."""
    spark: SparkSession = session_of(Path(directory, "spark"))
    register(spark)
    changes = spark.readStream.format("laredo").options(**OPTIONS).load(archive)
    writer = changes.writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    once = how == "once"
    writer = (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime="100 milliseconds")
    )
    writer.start(f"{directory}/rows").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
