"""A table's rows as Arrow record batches: blocks of lines in, typed columns out."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from laredo_archive.codec import protobuf
from laredo_archive.codec.arrow.fragments import BlockSplitter, nesting, rows_of, strings
from laredo_archive.codec.arrow.stored import StoredBatch
from laredo_archive.codec.arrow.types import Typing, schema
from laredo_archive.codec.arrow.values import converter, texts
from laredo_archive.codec.structs.projection import Projection
from laredo_archive.codec.structs.struct_reader import StructRowReader
from laredo_model.column import Column, key_columns


class RowReader:
    """Makes record batches of a table's lines.

    ``wanted``: the columns to make, in the table's order; all if None.
    """

    as_format_says = True
    """True if lines are as in docs/archive-format.md: our own writer made them."""

    def __init__(
        self,
        columns: Sequence[Column],
        typing: Typing | None = None,
        wanted: Sequence[str] | None = None,
    ) -> None:
        """:raises TypingRefused: if ``typing`` doesn't fit the columns."""
        chosen = typing or Typing()
        whole = schema(columns, chosen)
        self._columns = [c for c in columns if wanted is None or c.name in set(wanted)]
        needed = {c.name for c in (*self._columns, *key_columns(columns))}
        self._split_names = needed
        #: What new rows are reduced to before they are taken apart; None: they stay as they stand.
        self.projection: Projection | None = None
        if self.as_format_says and len(needed) < len(columns):
            self.projection = Projection([c.name for c in columns], needed)
            self._projected_splitter = BlockSplitter(
                self.projection.names, nesting=nesting(columns), whole=False
            )
        self._splitter = BlockSplitter(
            [c.name for c in columns],
            list(needed),
            nesting(columns) if self.as_format_says else None,
            # The checksum of its block says whether a line is as it was written.
            whole=not self.as_format_says,
        )
        self._converters = {c.name: converter(c, chosen) for c in self._columns}
        self.schema = pa.schema([whole.field(column.name) for column in self._columns])

    def batch(self, block: bytes) -> pa.RecordBatch:
        """The rows of ``block``, whole lines that each end with a newline.

        :raises BadLine: if a line isn't a row with these columns.
        :raises ArrowError: if a value doesn't fit its column's Arrow type.
        """
        found = self.split(block)
        return self.typed(found, rows_of(found, block))

    def projected_batch(self, block: bytes) -> pa.RecordBatch:
        """The rows of a block of lines that the ``projection`` made; raises as ``batch``."""
        found = self._split_projected(block)
        return self.typed(found, rows_of(found, block))

    def split(self, block: bytes) -> Mapping[str, pa.StringArray]:
        """The JSON fragments of the wanted columns, and of the key's.

        :raises BadLine: if a line isn't a row with these columns.
        """
        return self._splitter.split(block)

    def split_structs(
        self, messages: list[bytes], reader: StructRowReader
    ) -> Mapping[str, pa.StringArray]:
        """Split SnapshotRow messages into columns.

        :raises BadBytes: if one isn't a row.
        """
        found = self._scanned(messages, reader)
        return self.split(protobuf.lines_of(messages, reader)) if found is None else found

    def projected_structs(
        self, messages: list[bytes], reader: StructRowReader
    ) -> Mapping[str, pa.StringArray]:
        """Split messages of the ``projection`` into columns; ``reader`` is for its columns."""
        if self.projection is None:
            return self.split_structs(messages, reader)
        found = self._scanned(messages, reader)
        return (
            self._split_projected(protobuf.lines_of(messages, reader)) if found is None else found
        )

    def _split_projected(self, block: bytes) -> Mapping[str, pa.StringArray]:
        if self.projection is None:
            return self.split(block)
        return self._projected_splitter.split(block)

    def _scanned(
        self, messages: list[bytes], reader: StructRowReader
    ) -> Mapping[str, pa.StringArray] | None:
        """By compiled code; None where they have to be read row by row."""
        columns = reader.columns(messages, self._split_names)
        if columns is not None:
            with suppress(pa.ArrowInvalid):  # text that isn't UTF-8: row by row says where
                return {name: strings((offsets, text)) for name, offsets, text in columns}
        return None

    @property
    def needed(self) -> Sequence[str]:
        """The columns that stored() needs."""
        return [column.name for column in self._columns]

    def stored(self, batch: StoredBatch) -> pa.RecordBatch:
        """The record batch of rows that were typed already, as far as they are typed so here."""
        arrays = []
        for name, convert in self._converters.items():
            found = batch.typed(name, self.schema.field(name).type)
            arrays.append(convert(batch.fragments(name)) if found is None else found)
        return self._of_arrays(arrays, batch.rows)

    def typed(self, fragments: Mapping[str, pa.StringArray], rows: int) -> pa.RecordBatch:
        """The record batch of columns that were taken apart already; ``rows`` is their length."""
        arrays = [convert(fragments[name]) for name, convert in self._converters.items()]
        return self._of_arrays(arrays, rows)

    def _of_arrays(self, arrays: list[pa.Array], rows: int) -> pa.RecordBatch:
        if not arrays:
            # Of a batch without columns only the number of rows is left.
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        return pa.record_batch(arrays, schema=self.schema)


def keys_of(fragments: Mapping[str, pa.StringArray], columns: Sequence[Column]) -> pa.StringArray:
    """The rows' keys (docs/archive-format.md, Rows), from the fragments of the key's columns."""
    names = [column.name for column in key_columns(columns)]
    if len(names) == 1:
        return texts(fragments[names[0]])
    inside = pc.binary_join_element_wise(*(fragments[name] for name in names), ",")
    return pc.binary_join_element_wise("[", inside, "]", "")
