"""``spark.read.format("laredo")``: PySpark's Python data source over an archive.

https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html
"""

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from laredo_spark import options
from laredo_spark.table_read import TableRead
from laredo_spark.table_reader import FilteredTableReader, TableReader


class LaredoDataSource(DataSource):
    """One table of an archive; ``laredo_spark.options`` says which options there are."""

    @classmethod
    def name(cls) -> str:
        """What stands in format()."""
        return "laredo"

    def schema(self) -> StructType:
        """The columns at the boundary, with their exact types."""
        return TableRead.of(options.parse(self.options)).spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """What plans and reads."""
        asked = options.parse(self.options)
        made = FilteredTableReader if asked.push_filters else TableReader
        return made(asked, schema)
