"""Indexes: find rows by other columns than the key, and by the key's columns without an index."""

from collections.abc import Callable, Iterable, Sequence

import orjson

from laredo_fanout.client.errors import BadField
from laredo_fanout.client.table.rows import as_text, texts_of
from laredo_model import key as key_
from laredo_model.column import Column, key_columns

_NUMBERS = frozenset({"int2", "int4", "int8", "oid"})
# How these are printed isn't for a client to guess, so look-ups by them go through an index.
_NOT_FROM_VALUES = frozenset({"float4", "float8", "json", "jsonb"})


class Index:
    """Maps the values of some columns to the keys of the rows that have them."""

    def __init__(self, name: str, fields: Sequence[str]) -> None:
        self.name = name
        self.fields = tuple(fields)
        self._keys: dict[tuple[str | None, ...], bytes | set[bytes]] = {}

    def check(self, columns: Iterable[Column]) -> None:
        """:raises BadField: if it names a column that the table hasn't."""
        known = [column.name for column in columns]
        for field in self.fields:
            if field not in known:
                raise BadField(
                    f"{self.name}: the table has no column {field!r}; it has {', '.join(known)}"
                )

    def find(self, values: Sequence[object]) -> list[bytes]:
        """The keys of the rows with these values, in the order of the keys.

        :raises BadField: if there aren't as many values as fields.
        """
        if len(values) != len(self.fields):
            raise BadField(
                f"{self.name} wants {len(self.fields)} values ({', '.join(self.fields)}), "
                f"not {len(values)}"
            )
        found = self._keys.get(_asked(self.name, values))
        if found is None:
            return []
        return [found] if isinstance(found, bytes) else sorted(found)

    def add(self, key: bytes, line: bytes) -> None:
        """Add the row ``line``."""
        entry = texts_of(line, self.fields)
        found = self._keys.get(entry)
        if found is None:
            self._keys[entry] = key
        elif isinstance(found, set):
            found.add(key)
        elif found != key:
            self._keys[entry] = {found, key}

    def remove(self, key: bytes, line: bytes) -> None:
        """Remove the row ``line``."""
        entry = texts_of(line, self.fields)
        found = self._keys.get(entry)
        if isinstance(found, set):
            found.discard(key)
            if not found:
                del self._keys[entry]
        elif found == key:
            del self._keys[entry]

    def emptied(self) -> "Index":
        """An index of the same columns, without rows."""
        return Index(self.name, self.fields)


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


def _asked(name: str, values: Sequence[object]) -> tuple[str | None, ...]:
    try:
        return tuple(map(as_text, values))
    except RecursionError:
        raise BadField(f"{name}: a value is nested too deeply; give the JSON's own text") from None


def _fragment(column: Column, value: object) -> bytes:
    text = as_text(value)
    if text is None:
        raise BadField(f"lookup: column {column.name!r} is part of the key and never NULL")
    try:
        plain = column.type in _NUMBERS or column.type == "bool"
        return text.encode() if plain else orjson.dumps(text)
    except (UnicodeEncodeError, orjson.JSONEncodeError):
        raise BadField(f"lookup: {text!r} isn't text that PostgreSQL can hold") from None
