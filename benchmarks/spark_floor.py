"""What Spark takes for rows that are there already: a Python data source of one batch, repeated."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from laredo_spark.options import parse
from laredo_spark.read.table_read import TableRead
from laredo_spark.read.table_reader import TableReader


def constant(
    spark: SparkSession, archive: str, rows: int, tasks: int, columns: Sequence[str] | None
) -> DataFrame:
    """The first rows of a table as often as it has about ``rows``; nothing is read or decoded."""
    given = {"path": archive} | ({"columns": ",".join(columns)} if columns else {})
    table = TableRead.of(parse(given))
    schema = table.spark_schema()
    reader = TableReader(table.asked, schema)
    batch = next(iter(reader.read(reader.partitions()[0])))
    source = f"constant {len(schema)}"
    repeated = _Repeated(batch, tasks, rows // batch.num_rows // tasks)

    class ConstantSource(DataSource):
        """Nothing but the batch."""

        @classmethod
        def name(cls) -> str:
            return source

        def reader(self, schema: StructType) -> DataSourceReader:
            return repeated

    spark.dataSource.register(ConstantSource)
    return spark.read.format(source).schema(schema).load()


class _Repeated(DataSourceReader):
    def __init__(self, batch: pa.RecordBatch, tasks: int, times: int) -> None:
        self._batch, self._tasks, self._times = batch, tasks, times

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter([self._batch] * self._times)
