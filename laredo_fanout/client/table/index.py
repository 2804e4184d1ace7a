"""Indexes of one table: rows found by other columns than the key, and by the key's values.

An index has no values, only a 60-bit hash of them, with the keys of the rows: a third of the
memory. The rows that a hash finds are compared with the values that were asked for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from laredo_fanout.client.errors import BadField
from laredo_fanout.client.table.rows import PARTS, Row, as_text, columns_of
from laredo_model import key as key_
from laredo_model.column import Column, key_columns

Unique = Literal["error", "last"]
Entry = tuple[str | None, ...]
LineOf = Callable[[bytes], bytes | None]
EntryOf = Callable[[bytes], Entry]

_HASH = (1 << 60) - 1  # an int of 32 bytes
_SHIFT = 52
_FEW = 8
_MANY = 8192


@dataclass(frozen=True, slots=True)
class TableIndex:
    """An index of a client: its columns, and the policy for two rows with the same values.

    Rows are compared at the end of a transaction: within it they may swap their values. NULL equals
    nothing, as in PostgreSQL.
    """

    fields: Sequence[str]
    #: ``error`` ends the client with NotUnique. ``last`` finds the row that took the values last,
    #: and once that row has other values the row before it. None finds all rows.
    unique: Unique | None = None

    def __post_init__(self) -> None:
        if isinstance(self.fields, str):
            raise BadField(f"an index wants a list of columns, not the string {self.fields!r}")
        if self.unique not in (None, "error", "last"):
            raise BadField(f"unique is {self.unique!r}; expected error, last or None")


class ManyKeys:
    """The keys of many rows with the same values, in parts that grow by themselves."""

    __slots__ = ("count", "parts")

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.parts: list[dict[bytes, None]] = [{} for _ in range(PARTS)]
        self.count = 0
        for key in keys:
            self.add(key)

    def add(self, key: bytes) -> None:
        """Add a key."""
        part = self.parts[hash(key) & 255]
        before = len(part)
        part[key] = None
        self.count += len(part) - before

    def remove(self, key: bytes) -> None:
        """Remove a key."""
        part = self.parts[hash(key) & 255]
        before = len(part)
        part.pop(key, None)
        self.count += len(part) - before

    def keys(self) -> list[bytes]:
        """All keys."""
        return [key for part in self.parts for key in part]


Keys = bytes | tuple[bytes, ...] | dict[bytes, None] | ManyKeys


class Index:
    """Maps the values of some columns to the keys of the rows that have them."""

    def __init__(self, name: str, fields: Sequence[str], unique: Unique | None = None) -> None:
        self.name = name
        self.fields = tuple(fields)
        self.unique = unique
        self._parts: list[dict[int, Keys]] = [{} for _ in range(PARTS)]
        self._many: dict[int, ManyKeys] = {}
        self._to_compare: dict[int, None] = {}

    def check(self, columns: Iterable[Column]) -> None:
        """:raises BadField: if it names a column that the table hasn't."""
        known = [column.name for column in columns]
        for field in self.fields:
            if field not in known:
                raise BadField(
                    f"{self.name}: the table has no column {field!r}; it has {', '.join(known)}"
                )

    def entry(self, row: Mapping[str, object]) -> Entry:
        """The values of the row, as look-ups compare them."""
        return tuple([as_text(row.get(field)) for field in self.fields])

    def find(self, values: Sequence[object], entry_of: EntryOf) -> list[bytes]:
        """The keys of the rows with these values, in the order of the keys.

        ``entry_of`` gives a row's values by its key.

        :raises BadField: if there aren't as many values as fields.
        """
        if len(values) != len(self.fields):
            raise BadField(
                f"{self.name} wants {len(self.fields)} values ({', '.join(self.fields)}), "
                f"not {len(values)}"
            )
        asked = _asked(self.name, values)
        found = [key for key in self._keys(hash(asked) & _HASH) if entry_of(key) == asked]
        return found[-1:] if self.unique == "last" else sorted(found)

    def change(self, key: bytes, before: Row | None, after: Row | None) -> None:
        """Note that the row's columns were ``before`` (None: it is new), and are ``after`` (None:
        it is gone)."""
        old = None if before is None else self.entry(before)
        new = None if after is None else self.entry(after)
        if old == new:
            return
        if old is not None:
            key = self._remove(key, hash(old) & _HASH)
        if new is not None:
            self._add(key, hash(new) & _HASH, judged=self.unique == "error" and None not in new)

    def duplicates(self, entry_of: EntryOf) -> tuple[bytes, bytes] | None:
        """The keys of two rows with the same values, of an index that is unique by ``error``.

        Compares only rows that were added since it last found none.
        """
        for place in self._to_compare:
            seen: dict[Entry, bytes] = {}
            for key in self._keys(place):
                first = seen.setdefault(entry_of(key), key)
                if first != key:
                    return (first, key)
        self._to_compare.clear()
        return None

    def parts(self) -> list[dict[int, Keys] | dict[bytes, None]]:
        """Its parts, to be freed one by one."""
        groups = [part for many in self._many.values() for part in many.parts]
        return [*self._parts, *groups]

    def _keys(self, place: int) -> Iterable[bytes]:
        found = self._parts[place >> _SHIFT].get(place)
        if found is None:
            return ()
        if isinstance(found, bytes):
            return (found,)
        return found.keys() if isinstance(found, ManyKeys) else found

    def _add(self, key: bytes, place: int, *, judged: bool) -> None:
        part = self._parts[place >> _SHIFT]
        found = part.get(place)
        if found is None:
            part[place] = key
            return
        if judged:
            self._to_compare[place] = None
        if isinstance(found, bytes):
            if found != key:
                part[place] = (found, key)
        elif isinstance(found, tuple):
            if key not in found:
                grown = (*found, key)
                part[place] = grown if len(grown) <= _FEW else dict.fromkeys(grown)
        elif isinstance(found, ManyKeys):
            found.add(key)
        else:
            found[key] = None
            if len(found) > _MANY and self.unique is None:
                part[place] = self._many[place] = ManyKeys(found)

    def _remove(self, key: bytes, place: int) -> bytes:
        """Remove the key; returns it as the rows have it, so that it isn't kept twice."""
        part = self._parts[place >> _SHIFT]
        found = part.get(place)
        if isinstance(found, bytes):
            if found == key:
                del part[place]
                return found
        elif isinstance(found, tuple):
            left = tuple([one for one in found if one != key])
            part[place] = left if len(left) > 1 else left[0]
        elif isinstance(found, ManyKeys):
            found.remove(key)
            if found.count < _MANY // 2:
                # Emptied parts keep their size.
                del self._many[place]
                part[place] = dict.fromkeys(found.keys())
        elif found is not None:
            found.pop(key, None)
            if len(found) == 1:
                part[place] = next(iter(found))
        return key


