"""``spark.read.format("laredo")``: PySpark's Python data source over an archive.

https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from laredo_spark import options
from laredo_spark.changes.changes_read import Pinned, opened, pinned_now
from laredo_spark.changes.changes_reader import ChangesReader, FilteredChangesReader
from laredo_spark.errors import OptionRefused
from laredo_spark.failure import in_one_message
from laredo_spark.options import Mode
from laredo_spark.read.table_read import TableRead
from laredo_spark.read.table_reader import FilteredTableReader, TableReader
from laredo_spark.read.unfolded_reader import UnfoldedReader, unfolded


class LaredoDataSource(DataSource):
    """One table of an archive; ``laredo_spark.options`` says which options there are."""

    _pinned: dict[str, str] | None = None
    """The boundary that schema() saw: Spark sends this object on, so all reads of a DataFrame,
    and both sides of a join with itself, see that one."""
    _changes: Pinned | None = None
    """The same, for changes."""

    @classmethod
    def name(cls) -> str:
        """What stands in format()."""
        return "laredo"

    @in_one_message
    def schema(self) -> StructType:
        """The columns at the boundary, with their exact types."""
        asked = options.parse(self.options)
        if asked.mode is Mode.CHANGES:
            self._changes = pinned_now(opened(asked), asked)
            return self._changes.shape.spark_schema()
        table = TableRead.of(asked)
        self._pinned = table.pinned()
        found = table.spark_schema()
        return unfolded(found) if asked.mode in (Mode.BASE, Mode.DIFFS) else found

    @in_one_message
    def reader(self, schema: StructType) -> DataSourceReader:
        """What plans and reads."""
        asked = options.parse({**self.options, **(self._pinned or {})})
        if asked.mode is Mode.CHANGES:
            changes = FilteredChangesReader if asked.push_filters else ChangesReader
            return changes(asked, schema, self._changes)
        if asked.mode in (Mode.BASE, Mode.DIFFS):
            return UnfoldedReader(asked, schema)
        made = FilteredTableReader if asked.push_filters else TableReader
        return made(asked, schema)

    @in_one_message
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """What plans and reads a stream, which is one of changes."""
        from laredo_spark.changes.stream import (
            ChangesStreamReader,  # needs PySpark 4.2; batch reads don't
        )

        asked = options.parse(self.options)
        if asked.mode is not Mode.CHANGES:
            raise OptionRefused("mode", asked.mode, "a stream is of changes: write mode = changes")
        return ChangesStreamReader(asked, schema, self._changes)
