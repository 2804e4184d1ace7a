"""What a read of a table comes to: one manifest, one boundary, its columns."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from laredo_archive.arrow import types
from laredo_archive.arrow.rows import RowReader
from laredo_archive.codec import Source
from laredo_archive.manifest import Artifact, FormatEntry
from laredo_archive.ranges import Slice
from laredo_archive.reader import Archive
from laredo_archive.timeline import Boundary
from laredo_model import position as positions
from laredo_model.column import Column, key_columns
from laredo_spark.errors import OptionRefused
from laredo_spark.options import ReadOptions


@dataclass(frozen=True)
class TableRead:
    """An archive, as one version of its manifest describes it, at one boundary."""

    asked: ReadOptions
    archive: Archive
    boundary: Boundary

    @classmethod
    def of(cls, asked: ReadOptions) -> "TableRead":
        """What ``asked`` means now.

        :raises ArchiveError: if there is no such archive, or no such boundary in it.
        :raises OptionRefused: if a column isn't there.
        """
        archive = Archive.at(asked.path, asked.key_fields, asked.access())
        boundary = archive.boundary(asked.as_of, exact=asked.exact, epoch=asked.epoch)
        found = cls(asked, archive, boundary)
        found._refuse_unknown_columns()
        return found

    @classmethod
    def again(cls, asked: ReadOptions, boundary: Boundary) -> "TableRead":
        """The same read in a task, at the boundary that was planned."""
        archive = Archive.at(asked.path, asked.key_fields, asked.access())
        return cls(asked, archive, boundary)

    def pinned(self) -> dict[str, str]:
        """The options that mean this very boundary, also when there are later ones."""
        position = positions.text(self.boundary.position)
        return {"as_of": position, "exact": "true", "epoch": str(self.boundary.epoch)}

    @property
    def columns(self) -> tuple[Column, ...]:
        """The table's at the boundary."""
        return self.boundary.columns or ()

    @property
    def key_names(self) -> list[str]:
        """The key's columns, in its order."""
        return [column.name for column in key_columns(self.columns)]

    def rows(self) -> RowReader:
        """What makes batches of its lines."""
        return RowReader(self.columns, self.asked.typing, self.asked.columns)

    def arrow_schema(self) -> pa.Schema:
        """Of the batches; every column may be null, as values that Spark lacks are by option."""
        chosen = types.schema(self.columns, self.asked.typing)
        wanted = self.asked.columns
        return pa.schema(
            [
                field.with_nullable(True)
                for field in chosen
                if wanted is None or field.name in wanted
            ]
        )

    def spark_schema(self) -> StructType:
        """The DataFrame's."""
        return from_arrow_schema(self.arrow_schema())

    def choose(self, artifact: Artifact) -> tuple[str, FormatEntry]:
        """The format to read an artifact in, and its entry.

        :raises FormatUnknown: if it is there in none that is known here.
        """
        format_id = self.asked.format_id
        return self.archive.files.choose(
            artifact, format_id if format_id in artifact.formats else None
        )

    @contextmanager
    def open_slice(self, part: Slice) -> Iterator[Source]:
        """An artifact's bytes from the slice's start on."""
        found = self.archive.found
        with closing(found.destination.open(found.locate(part.entry.key), part.start)) as source:
            yield source

    def _refuse_unknown_columns(self) -> None:
        known: Sequence[str] = [column.name for column in self.columns]
        for name in self.asked.columns or ():
            if name not in known:
                raise OptionRefused("columns", name, f"there are {', '.join(known)}")
