"""Indexes: find rows by other columns than the key.

An index has no values, only a 60-bit hash of them, with the keys of the rows: a third of the
memory. The rows that a hash finds are compared with the values that were asked for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from laredo_fanout.client.errors import BadField
from laredo_fanout.client.table.row_map import PARTS
from laredo_fanout.client.table.rows import Row, as_text
from laredo_model.column import Column

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
    """An index of a client: its columns, and what is done when two rows have the same values.

    Rows are judged at the end of a transaction: within it they may swap their values. NULL equals
    nothing, as in PostgreSQL.
    """

    fields: Sequence[str]
    #: ``error`` ends the client with NotUnique. ``last``: the row that took the values last is
    #: found, and when it leaves them the one before it. None: all rows are found.
    unique: Unique | None = None

    def __post_init__(self) -> None:
        if isinstance(self.fields, str):
            raise BadField(f"an index wants a list of columns, not the string {self.fields!r}")
        if self.unique not in (None, "error", "last"):
            raise BadField(f"unique is {self.unique!r}; expected error, last or None")


class ManyKeys:
    """The keys of many rows with the same values, in parts that grow by themselves."""

    __slots__ = ("parts",)

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.parts: list[dict[bytes, None]] = [{} for _ in range(PARTS)]
        for key in keys:
            self.add(key)

    def add(self, key: bytes) -> None:
        """Add a key."""
        self.parts[hash(key) & 255][key] = None

    def remove(self, key: bytes) -> None:
        """Remove a key."""
        self.parts[hash(key) & 255].pop(key, None)

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
        self._many: list[ManyKeys] = []
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
        groups = [part for many in self._many for part in many.parts]
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
                many = part[place] = ManyKeys(found)
                self._many.append(many)

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