def _asked(name: str, values: Sequence[object]) -> Entry:
    try:
        return tuple(map(as_text, values))
    except RecursionError:
        raise BadField(f"{name}: a value is nested too deeply; give the JSON's own text") from None


# Makes a row's key of values, so that a look-up by the key's columns needs no index.

_NUMBERS = frozenset({"int2", "int4", "int8", "oid"})
# A client can't know how PostgreSQL prints these, so look-ups by them use an index.
_NOT_FROM_VALUES = frozenset({"float4", "float8", "json", "jsonb"})


def key_maker(
    columns: Sequence[Column], fields: Sequence[str] | None
) -> Callable[[Sequence[object]], bytes] | None:
    """A function that makes a row's key of values of ``fields`` (None: the key's columns).

    None when ``fields`` aren't the key's columns, or the key can't be made of
    values, so that an index is needed.
    """
    parts = key_columns(columns)
    names = [column.name for column in parts]
    asked = names if fields is None else list(fields)
    if not parts or sorted(asked) != sorted(names):
        return None
    if any(column.type in _NOT_FROM_VALUES or column.type.startswith("_") for column in parts):
        return None
    numbers = [asked.index(name) for name in names]

    def make(values: Sequence[object]) -> bytes:
        if len(values) != len(asked):
            raise BadField(f"lookup wants {len(asked)} values ({', '.join(asked)})")
        return key_.of_fragments(
            [_fragment(part, values[number]) for part, number in zip(parts, numbers, strict=True)]
        )

    return make


def _fragment(column: Column, value: object) -> bytes:
    text = as_text(value)
    if text is None:
        raise BadField(f"lookup: column {column.name!r} is part of the key and never NULL")
    try:
        plain = column.type in _NUMBERS or column.type == "bool"
        return text.encode() if plain else orjson.dumps(text)
    except (UnicodeEncodeError, orjson.JSONEncodeError):
        raise BadField(f"lookup: {text!r} isn't text that PostgreSQL can hold") from None


_LOOKUP = "lookup_fields"


class Indexes:
    """The indexes of a table's rows, and the look-up by the lookup fields."""

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
