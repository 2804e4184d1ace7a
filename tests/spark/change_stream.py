"""A stream of an archive's changes, as its reader gives batches and as a query runs."""

import time
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from laredo_spark import register
from laredo_spark.changes.stream import ChangesStreamReader, Offset
from laredo_spark.source import LaredoDataSource
from tests.spark.simple_archive import found
from tests.support.processes import PATIENCE_S

FIRST: Offset = {"position": "", "epoch": 0, "history": ""}


def reader(archive: Path, **options: str) -> ChangesStreamReader:
    """As Spark makes it."""
    source = LaredoDataSource({"path": str(archive), "mode": "changes", **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, ChangesStreamReader)
    return made


def latest(made: ChangesStreamReader, start: Offset) -> Offset:
    return made.latestOffset(start, made.getDefaultReadLimit())


class Stream:
    """A query that appends to a Parquet directory."""

    def __init__(
        self, spark: SparkSession, archive: Path | str, directory: Path, **options: str
    ) -> None:
        register(spark)
        self._spark = spark
        self._target = directory / "rows"
        given = {"mode": "changes", **options}
        self._changes = spark.readStream.format("laredo").options(**given).load(str(archive))
        self._checkpoint = str(directory / "checkpoint")

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self._changes.writeStream.format("parquet").trigger(**trigger)
        writer = writer.option("checkpointLocation", self._checkpoint)
        return writer.start(str(self._target))

    def run(self) -> None:
        """Everything that there is now.

        On a busy machine Spark gives its Python worker up after 10 s, before the query begins.
        """
        patience = time.monotonic() + PATIENCE_S
        while True:
            query = self.start(availableNow=True)
            try:
                assert query.awaitTermination(120)
                return
            except StreamingQueryException as failure:
                late = time.monotonic() > patience
                if "failed to connect back" not in str(failure) or late:
                    raise
            finally:
                query.stop()

    def rows(self) -> DataFrame:
        return self._spark.read.parquet(str(self._target))

    def found(self) -> list[tuple[Any, ...]]:
        return found(self.rows())
