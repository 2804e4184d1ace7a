"""The indexes of one table: a row is parsed once for all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from laredo_fanout.client.errors import BadField
from laredo_fanout.client.table.index import Entry, Index, LineOf, TableIndex
from laredo_fanout.client.table.key_maker import key_maker
from laredo_fanout.client.table.rows import Row, columns_of
from laredo_model.column import Column, key_columns

_LOOKUP = "lookup_fields"


class Indexes:
    """The indexes of rows with some columns, and how a row is looked up by its lookup fields."""

    def __init__(
        self,
        lookup_fields: Sequence[str] | None,
        indexes: Mapping[str, Sequence[str] | TableIndex],
        columns: Sequence[Column] = (),
    ) -> None:
        """:raises BadField: if the fields of a look-up or an index aren't columns."""
        if isinstance(lookup_fields, str):
            raise BadField(f"{_LOOKUP} wants a list of columns, not the string {lookup_fields!r}")
        self._lookup_fields = None if lookup_fields is None else tuple(lookup_fields)
        self._configured = {
            name: given if isinstance(given, TableIndex) else TableIndex(given)
            for name, given in indexes.items()
        }
        self._named = {
            name: Index(f"index {name!r}", given.fields, given.unique)
            for name, given in self._configured.items()
        }
        self._make_key = key_maker(columns, self._lookup_fields)
        self._lookup: Index | None = None
        if columns and self._make_key is None:
            fields = self._lookup_fields or [column.name for column in key_columns(columns)]
            self._lookup = Index(_LOOKUP, fields) if fields else None
        self._all = [*self._named.values(), *([self._lookup] if self._lookup is not None else [])]
        self._judged = [index for index in self._all if index.unique == "error"]
        self._fields = frozenset(field for index in self._all for field in index.fields)
        for index in self._all if columns else ():
            index.check(columns)

    def __len__(self) -> int:
        return len(self._all)

    def for_columns(self, columns: Sequence[Column]) -> "Indexes":
        """Copy these indexes without rows, for rows with these columns.

        :raises BadField: if the fields of a look-up or an index aren't columns.
        """
        return Indexes(self._lookup_fields, self._configured, columns)

    def change(self, key: bytes, old: bytes | None, new: bytes | None) -> None:
        """Note that the row ``old`` (None: there was none) is ``new`` (None: it is gone)."""
        before = None if old is None else columns_of(old, self._fields)
        after = None if new is None else columns_of(new, self._fields)
        for index in self._all:
            index.change(key, before, after)

    def lookup(self, values: Sequence[object], line_of: LineOf) -> bytes | None:
        """The line of the row whose lookup fields have these values.

        :raises BadField: if the values don't fit the fields.
        """
        if self._make_key is not None:
            return line_of(self._make_key(values))
        if self._lookup is None:
            return None  # the columns aren't known yet
        keys = self._find(self._lookup, values, line_of)
        return line_of(keys[0]) if keys else None

    def find(self, name: str, values: Sequence[object], line_of: LineOf) -> list[bytes]:
        """The keys of the rows that the index finds, in the order of the keys.

        :raises BadField: if there is no such index, or the values don't fit it.
        """
        if name not in self._named:
            known = ", ".join(sorted(self._named)) or "none"
            raise BadField(f"there is no index {name!r}; configured: {known}")
        return self._find(self._named[name], values, line_of)

    def duplicates(self, line_of: LineOf) -> tuple[str, bytes, bytes] | None:
        """The name of an index that is unique by ``error``, and the keys of two rows in it with
        the same values; None if there are none."""
        for index in self._judged:
            found = index.duplicates(lambda key, of=index: _entry(of, key, line_of))  # type: ignore[misc]
            if found is not None:
                return (index.name, *found)
        return None

    def parts(self) -> list[dict[Any, Any]]:
        """Parts of all indexes, to be freed one by one."""
        return [part for index in self._all for part in index.parts()]

    def _find(self, index: Index, values: Sequence[object], line_of: LineOf) -> list[bytes]:
        return index.find(values, lambda key: _entry(index, key, line_of))


def _entry(index: Index, key: bytes, line_of: LineOf) -> Entry:
    line = line_of(key)
    row: Row = {} if line is None else columns_of(line, frozenset(index.fields))
    return index.entry(row)
