"""``spark.read.format("laredo")``: PySpark's Python data source over an archive.

https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from laredo_spark import options
from laredo_spark.changes.plan import Pinned, opened, pinned_now
from laredo_spark.changes.reader import ChangesReader, FilteredChangesReader
from laredo_spark.errors import PYSPARK_OF_STREAMS, OptionRefused, importing, in_one_message
from laredo_spark.options import ReadMode
from laredo_spark.read.table_read import FilteredTableReader, TableRead, TableReader
from laredo_spark.read.unfolded_reader import UnfoldedReader, unfolded


class LaredoDataSource(DataSource):
    """The Spark data source of one table of an archive; its options: ``laredo_spark.options``."""

    _pinned: dict[str, str] | None = None
    """The options of the boundary that schema() found: Spark copies this object, so all reads of
    a DataFrame, and both sides of a join with itself, read that boundary."""
    _is_schema_given = False
    """True if ``.schema(...)`` chose columns: then schema() isn't called."""
    _changes: Pinned | None = None
    """Pinned range of changes, as for a table."""

    @classmethod
    def name(cls) -> str:
        """The name for format()."""
        return "laredo"

    @in_one_message
    def schema(self) -> StructType:
        """The columns at the boundary, with their exact types."""
        asked = options.parse(self.options)
        if asked.mode is ReadMode.CHANGES:
            self._changes = pinned_now(opened(asked), asked)
            return self._changes.shape.spark_schema()
        table = TableRead.of(asked)
        if asked.mode is ReadMode.TABLE:
            table.refuse_without_key()
        self._pinned = table.pinned()
        found = table.spark_schema()
        return unfolded(found) if asked.mode in (ReadMode.BASE, ReadMode.DIFFS) else found

    @in_one_message
    def __getstate__(self) -> dict[str, object]:
        """State that Spark pickles; with ``.schema(...)`` this is the first time the boundary is
        found.
        """
        asked = options.parse(self.options)
        if asked.mode is ReadMode.TABLE and asked.history is None and self._pinned is None:
            self._pinned, self._is_schema_given = TableRead.of(asked).pinned(), True
        return self.__dict__

    @in_one_message
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader that plans and runs a batch read."""
        asked = options.parse({**self.options, **(self._pinned or {})})
        if asked.mode is ReadMode.CHANGES:
            changes = FilteredChangesReader if asked.push_filters else ChangesReader
            return changes(asked, schema, self._changes)
        if asked.mode in (ReadMode.BASE, ReadMode.DIFFS):
            return UnfoldedReader(asked, schema)
        made = FilteredTableReader if asked.push_filters else TableReader
        return made(asked, schema, given=self._is_schema_given)

    @in_one_message
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """The reader that plans and runs a stream of changes."""
        with importing(PYSPARK_OF_STREAMS):
            from laredo_spark.changes.stream import ChangesStreamReader

        asked = options.parse(self.options)
        if asked.mode is not ReadMode.CHANGES:
            raise OptionRefused("mode", asked.mode, "a stream is of changes: write mode = changes")
        return ChangesStreamReader(asked, schema, self._changes)
